"""What plans say of tokens that go to experts and back: what that takes, what hides it, and what else could."""

from __future__ import annotations

from meshwright.ir.table import Kind
from meshwright.lowering.segment.beside_plan import BESIDE, EXPERTS, has_pairs
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_part import Hidden, busiest
from meshwright.prediction.step_program import schedule_of
from meshwright.schedules.order import registered
from meshwright.specs.error import MeshwrightError
from meshwright.specs.units import format_seconds

ROUTE = "ROUTE"  # the row
LEAST_TOLD = 0.005  # of a step


def expert_exchange(found: Predicted) -> Hidden | None:
    """Seconds of the busiest device's all-to-alls of tokens, and what of these passes beside its computes; None without any.

    As rows where the step has them; in composed prices what runs beside experts is hidden as far as these take that long.
    """
    if found.plan.ep == 1 or found.groups is not None:
        return None
    if ROUTE in found.exchanges:
        return found.exchanges[ROUTE]
    program, place, costs = found.program, found.made.placement, found.pricing.costs
    device, _ = busiest(program, found.prices)
    own = program.list_of_row == device
    seconds = hidden_s = 0.0
    for number, work in enumerate(program.tables.works):
        count = int((own & (program.columns.work == number)).sum())
        for inner in work.inner if count else ():
            if inner.label != EXPERTS:
                continue
            ends = place.ends(program, device, Kind.COLLECTIVE, inner.exchange)
            one_s = costs.exchange_cost(inner.exchange, inner.bytes, ends).seconds * inner.count
            beside = tuple(each for each in work.operators if each.kind == inner.beside)
            spec = place.cluster.devices[place.of_list(program, device)]
            covered_s = costs.cost(work._replace(operators=beside, inner=()), spec).seconds if beside else 0.0
            seconds, hidden_s = seconds + count * one_s, hidden_s + count * min(one_s, covered_s)
    return Hidden(found.factor * seconds, found.factor * hidden_s) if seconds else None


def expert_line(found: Predicted) -> list[str]:
    """The sentence of a plan; nothing where its all-to-alls are no matter."""
    sent = expert_exchange(found)
    if sent is None or sent.seconds < LEAST_TOLD * found.step.value:
        return []
    share = 100 * sent.seconds / found.step.value
    said = f"tokens go to experts and back in {format_seconds(sent.seconds)} of the step, {share:.0f} % of it"
    if sent.hidden_s > LEAST_TOLD * found.step.value:
        by = "computes of another part" if found.plan.has_parts else "experts of another microbatch"
        said += f"; {by} hide {format_seconds(sent.hidden_s)}"
    else:
        said += "; nothing hides them"
    return [said + _with_overlap(found)]


def _with_overlap(found: Predicted) -> str:
    """What it would gain to send them beside another microbatch's experts, where the order has pairs; else which have."""
    plan = found.plan
    if BESIDE in plan.overlap or plan.has_parts:
        return ""
    if not has_pairs(plan, schedule_of(plan)):
        others = ", ".join(name for name, each in registered().items() if each.pairs)
        return f"; {plan.schedule} has no two microbatches beside each other, as {others} and one stage have"
    try:
        other = predict(plan.changed(overlap=(*plan.overlap, BESIDE)), found.cluster, extrapolate=True)
        gain = found.step.value / (found.factor * other.step.value) - 1
    except MeshwrightError:
        return ""
    words = "+".join((*plan.overlap, BESIDE))
    return f"; beside another microbatch's experts they would be {100 * gain:.1f} % faster (--fix overlap={words})"
