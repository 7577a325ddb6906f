"""What `meshwright plan` says in sentences: the few that everybody reads, and what --explain tells of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshwright.api.plans.plan_text import passed_over_lines
from meshwright.evidence.log_comparison import KINDS
from meshwright.planner.advice.expert_words import expert_line
from meshwright.planner.search.plans import TIE, Plans
from meshwright.planner.search.search import reasons
from meshwright.planner.space.sent_way import context_line
from meshwright.prediction.predicted import Predicted
from meshwright.prediction.step_part import is_beside
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.units import counted, format_bytes, format_seconds

LEAST_TOLD = 0.001  # of a step, of an exchange that is told by name
LEAST_GAIN = 0.0005  # of a step; what is told with one digit of a per cent
# What a basis means, for people (`specs.prediction`).
BASES: Mapping[str, str] = {
    "measured here": "kernels of these very sizes were measured on this machine",
    "interpolated": "kernels of nearly these sizes were measured on such devices",
    "extrapolated": "such devices or sizes were measured only in part: the interval is wider for it",
    "never seen": "nothing of it was ever measured: rates of a data sheet, and an interval that says so",
}


NEVER_SEEN = "never seen"
UNMEASURED_HERE = (
    "not calibrated: these are rates of a data sheet, and which plan is faster is a guess; `meshwright calibrate` measures "
    "this machine in half a minute, then plan again"
)
UNMEASURED = (
    "not calibrated: no step on such devices was ever measured; after a run `meshwright calibrate --from-log LOG --plan PLAN "
    "-o my.profile.json` measures yours, then plan again with --profile my.profile.json"
)


def headlines(found: Plans, shown: Mapping[int, Predicted], cluster: ClusterSpec) -> list[str]:
    """Why the first is the first, what binds it, and whatever makes it doubtful."""
    best = found[0]
    lines = []
    if found.num_tied:
        lines.append(f"1 is the simplest of {found.num_tied} plans that are as fast, within {100 * TIE:g} %")
    if len(shown) > 1:
        second = list(shown)[1]
        why = f"; on the busiest device {_differences(shown)}" if best.parts else ""
        lines.append(f"1 before {second}: {_ahead(best, shown[second])}{why}")
    for kind, seconds in [pair for pair in best.parts.items() if not is_beside(pair[0])][:1]:
        lines.append(f"most of the step: {part_words(kind)}, {100 * seconds / best.step.value:.0f} % of it")
    lines += expert_line(best)
    if best.drawn is not None:
        lines.append(f"steps are means of drawn batches of documents, {best.drawn.words}")
    return [*lines, *_doubts(found, cluster)]


def _doubts(found: Plans, cluster: ClusterSpec) -> list[str]:
    """That nothing was measured, what was passed over, that memory may not suffice, that the search ended early."""
    best = found[0]
    lines = []
    if best.step.basis == NEVER_SEEN:
        lines.append(UNMEASURED_HERE if cluster.machine.is_here else UNMEASURED)
    lines += passed_over_lines(found)
    lines += tight_lines(found, cluster)
    return lines if found.is_complete else [*lines, "ended early: better plans may not have been simulated"]


def ending(found: Plans, num_shown: int, num_assumed: int) -> str:
    """The last line: what was searched, and where the rest is."""
    lines = [f"{len(found)} of {counted(found.num_candidates, 'candidate')} simulated"]
    if num_shown < len(found):
        lines.append(f"{len(found) - num_shown} more like these or slower: --all")
    lines.append(f"{counted(num_assumed, 'assumption')} and how this was found: --explain")
    return "; ".join(lines)


def took(found: Plans) -> str:
    """Seconds of the search, which differ from run to run."""
    return f"{format_seconds(found.search_s)} search, {format_seconds(found.simulation_s)} simulation"


def details(found: Plans, shown: Mapping[int, Predicted]) -> list[str]:
    """How the search went, what its words mean, and how the shown plans were priced."""
    bases = dict.fromkeys(each.step.basis for each in found)
    lines = [f"basis {basis}: {BASES.get(basis, basis)}" for basis in bases]
    lines.append(
        f"{counted(found.num_candidates, 'candidate')}: {found.num_too_large:,} do not fit, {found.num_slower:,} are proven "
        f"slower than the best, {found.num_evaluated:,} ranked; {len(found)} simulated"
    )
    if found.varied:
        told = (f"{what} {number or 'none'}" for what, number in found.varied.items())
        lines.append(f"of the simulated plans, varied behind the ranking: {', '.join(told)}")
    if found.optimality_gap is not None:
        lines.append(
            f"by what they compute, no other is more than {100 * found.optimality_gap:.1f} % faster than the best"
        )
    if any("layers " in each.description for each in shown.values()):
        lines.append(
            "layers 1+14x2+0: of the stages in their order, 14 stages of 2 between one of 1 and one of 0"
        )
    lines += [
        f"{place}: {context_line(each.plan, each.cluster)}"
        for place, each in shown.items()
        if each.plan.cp > 1
    ][:1]
    return [*lines, *level_lines(shown)]


def level_lines(shown: Mapping[int, Predicted]) -> list[str]:
    """How the shown plans' exchanges inside layers were priced, which of these prices leave something out, and what of the
    first one's exchanges passes beside its computes, by name."""
    levels: dict[str, list[int]] = {}
    doubts: dict[str, list[int]] = {}
    for place, each in shown.items():
        if each.level != "stages":
            levels.setdefault(each.level, []).append(place)
        for reason in each.not_composable:
            doubts.setdefault(reason, []).append(place)
    lines = [f"priced {PRICED[level]}: {_numbers(places)}" for level, places in levels.items()]
    lines += [f"not composable: {_numbers(places)}: {reason}" for reason, places in doubts.items()]
    best = next(iter(shown.values()))
    told = [
        f"{words} {format_seconds(hidden_s)} of {format_seconds(seconds)}"
        for words, (hidden_s, seconds) in _exchanges(best).items()
        if seconds >= LEAST_TOLD * best.step.value
    ]
    return [*lines, *([f"hidden beside computes of 1: {', '.join(told)}"] if told else [])]


