"""One rank's file as spans: what ran when on which stream, named, in the steps that ProfilerStep# annotations say.

A GPU's kernel has the name of what launched it (by correlation), or of the annotation around it on its stream. In a file
without kernels the host computes: its outermost operators are the spans.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.interop.profiler import naming
from meshwright.interop.profiler.chrome_file import ChromeEvent, ChromeFile
from meshwright.interop.profiler.host_stack import Frame, frames_of
from meshwright.interop.profiler.naming import Naming
from meshwright.ir.table import Kind
from meshwright.specs.error import SpecError

KERNEL, COPIES, ON_DEVICE = "kernel", ("gpu_memcpy", "gpu_memset"), "gpu_user_annotation"
STEP_NAME = re.compile(r"ProfilerStep#(\d+)$")


class RankSpan(NamedTuple):
    """Something that ran. `work`: of a compute, by its kernel's name. `instance`: the annotation it belongs to, -1: none.
    `group`: the process group of a collective, as far as the file says it."""

    name: Naming
    start_s: float
    end_s: float
    stream: str
    step: int
    work: str = "other"
    instance: int = -1
    group: str = ""

    @property
    def is_compute(self) -> bool:
        """Does it compute?"""
        return self.name.kind == Kind.COMPUTE

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, eq=False)
class RankSpans:
    """Spans of a rank by start, seconds of the file, their `step` a place in ``steps``, the numbers of the profiler's steps.

    ``is_device``: did kernels run, or the host compute? ``has_steps``: did annotations say where steps begin?
    """

    file: ChromeFile
    rank: int
    spans: Sequence[RankSpan]
    steps: Sequence[int]
    is_device: bool
    has_steps: bool


def spans_of(file: ChromeFile, rank: int) -> RankSpans:
    """The spans of a file, of this rank. Raises SpecError where nothing ran in it."""
    frames, launched, launches = frames_of(file)
    marks = sorted(
        (event.start_s, event.end_s, int(found[1]))
        for event in file.events
        if event.category == "user_annotation" and (found := STEP_NAME.match(event.name[:40]))
    )
    kernels = [event for event in file.events if event.category == KERNEL or event.category in COPIES]
    first = min((event.start_s for event in file.events), default=0.0)
    steps = [(number, start) for start, _, number in marks] or [(0, first)]
    end = marks[-1][1] if marks else max((event.end_s for event in file.events), default=0.0)
    steps_at = _Steps(steps, end, bool(marks))
    made = (
        _device_spans(file, kernels, launched, launches, steps_at)
        if kernels
        else rows_as_one(_host_spans(frames, steps_at))
    )
    spans = sorted((span for span in made if span.step >= 0), key=lambda span: (span.start_s, span.end_s))
    if not spans:
        raise SpecError(
            f"nothing ran in {file.path}: no kernel, and no operator of the host inside a step",
            allowed="a trace with operators or kernels",
            next="profile with ProfilerActivity.CPU, and CUDA where the job has GPUs",
        )
    return RankSpans(file, rank, spans, [number for number, _ in steps], bool(kernels), bool(marks))


def rows_as_one(spans: Iterable[RankSpan]) -> Iterator[RankSpan]:
    """One span of every row of our executor in a step, from its posting to the end of what waited for it; all others as they
    are, but for what process groups say by themselves of exchanges that are in such rows."""
    others: list[RankSpan] = []
    rows: dict[tuple[int, int], RankSpan] = {}
    for span in spans:
        if span.name.place < 0:
            others.append(span)
            continue
        key = span.step, span.name.place
        first = rows.get(key, span)
        ends = min(first.start_s, span.start_s), max(first.end_s, span.end_s)
        rows[key] = first._replace(start_s=ends[0], end_s=ends[1])
    yield from rows.values()
    yield from (span for span in others if not rows or not span.name.kind.is_exchange)


class _Steps(NamedTuple):
    """Which step a moment of the host is in: its place in the list, -1 outside of all."""

    steps: Sequence[tuple[int, float]]
    end_s: float
    is_marked: bool

    def at(self, seconds: float) -> int:
        """The step of a moment."""
        if not self.is_marked:
            return 0
        if seconds > self.end_s:
            return -1
        return bisect_right(self.steps, seconds, key=lambda step: step[1]) - 1


def _device_spans(
    file: ChromeFile,
    kernels: Sequence[ChromeEvent],
    launched: dict[int, Frame | None],
    launches: dict[int, ChromeEvent],
    steps: _Steps,
) -> Iterator[RankSpan]:
    around = _OnDevice(file)
    for event in kernels:
        correlation: Any = event.args.get("correlation")
        known = correlation if type(correlation) is int and correlation in launches else None
        frame = None if known is None else launched[known]
        begun = event.start_s if known is None else launches[known].start_s
        said = frame.naming if frame is not None else naming.UNKNOWN
        if said is naming.UNKNOWN:
            said = around.naming(event) or said
        name, group = _device_name(event, frame, said), str(event.args.get("Process Group Ranks", ""))
        instance = id(frame.said) if frame is not None and name is frame.said and name.is_instruction else -1
        yield RankSpan(
            name, event.start_s, event.end_s, f"stream/{event.thread[1]}", steps.at(begun),
            naming.work_of(event.name), instance, group,
        )  # fmt: skip


def _device_name(event: ChromeEvent, frame: Frame | None, said: Naming) -> Naming:
    if event.category in COPIES:
        return naming.copy_of(event.name)
    if not naming.is_exchange_kernel(event.name):
        return said if said.kind == Kind.COMPUTE else naming.UNKNOWN
    if (
        frame is not None
        and frame.said is not None
        and frame.said.is_instruction
        and frame.said.kind.is_exchange
    ):
        return frame.said
    if frame is not None and frame.sharding:
        return Naming(frame.sharding, Kind.COLLECTIVE)
    told = event.args.get("Collective name")
    found = naming.exchange(told) if isinstance(told, str) else None
    found = found or (frame.exchange if frame is not None else None) or naming.exchange(event.name)
    return found or Naming(naming.OTHER, Kind.COLLECTIVE, source=naming.BY_NOBODY)


class _OnDevice:
    """Annotations as they lie on streams, for kernels whose launch is not in the file."""

    def __init__(self, file: ChromeFile) -> None:
        found = defaultdict(list)
        for event in file.events:
            said = naming.annotation(event.name) if event.category == ON_DEVICE else None
            if said is not None:
                found[event.thread].append((event.start_s, event.end_s, said))
        self._by_stream = {thread: sorted(rows, key=lambda row: row[:2]) for thread, rows in found.items()}

    def naming(self, event: ChromeEvent) -> Naming | None:
        """The annotation that began last before a kernel, where the kernel is in it."""
        rows = self._by_stream.get(event.thread, [])
        place = bisect_right(rows, event.start_s, key=lambda row: row[0]) - 1
        return rows[place][2] if place >= 0 and event.end_s <= rows[place][1] else None


def _host_spans(frames: Sequence[Frame], steps: _Steps) -> Iterator[RankSpan]:
    for number, frame in enumerate(frames):
        event = frame.event
        step = steps.at(event.start_s)
        told = naming.group_call(event.name)
        if told is not None and not frame.is_in_unit:
            yield RankSpan(told, event.start_s, event.end_s, f"thread/{event.thread[1]}", step)
        elif frame.is_unit and told is None and not event.name.startswith("c10d::"):
            said = frame.naming
            instance = number if said.is_instruction else -1
            yield RankSpan(
                said, event.start_s, event.end_s, f"thread/{event.thread[1]}", step, "other", instance
            )
