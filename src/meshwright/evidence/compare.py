"""Compares a predicted with a measured trace of one program: step, device time, bubble, peaks, and every name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.sent_bytes import both_sent
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace, labels_of
from meshwright.reports.page.comparison import LABELS, ComparisonRow, comparison_html, comparison_text
from meshwright.specs.error import ProgramError
from meshwright.specs.plan.utilisation import StepFlops
from meshwright.specs.units import format_seconds

WARM_UP = (
    1  # iterations left out where three or more were run: the first one meets cold caches and new memory
)
LEAST_FOR_WARM_UP = 3
_NUMBER = re.compile(r"\.\d+")  # of a block, in the name of a segment


class Quantity(ComparisonRow):
    """One number predicted and measured, and how far the prediction is off."""

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None where one of them is missing or nothing was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1.0

    def row(self) -> dict[str, Any]:
        """As `reports.comparison` takes it."""
        found = {
            "name": self.name,
            "predicted": self.predicted,
            "measured": self.measured,
            "unit": self.unit,
            "basis": self.basis,
        }
        return found if self.low is None else {**found, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class NameRow:
    """All instructions of one name: median seconds, and how many an iteration has."""

    name: str
    seconds: Quantity
    num_predicted: int
    num_measured: int


@dataclass(frozen=True)
class Comparison:
    """Where the prediction was right and where not. `str()` is a table, `rows()` feeds reports.

    Attributes:
        step: seconds of an iteration in the long run (the median distance between the ends of iterations).
        span: makespan of one iteration; device_time: DESIGN's, of the device that takes longest.
        bubble: idle share of the compute streams, median over iterations.
        peaks: peak bytes of every device's memory tier "device", by number of the measured list.
        sent: bytes of a device in an iteration to experts and back, by exchange, where ranks counted them.
        used: model FLOP/s of one device, and the MFU where the peak is known; of traces that say what a step is.
        names: by instruction name, computes first.
        segments: of programs whose stages are segments, computes by name and by what the segments compute.
        is_same_program: False where different programs were compared on request.
        labels: what the two traces are; fields `predicted` are of the first of them, `measured` of the second.
    """

    step: Quantity
    span: Quantity
    device_time: Quantity
    bubble: Quantity
    peaks: tuple[Quantity, ...]
    names: tuple[NameRow, ...]
    is_same_program: bool = True
    segments: tuple[NameRow, ...] = ()
    used: tuple[Quantity, ...] = ()
    sent: tuple[Quantity, ...] = ()
    labels: tuple[str, ...] = LABELS

    def quantities(self) -> tuple[Quantity, ...]:
        """All numbers in the order of the table."""
        whole: tuple[Quantity, ...] = (self.step, self.span, self.device_time, self.bubble)
        whole = (*whole, *self.used, *self.peaks, *self.sent)
        return (*whole, *(row.seconds for row in (*self.names, *self.segments)))

    def rows(self) -> list[dict[str, Any]]:
        """One mapping a quantity, as `reports.comparison` takes them."""
        return [quantity.row() for quantity in self.quantities()]

    @property
    def beyond_interval(self) -> str:
        """Where the step was measured outside of its predicted interval: that, and which instructions differ most."""
        step = self.step
        if (
            self.labels != LABELS
            or step.measured is None
            or step.low is None
            or step.high is None
            or step.low <= step.measured <= step.high
        ):
            return ""
        rows = [row.seconds for row in self.names if row.seconds.predicted and row.seconds.measured]
        most = max(rows, key=lambda row: abs((row.measured or 0.0) - (row.predicted or 0.0)), default=None)
        named = (
            "" if most is None or not most.predicted or most.measured is None
            else f"; {most.name} differs most, {most.measured / most.predicted:.2f}x of what was predicted"
        )  # fmt: skip
        return (
            f"the step took {format_seconds(step.measured)}, outside of the predicted {format_seconds(step.low)} to "
            f"{format_seconds(step.high)}{named}: other work on the machine, or rates of another day (calibrate, run again)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units, for --json."""
        counts = {
            row.name: {"predicted": row.num_predicted, "measured": row.num_measured}
            for row in (*self.names, *self.segments)
        }
        told = {"is_same_program": self.is_same_program, "labels": list(self.labels)}
        return {**told, "rows": self.rows(), "counts": counts}

    def __str__(self) -> str:
        return comparison_text(self.rows(), labels=self.labels)

    def _repr_html_(self) -> str:
        return comparison_html(self.rows(), labels=self.labels)