PRICED = {
    "segments": "in segments, each exchange inside a layer as an instruction of its own",
    "composed": "composed, each stage as its computes and exchanges one behind the other, less what software hides",
}


def _numbers(places: Iterable[int]) -> str:
    return ", ".join(map(str, places))


def _exchanges(plan: Predicted) -> dict[str, tuple[float, float]]:
    """Seconds beside computes, and all, of what has the same words: sends and receives, forwards and backwards."""
    found: dict[str, tuple[float, float]] = {}
    for name, one in plan.exchanges.items():
        hidden_s, seconds = found.get(part_words(name), (0.0, 0.0))
        found[part_words(name)] = (hidden_s + one.hidden_s, seconds + one.seconds)
    return found


def _ahead(best: Predicted, second: Predicted) -> str:
    """By what the first is before the second: its step, else its memory, else nothing but the order of names."""
    gain, saved = second.step.value / best.step.value - 1, second.peak_bytes - best.peak_bytes
    if gain >= LEAST_GAIN:
        return f"{100 * gain:.1f} % faster"
    if saved > 0:
        slower = f", {-100 * gain:.1f} % slower" if gain <= -TIE else ""
        return f"{format_bytes(saved)} less memory{slower or ', as fast'}"
    return "as fast"


def why(shown: Mapping[int, Predicted]) -> list[tuple[str, float]]:
    """Seconds of each part that the first of these plans saves over the second."""
    first = list(shown.values())[:2]
    return reasons(*first) if len(first) > 1 else []


def _differences(shown: Mapping[int, Predicted]) -> str:
    said = [
        f"{format_seconds(abs(seconds))} {'less' if seconds > 0 else 'more'} {part_words(kind)}"
        for kind, seconds in why(shown)
    ]
    return ", ".join(said) or "nothing differs"


def tight_lines(found: Sequence[Predicted], cluster: ClusterSpec) -> list[str]:
    """That the best plan may not fit when its allocator does badly, with what leaves room for that."""
    most, has = found[0].bound_bytes, cluster.memory_bytes
    if most <= has:
        return []
    return [
        f"1 is expected to fit; at worst it takes {format_bytes(most)} of {format_bytes(has)} (fragmentation, nothing "
        "fused); a smaller --max-memory leaves room"
    ]


def part_words(kind: str) -> str:
    """A part of the step, for people."""
    return KINDS[kind].meaning if kind in KINDS else kind
