"""A profiled job as a `Trace`: a list a rank, a row an instruction; what comes one after the other of one name is one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.interop.profiler.held_memory import held_memory
from meshwright.interop.profiler.naming import Naming
from meshwright.interop.profiler.profiled_job import ProfiledRun
from meshwright.interop.profiler.rank_spans import RankSpan, RankSpans
from meshwright.ir.program import Axis, Columns, Program, Tables
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.trace import PROFILED, MemoryCurve, Trace
from meshwright.specs.error import SpecError

# What exchanges move is not in the file: one value stands for all, so that such a program is none that runs.
MOVED = ValueKind("moved", index="none", microbatch=False)
COMPUTE_STREAM = "compute"  # on a rank the stream that computes longest


class NamedRow(NamedTuple):
    """A row with its times in one step."""

    name: Naming
    stream: str
    start_s: float
    end_s: float
    instance: int


def trace_of(job: ProfiledRun) -> Trace:
    """The steps whose ranks all do the same rows as in most steps, an iteration each.

    Raises SpecError where the ranks have no step in common.
    """
    by_step = [_by_step(rank) for rank in job.ranks]
    common = sorted(set.intersection(*(set(own) for own in by_step)))
    if not common:
        raise SpecError(
            f"the {len(job.ranks)} ranks ran nothing in one and the same step",
            allowed="files of the same ProfilerStep# on all ranks",
            next="profile all ranks with one schedule",
        )
    steps = [
        [_rows(own[step], offset) for own, offset in zip(by_step, job.offsets_s, strict=True)]
        for step in common
    ]
    shapes = [tuple(tuple((*row.name[:4], row.stream) for row in rows) for rows in ranks) for ranks in steps]
    usual, _ = Counter(shapes).most_common(1)[0]
    kept = [ranks for ranks, shape in zip(steps, shapes, strict=True) if shape == usual]
    notes = job.notes
    if len(kept) < len(steps):
        notes = (*notes, f"{len(kept)} of {len(steps)} steps are drawn, which have the same rows")
    first = kept[0]
    program = _program(first, [rank.rank for rank in job.ranks])
    times = [
        np.array([[getattr(row, key) for rows in ranks for row in rows] for ranks in kept])
        for key in ("start_s", "end_s")
    ]
    origin_s = float(times[0].min())
    start, end = (each - origin_s for each in times)
    label = f"profile of {len(job.ranks)} rank{'s' if len(job.ranks) > 1 else ''}"
    metadata = {
        "label": label,
        "assumptions": list(notes),
        "profile": {**job.to_dict(), "notes": list(notes)},
    }
    memory = _memory(job, origin_s, float(start[-1].min()), float(end[-1].max()))
    return Trace(program, start.copy(), start, end, PROFILED, memory, metadata)


def _memory(job: ProfiledRun, origin_s: float, start_s: float, end_s: float) -> tuple[MemoryCurve, ...]:
    """What allocators held between two moments of the trace, its last step; where the profiler was asked for it."""
    found = []
    for place, (rank, offset_s) in enumerate(zip(job.ranks, job.offsets_s, strict=True)):
        later_s = offset_s - origin_s  # from the file's clock to the trace's
        for tier, held in held_memory(rank.file).items():
            times_s, num_bytes = held.within(start_s - later_s, end_s - later_s)
            found.append(MemoryCurve(place, tier, times_s + later_s, num_bytes))
    return tuple(found)


def _by_step(rank: RankSpans) -> dict[int, list[RankSpan]]:
    """Spans by the number of their step."""
    found: dict[int, list[RankSpan]] = {}
    for span in rank.spans:
        found.setdefault(rank.steps[span.step], []).append(span)
    return found


def _rows(spans: Sequence[RankSpan], offset_s: float) -> list[NamedRow]:
    """Rows of a rank in a step, by start; of one stream and name, one behind the other, are one."""
    seconds = Counter[str]()
    for span in spans:
        if span.is_compute:
            seconds[span.stream] += span.seconds  # type: ignore[assignment]
    main = seconds.most_common(1)[0][0] if seconds else ""
    open_rows: dict[str, NamedRow] = {}
    found: list[NamedRow] = []
    for span in spans:
        stream = COMPUTE_STREAM if span.stream == main else span.stream
        row, last = _row(span, stream, offset_s), open_rows.get(stream)
        if last is not None and (last.name[:4], last.instance) == (row.name[:4], row.instance):
            open_rows[stream] = last._replace(end_s=max(last.end_s, row.end_s))
            continue
        if last is not None:
            found.append(last)
        open_rows[stream] = row
    return sorted([*found, *open_rows.values()], key=lambda row: (row.start_s, row.stream))


def _row(span: RankSpan, stream: str, offset_s: float) -> NamedRow:
    return NamedRow(span.name, stream, span.start_s + offset_s, span.end_s + offset_s, span.instance)


def _program(ranks: Sequence[Sequence[NamedRow]], numbers: Sequence[int]) -> Program:
    rows = [row for own in ranks for row in own]
    effects = list(dict.fromkeys(_effect(row.name) for row in rows))
    streams = list(dict.fromkeys([COMPUTE_STREAM, *(row.stream for row in rows)]))
    num_microbatches = 1 + max(row.name.microbatch for row in rows)
    once = {row.name.name for row in rows if row.name.microbatch < 0}
    tables = Tables(
        effects=tuple(effects),
        value_kinds=(MOVED,),
        exchanges=(Exchange(("rank",)),),
        streams=tuple(streams),
        microbatches=tuple(
            Microbatch(1, 1.0 / max(1, num_microbatches)) for _ in range(max(1, num_microbatches))
        ),
        duties=tuple(Duty(name, "stage") for name in sorted(once)),
    )
    columns = Columns.of(
        len(rows),
        effect=[effects.index(_effect(row.name)) for row in rows],
        stage=[max(0, row.name.stage) for row in rows],
        microbatch=[max(0, row.name.microbatch) for row in rows],
        stream=[streams.index(row.stream) for row in rows],
        exchange=[0 if row.name.kind.is_exchange else -1 for row in rows],
    )
    offsets = np.cumsum([0, *(len(own) for own in ranks)])
    return Program((Axis("rank", len(numbers)),), tables, columns, offsets)


def _effect(name: Naming) -> Effect:
    """What a row is called; an exchange has to move something."""
    moved = (Pattern(MOVED.name, index="none"),) if name.kind.is_exchange else ()
    is_read = name.kind != Kind.RECEIVE
    return Effect(name.kind, name.name, moved if is_read else (), () if is_read else moved)