def compare(predicted: Trace, measured: Trace, *, allow_different: bool = False) -> Comparison:
    """Predicted beside measured; two traces of a kind are told apart by their numbers.

    A trace whose data-parallel axis is collapsed and one with a list for every device are the same program. Where there
    are three iterations or more the first is left out.

    Args:
        allow_different: compare traces of different programs all the same; then only what both have is comparable.

    Raises:
        ProgramError: the traces are of different programs.
    """
    labels = labels_of(predicted, measured)
    is_same = is_same_program(predicted.program, measured.program)
    if not is_same and not allow_different:
        raise ProgramError(
            f"the traces are of different programs: {labels[0]} {predicted.digest} ({predicted.program!r}), "
            f"{labels[1]} {measured.digest} ({measured.program!r})",
            allowed="two traces of one program",
            next="simulate the plan that was measured, or ask for different programs to be compared",
        )
    both = steady(predicted), steady(measured)
    return Comparison(
        _step(predicted.metadata, *both),
        _median_quantity("span", metrics.span_s, *both),
        _median_quantity("device time", metrics.device_time_s, *both),
        _median_quantity("bubble", metrics.bubble, *both, unit="share"),
        _peaks(predicted, measured),
        _names(*both),
        is_same,
        _segments(*both),
        _used(*both),
        tuple(
            Quantity(f"sent by {name}, a device", said, counted, "B")
            for name, said, counted in both_sent(predicted, measured)
        ),
        labels,
    )


def is_same_program(one: Program, other: Program) -> bool:
    """Do two programs say the same, once every device has a list of its own?"""
    if one.digest() == other.digest():
        return True
    if one.num_lists == other.num_lists or one.num_devices != other.num_devices:
        return False
    return expanded(one).digest() == expanded(other).digest()


def expanded(program: Program) -> Program:
    """With a list for every device."""
    for axis in program.axes:
        program = program.expand(axis.name)
    return program


def steady(trace: Trace) -> Trace:
    """The trace without its first iteration, where enough others are left."""
    if trace.num_iterations < LEAST_FOR_WARM_UP:
        return trace
    times = {name: getattr(trace, name)[WARM_UP:] for name in ("posted_s", "start_s", "end_s")}
    return replace(trace, **times)


def step_s(trace: Trace) -> float:
    """Seconds of an iteration in the long run: the median distance between the last ends of successive iterations.

    The period of `metrics`, as a median, so that one disturbed iteration of a measurement does not move it; with one
    iteration it is the span.
    """
    if trace.num_iterations < 2:
        return metrics.span_s(trace)
    return float(np.median(np.diff(trace.end_s.max(axis=1))))


def _step(said: Mapping[str, Any], predicted: Trace, measured: Trace) -> Quantity:
    """The step, with the interval and basis that the predicted trace carries."""
    interval = said.get("step") or {}
    return Quantity(
        "step",
        step_s(predicted),
        step_s(measured),
        low=interval.get("low"),
        high=interval.get("high"),
        basis=str(interval.get("basis", "")),
    )


def _used(predicted: Trace, measured: Trace) -> tuple[Quantity, ...]:
    """Model FLOP/s of a device, and the MFU; a trace that says nothing of its FLOPs has none."""
    known = [StepFlops.from_dict(trace.metadata.get("flops")) for trace in (predicted, measured)]
    if not any(known):
        return ()
    both = [
        None if flops is None else flops.used(step_s(trace))
        for flops, trace in zip(known, (predicted, measured))
    ]
    rates = [None if used is None else used.flops_per_s for used in both]
    shares = [None if used is None else used.mfu for used in both]
    found = [Quantity("model FLOP/s, a device", rates[0], rates[1], "FLOP/s")]
    return (*found, *([Quantity("MFU", shares[0], shares[1], "share")] if any(shares) else []))


