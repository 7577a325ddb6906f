"""A predicted plan as a document: its step, timeline and memory, what the step is made of, what binds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.api.plans.plan_text import plan_figures, plan_words
from meshwright.api.subjects.subject import level_lines
from meshwright.evidence.log_comparison import KINDS, PartKind
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.planner.advice.hardware_change import LEAST_GAIN, hardware_changes
from meshwright.prediction.memory_estimate import MemoryEstimate
from meshwright.prediction.predicted import Predicted
from meshwright.prediction.step_trait import KIND_OF, MEMORY
from meshwright.reports.chart.quantity import quantity
from meshwright.simulator.ledger import ended, memory_curves
from meshwright.workbench.document.document import (
    BindingItem,
    BindsSection,
    CompositionPart,
    CompositionSection,
    Document,
    Section,
    TableColumn,
    TableSection,
    TimelineSection,
)
from meshwright.workbench.document.drawn.drawing import MOST_ROWS, drawn_trace
from meshwright.workbench.document.topology import topology_section

PARTS = ("timeline", "memory", "composition", "holders", "topology", "binds")  # that may be asked for
MOST_HOLDERS = 6  # of a device's memory, by name
LEDGER_NOTE = (
    "Memory: what the program's instructions hold, from instruction to instruction. What the devices hold in all, with what "
    "the allocator loses, is in the facts."
)


def plan_document(found: Predicted, *, parts: Sequence[str] = PARTS, most_rows: int = MOST_ROWS) -> Document:
    """The document of a plan; `parts` as in PARTS, `most_rows` as of `drawn_trace`. Raises as `Predicted` does."""
    plan, cluster = found.plan, found.cluster
    trace = found.trace()
    builders: Mapping[str, Sequence[Section]] = {
        "timeline": [_timeline(found, trace, "memory" in parts, most_rows)] if "timeline" in parts else [],
        "composition": composition_of(found.parts) if "composition" in parts else [],
        "holders": _holders(found.memory) if "holders" in parts else [],
        "topology": topology_section(found.made, trace) if "topology" in parts else [],
        "binds": _binds(found) if "binds" in parts else [],
    }
    return Document(
        "plan",
        f"{plan.model.name} on {plan.cluster}",
        f"{plan.workload.global_batch:,} sequences of {plan.workload.sequence_length:,} tokens a step, on {plan_words(plan)}",
        plan_figures(found, cluster, cluster.memory_bytes),
        [*_misfit(found), *level_lines(found), *found.assumptions],
        [section for sections in builders.values() for section in sections],
    )  # fmt: skip


def _misfit(found: Predicted) -> list[str]:
    """That it does not fit, first of all."""
    rejected = found.rejected()
    return [] if rejected is None else [f"does not fit: {rejected.reason}"]


def _timeline(found: Predicted, trace: Trace, has_memory: bool, most_rows: int) -> TimelineSection:
    curves = _curves(found, trace) if has_memory else ()
    drawn = drawn_trace(
        trace, "predicted", wiring=found.made.wiring, memory=curves, cap_bytes=found.cluster.memory_bytes,
        most_rows=most_rows, stages=found.made.pipeline_stages,
    )  # fmt: skip
    return TimelineSection(
        "timeline", "Timeline", [drawn], LEDGER_NOTE if curves and not trace.memory else ""
    )


def _curves(found: Predicted, trace: Trace) -> tuple[MemoryCurve, ...]:
    """The trace's own, or, as on GPUs, those of the program's values at its times."""
    if trace.memory:
        return trace.memory
    wiring, prices = found.made.wiring, found.prices
    latency_s = found.factor * prices.latency_s[prices.cost_of_row]
    return memory_curves(wiring, trace.posted_s, ended(wiring, trace.end_s, latency_s))


def composition_of(parts: Mapping[str, float]) -> list[Section]:
    """What the busiest device's step is made of; nothing where computes are priced as a whole."""
    seconds: dict[tuple[str, str], float] = {}
    for name, value in parts.items():
        kind = KINDS.get(name, PartKind(name, is_beside=True))
        if not kind.is_beside:
            key = kind.meaning, KIND_OF.get(name, MEMORY)
            seconds[key] = seconds.get(key, 0.0) + value
    if not seconds:
        return []
    rows = [CompositionPart(name, value, kind) for (name, kind), value in seconds.items()]
    note = "Seconds of one step of the busiest device; what runs beside computes counts where computes wait for it."
    total_s = sum(seconds.values())
    return [CompositionSection("composition", "Where the step goes", rows, total_s, note)]


def _holders(memory: MemoryEstimate | None) -> list[Section]:
    """What every device of the pipeline holds at its fullest moment."""
    if memory is None:
        return []
    names = list(
        dict.fromkeys(name for device in memory.devices for name, _ in device.holders[:MOST_HOLDERS])
    )
    columns = [TableColumn("device", "device", False), TableColumn("all", "in all", True)]
    heads = [*columns, *(TableColumn(name, name, True) for name in names)]
    rows = [
        {"device": f"pp{device.device}", "all": quantity(device.allocated_bytes, "B"),
         **{name: quantity(float(size), "B") for name, size in device.holders if name in names}}
        for device in memory.devices
    ]  # fmt: skip
    whole = [{column.key: row.get(column.key, "-") for column in heads} for row in rows]
    return [TableSection("holders", "Memory at the fullest moment", heads, whole)]


def _binds(found: Predicted) -> list[Section]:
    """How much faster the same step is with one number of the cluster changed."""
    if not found.cluster.machine.has_data_sheet:
        return []
    changes = hardware_changes(found.plan, found.cluster, schedule=found.schedule)
    items = [
        BindingItem(each.name, each.gain, f"{each.sentence}; kept: {each.keeps}")
        for each in changes
        if each.gain >= LEAST_GAIN
    ]
    note = "The step of the same plan, priced again with one number of the cluster changed; nothing is searched again."
    return [BindsSection("binds", "What would help", items, note)] if items else []
