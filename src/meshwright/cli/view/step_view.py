"""How a predicted step is shown: its interval, where the time goes, what the devices hold, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from meshwright.api import Subject
from meshwright.cli.frame.output import table_of
from meshwright.evidence.log_comparison import KINDS, PartKind
from meshwright.ir.trace import Trace
from meshwright.prediction.memory_estimate import MemoryEstimate
from meshwright.reports.chart.quantity import quantity
from meshwright.specs.plan.utilisation import StepFlops, Utilisation
from meshwright.specs.units import format_bytes

NUM_HOLDERS = 4  # of a device's memory; smaller ones do not help to choose


def step_figures(trace: Trace) -> dict[str, Any]:
    """`step` (value, low, high, basis), `parts` in seconds, FLOP/s and MFU, where the trace has them."""
    found = {name: trace.metadata[name] for name in ("step", "parts") if name in trace.metadata}
    used = trace_used(trace)
    return found if used is None else {**found, **used.to_dict()}


def trace_used(trace: Trace) -> Utilisation | None:
    """How much of its devices a step uses that a trace predicts; None where it does not say."""
    step, flops = trace.metadata.get("step"), StepFlops.from_dict(trace.metadata.get("flops"))
    return None if flops is None or not isinstance(step, Mapping) else flops.used(step["value"])


def used_text(used: Utilisation) -> str:
    """FLOP/s of one device, and the MFU where somebody knows the peak: "412 TFLOP/s a device (MFU 41.7 %)"."""
    rate = f"{quantity(used.flops_per_s, 'FLOP/s')} a device"
    return rate if used.mfu is None else f"{rate} (MFU {quantity(used.mfu, 'share')})"


def step_view(trace: Trace, subject: Subject) -> list[Any]:
    """The step in one line; of a plan on GPUs also its parts, memory and assumptions."""
    step = trace.metadata.get("step")
    if not isinstance(step, Mapping):
        return []
    ends = f"{quantity(step['low'], 's')} to {quantity(step['high'], 's')}"
    line = f"step {quantity(step['value'], 's')} ({ends}, {step['basis']})"
    if subject.plan is not None and step["value"] > 0:
        line += f", {subject.plan.workload.tokens_per_step / step['value']:,.0f} tokens/s"
    if (used := trace_used(trace)) is not None:
        line += f", {used_text(used)}"
    view: list[Any] = [Text(line, style="bold")]
    if "parts" not in trace.metadata:
        return view
    view += _parts_view(trace.metadata["parts"], step["value"])
    if subject.memory is not None:
        view.append(Text(memory_line(subject.memory, subject.capacity_bytes)))
    return [*view, *(Text(f"- {line}", style="dim", overflow="fold") for line in subject.assumptions)]


def part_rows(parts: Mapping[str, float], step_s: float) -> list[dict[str, str]]:
    """What adds up to the step on the busiest device, the largest first, with its share."""
    return [
        {"where the step goes": name, "seconds": quantity(seconds, "s"), "share": f"{100 * seconds / step_s:.1f} %"}
        for name, seconds in _named(parts, are_beside=False).items()
    ]  # fmt: skip


def _parts_view(parts: Mapping[str, float], step_s: float) -> list[Any]:
    view: list[Any] = [table_of(part_rows(parts, step_s))]
    exchanges = _named(parts, are_beside=True)
    if exchanges:
        told = ", ".join(f"{name} {quantity(seconds, 's')}" for name, seconds in exchanges.items())
        view.append(Text(f"beside computes or waited for: {told}"))
    return view


def _named(parts: Mapping[str, float], are_beside: bool) -> dict[str, float]:
    """Parts by the words for people: those of other streams, or what the busiest device does itself."""
    found: dict[str, float] = {}
    for name, seconds in parts.items():
        kind = KINDS.get(name, PartKind(name, is_beside=True))
        if kind.is_beside == are_beside:  # sends and receives share one word, and their seconds add up
            found[kind.meaning] = found.get(kind.meaning, 0.0) + seconds
    return found


def memory_line(memory: MemoryEstimate, capacity_bytes: int | None) -> str:
    """Allocated, reserved and the worst case of the fullest device."""
    fullest = memory.fullest
    room = "" if capacity_bytes is None else f" of {format_bytes(capacity_bytes)}"
    host = f"; {format_bytes(fullest.host_bytes)} of its state on the host" if fullest.host_bytes else ""
    return (
        f"memory {format_bytes(fullest.allocated_bytes)} allocated + {format_bytes(fullest.context_bytes)} context{room}; "
        f"reserved {format_bytes(fullest.reserved_bytes)}, at most {format_bytes(memory.upper_bytes)}{host}"
    )


def memory_rows(memory: MemoryEstimate) -> list[dict[str, str]]:
    """The largest holders of the fullest device at its peak."""
    fullest = memory.fullest
    shown = list(fullest.holders[:NUM_HOLDERS])
    rest = sum(size for _, size in fullest.holders[NUM_HOLDERS:])
    shown += [("everything else", rest)] if rest else []
    head = f"device {fullest.device} at its peak ({fullest.moment})"
    return [
        {head: what, "bytes": format_bytes(size), "share": f"{100 * size / fullest.allocated_bytes:.0f} %"}
        for what, size in shown
    ]


def memory_figures(memory: MemoryEstimate) -> dict[str, Any]:
    """For --json, of the fullest device."""
    fullest = memory.fullest
    return {
        "device": fullest.device,
        "moment": fullest.moment,
        "allocated": fullest.allocated_bytes,
        "reserved": fullest.reserved_bytes,
        "upper": memory.upper_bytes,
        "context": fullest.context_bytes,
        "host": fullest.host_bytes,
        "holders": dict(fullest.holders),
    }