def _median_quantity(name: str, metric: Any, predicted: Trace, measured: Trace, unit: str = "s") -> Quantity:
    """A metric of one iteration as its median over the iterations of each trace."""
    values = [
        float(np.median([metric(trace, iteration) for iteration in range(trace.num_iterations)]))
        for trace in (predicted, measured)
    ]
    return Quantity(name, values[0], values[1], unit)


def _peaks(predicted: Trace, measured: Trace) -> tuple[Quantity, ...]:
    """Peak of every measured device; a collapsed list of the prediction stands for all that it describes."""
    if not predicted.memory and not measured.memory:
        return ()
    found = []
    for device in range(measured.program.num_lists):
        same = _list_at(predicted.program, measured.program.coordinates(device))
        ours = metrics.peak_bytes(predicted, same) if predicted.memory and same is not None else None
        theirs = metrics.peak_bytes(measured, device) if measured.memory else None
        found.append(Quantity(f"peak memory, device {device}", ours, theirs, "B"))
    return tuple(found)


def _list_at(program: Program, coordinates: Mapping[str, int]) -> int | None:
    """The list of a program at these coordinates; None where it has none there."""
    number = 0
    for axis in program.list_axes:
        if coordinates.get(axis.name, 0) >= axis.size:
            return None
        number = number * axis.size + coordinates.get(axis.name, 0)
    return number


def _names(predicted: Trace, measured: Trace) -> tuple[NameRow, ...]:
    """Median seconds and counts by name, in the order of kinds."""
    seconds = [metrics.seconds_by_name(trace) for trace in (predicted, measured)]
    counts = [_counts(trace.program) for trace in (predicted, measured)]
    kinds = {e.name: int(e.kind) for trace in (measured, predicted) for e in trace.program.tables.effects}
    names = sorted(dict.fromkeys([*seconds[0], *seconds[1]]), key=kinds.__getitem__)
    return tuple(
        NameRow(
            name,
            Quantity(name, seconds[0].get(name), seconds[1].get(name)),
            counts[0].get(name, 0),
            counts[1].get(name, 0),
        )
        for name in names
    )


def _segments(predicted: Trace, measured: Trace) -> tuple[NameRow, ...]:
    """Median seconds and counts of computes by name and by what their segment computes, wherever in the model it is."""
    if not (predicted.program.tables.stage_names and measured.program.tables.stage_names):
        return ()
    ours, theirs = _by_segment(predicted), _by_segment(measured)

    def median(found: Mapping[str, NDArray[np.float64]], name: str) -> float | None:
        return float(np.median(found[name])) if name in found else None

    def count(found: Mapping[str, NDArray[np.float64]], name: str) -> int:
        return found[name].shape[1] if name in found else 0

    return tuple(
        NameRow(
            name,
            Quantity(name, median(ours, name), median(theirs, name)),
            count(ours, name),
            count(theirs, name),
        )
        for name in dict.fromkeys([*ours, *theirs])
    )


def _by_segment(trace: Trace) -> dict[str, NDArray[np.float64]]:
    """Seconds [iterations, rows] of the computes of every kind of segment."""
    program, length = trace.program, trace.end_s - trace.start_s
    t, c = program.tables, program.columns
    kinds = np.array([_NUMBER.sub("", name.partition(":")[2]) for name in t.stage_names])
    names = np.array([effect.name for effect in t.effects])
    rows = np.flatnonzero(
        (program.kinds == Kind.COMPUTE) & (c.stage < len(kinds)) & (names != "STEP")[c.effect]
    )
    keys = np.char.add(np.char.add(names[c.effect[rows]], " of "), kinds[c.stage[rows]])
    return {str(key): length[:, rows[keys == key]] for key in dict.fromkeys(keys.tolist())}


def _counts(program: Program) -> dict[str, int]:
    """Instructions of every name on all devices together."""
    copies = program.num_devices // max(1, program.num_lists)
    found: dict[str, int] = {}
    numbers = np.bincount(program.columns.effect, minlength=len(program.tables.effects))
    for effect, number in zip(program.tables.effects, numbers.tolist(), strict=True):
        if number:
            found[effect.name] = found.get(effect.name, 0) + number * copies
    return found
