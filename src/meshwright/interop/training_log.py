"""Reads the seconds of a step out of training logs: Megatron-LM, torchtitan, our own JSON and traces.

Warm-up rule: of logs that give a time for every step, the first tenth is left out, at least 1 and at most 10 steps;
where a line is the mean of several steps, the first line is left out. With fewer than three values none is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.ir.trace import Trace
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

WARM_UP_SHARE, MOST_WARM_UP, LEAST_VALUES = 0.1, 10, 3
MEGABYTE, GIBIBYTE = 1 << 20, 1 << 30  # Megatron's "MB" counts 1024 x 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"
_MEGATRON_STEP = re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}")
_MEGATRON_BATCH = re.compile(rf"global batch size:\s*{_NUMBER}")
_MEGATRON_FLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\):\s*{_NUMBER}")
_MEGATRON_MEMORY = re.compile(rf"memory \(MB\) \|.*?max allocated:\s*{_NUMBER}")
_MEGATRON_RESERVED = re.compile(rf"memory \(MB\) \|.*?max reserved:\s*{_NUMBER}")
_TITAN_LINE = re.compile(
    rf"(?<!validate )step:\s*(\d+)\s+loss:\s*\S+.*?memory:\s*{_NUMBER}GiB.*?tps:\s*{_NUMBER}"
)
_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d+)")
FORMATS = (
    "Megatron-LM (`elapsed time per iteration (ms): ...`), torchtitan (`step: ... memory: ... tps: ...`), "
    "meshwright's JSON (step_s) or a trace (.npz)"
)


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """What a log says about the speed of a run.

    Attributes:
        step_s: float64 (N,), seconds of a step after the warm-up, in the log's order.
        source: "megatron", "torchtitan", "meshwright json" or "trace".
        num_warm_up: values that were left out before.
        peak_bytes: the largest peak that the log prints, or None.
        memory_kind: what `peak_bytes` counts: "allocated" or "reserved".
        global_batch: sequences of a step as the log says, or None.
        notes: what was assumed.
    """

    step_s: np.ndarray
    source: str
    num_warm_up: int = 0
    peak_bytes: int | None = None
    memory_kind: str = "allocated"
    global_batch: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def median_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.step_s))

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile of a step's seconds."""
        low, high = np.quantile(self.step_s, (0.25, 0.75))
        return float(low), float(high)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units."""
        return {
            "source": self.source,
            "median_s": self.median_s,
            "quartiles_s": list(self.quartiles_s),
            "num_steps": len(self.step_s),
            "num_warm_up": self.num_warm_up,
            "peak_bytes": self.peak_bytes,
            "memory_kind": self.memory_kind if self.peak_bytes is not None else None,
            "notes": list(self.notes),
        }


def read_run(path: str | Path, *, tokens_per_device: float | None = None) -> MeasuredRun:
    """The run that a log describes; its format is found by its content.

    Args:
        path: a log, JSON or trace.
        tokens_per_device: tokens of a step divided by the devices. Where a log prints tokens per second and no
            time of a step, they make the seconds; None: the log's clock does.

    Raises SpecError where the file cannot be read, or nothing in it is recognised.
    """
    file = Path(path)
    if file.suffix == ".npz":
        return _from_trace(Trace.load(file))
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}", allowed=FORMATS) from None
    text = _COLOUR.sub("", text)
    readers: tuple[Callable[[str, float | None], MeasuredRun | None], ...] = (
        _megatron,
        _torchtitan,
        _own_json,
    )
    for reader in readers:
        run = reader(text, tokens_per_device)
        if run is not None:
            return run
    raise SpecError(
        f"nothing in {file} says how long a step took",
        allowed=FORMATS,
        next="give the log of a run of several steps",
    )


def _megatron(text: str, _: float | None) -> MeasuredRun | None:
    """Every line is the mean of --log-interval iterations."""
    found = [_value(match) / 1e3 for match in _MEGATRON_STEP.finditer(text)]
    if not found:
        return None
    batches = [_value(match) for match in _MEGATRON_BATCH.finditer(text)]
    notes = []
    if batches and len(batches) == len(found) and min(batches) < max(batches):
        largest = max(batches)
        notes.append(
            f"the global batch grows to {largest:.0f} in this log: only steps of that size are counted"
        )
        found = [seconds for seconds, batch in zip(found, batches, strict=True) if batch == largest]
    flops = [_value(match) for match in _MEGATRON_FLOPS.finditer(text)]
    if flops:
        notes.append(f"the log's own throughput is {np.median(flops):.1f} TFLOP/s/GPU in the median")
    peaks = [_value(match) * MEGABYTE for match in _MEGATRON_MEMORY.finditer(text)]
    reserved = [_value(match) * MEGABYTE for match in _MEGATRON_RESERVED.finditer(text)]
    peak = max(peaks or reserved, default=None)
    kept, left_out = _steady(found)
    return MeasuredRun(
        kept, "megatron", left_out, None if peak is None else round(peak), "allocated" if peaks else "reserved",
        round(max(batches)) if batches else None, tuple(notes),
    )  # fmt: skip


def _torchtitan(text: str, tokens_per_device: float | None) -> MeasuredRun | None:
    """One line for log_freq steps, of one rank: tokens per second and device, and a clock before it."""
    lines, seen = [], set()
    for line in text.splitlines():
        match = _TITAN_LINE.search(line)
        if match is not None and match[1] not in seen:  # every rank may print the same step
            seen.add(match[1])
            lines.append((int(match[1]), _number(match[2]), _number(match[3]), _clock(line)))
    if not lines:
        return None
    peak = round(max(line[1] for line in lines) * GIBIBYTE)
    if tokens_per_device is not None:
        # tps is rounded to a whole number; below about 10 it says nothing about a time.
        kept, left_out = _steady([tokens_per_device / line[2] for line in lines if line[2] > 0])
        note = "seconds are tokens of a device in a step over the log's tps"
    else:
        clocked = [(step, at) for step, _, _, at in lines if at is not None]
        kept = np.array([
            (later - sooner) / (after - before)
            for (before, sooner), (after, later) in zip(clocked, clocked[1:], strict=False)
            if after > before and later > sooner
        ])  # fmt: skip
        left_out, note = 1, "seconds are the differences of the log's clock"
    if not len(kept):
        raise SpecError(
            "this torchtitan log has too few lines with a clock for the seconds of a step",
            allowed="two lines with a date, or a plan beside the log (its tokens make seconds of tps)",
        )
    return MeasuredRun(kept, "torchtitan", left_out, peak, "reserved", None, (note,))


def _own_json(text: str, _: float | None) -> MeasuredRun | None:
    """An object with "step_s": one number, or a list of seconds."""
    try:
        data = json_of(text)
    except ValueError:
        return None
    found = data.get("step_s") if isinstance(data, dict) else None
    values = [found] if isinstance(found, int | float) else found
    if not isinstance(values, list) or not values or not all(_is_seconds(value) for value in values):
        return None
    kept, left_out = _steady([float(value) for value in values])
    peak = data.get("peak_bytes")
    return MeasuredRun(
        kept, "meshwright json", left_out, round(peak) if isinstance(peak, int | float) else None
    )


def _from_trace(trace: Trace) -> MeasuredRun:
    """Distances between the last ends of successive iterations; of one iteration its span."""
    ends = trace.end_s.max(axis=1)
    steps = np.diff(ends) if trace.num_iterations > 1 else ends - trace.start_s.min(axis=1)
    kept, left_out = _steady(steps.tolist())
    return MeasuredRun(kept, "trace", left_out)


def _steady(values: list[float]) -> tuple[np.ndarray, int]:
    """The values after the warm-up, and how many were left out."""
    if len(values) < LEAST_VALUES:
        return np.array(values), 0
    left_out = min(MOST_WARM_UP, max(1, math.ceil(WARM_UP_SHARE * len(values))))
    return np.array(values[left_out:]), left_out


def _is_seconds(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def _value(match: re.Match[str]) -> float:
    return _number(match[1])


def _number(text: str) -> float:
    """A number of a log. Raises SpecError for one that nobody measures."""
    found = float(text.replace(",", ""))
    if not math.isfinite(found):
        raise SpecError(f"the log says {text[:12]!r}...", allowed="numbers that a float holds")
    return found


def _clock(line: str) -> float | None:
    """Seconds of the first date in a line."""
    match = _CLOCK.search(line)
    if match is None:
        return None
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp() + float(f"0.{match[2]}")
