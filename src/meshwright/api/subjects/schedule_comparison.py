"""`compare_schedules`: published, searched and own schedules with the same counts and times, and their frontier."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from meshwright import catalog
from meshwright.api.subjects.loading import is_data_file, load
from meshwright.api.subjects.simulating import simulate
from meshwright.api.subjects.subject import DEFAULT_MICROBATCHES, DEFAULT_STAGES, Subject, subject
from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.schedules.order import Orders, Schedule, devices_of_stages, read_orders
from meshwright.schedules.searched.stage_times import StageTimes, read_stage_times, span_bound_s
from meshwright.specs.error import MeshwrightError, SpecError

ALL, SEARCH = "all", "search"
NUM_CAPS = 4  # memory caps at which `search` looks for orders, the largest is the one asked for
SHAPES = {1: "search", 2: "search V"}  # chunks a device -> name of the searched schedule
Origin = Literal["published", "searched", "own"]


@dataclass(frozen=True, eq=False)
class ScheduleRow:
    """One schedule of a comparison: what it takes, or why it could not be made.

    Attributes:
        name, origin: its name; published (registered), searched here, or the user's own.
        num_chunks: stages on a device.
        generation_s: wall seconds that its order took to make, without simulation; nan where it was refused.
        subject, trace: what was simulated; None where it was refused, then ``error`` says why.
        peak: largest activations of a device, in full stages; nan where it was refused.
        fits_cap: whether `peak` keeps within the memory cap; None without a cap.
        is_on_frontier: no other that fits has a smaller span at the same peak or less, or the same span at a smaller peak.
    """

    name: str
    origin: Origin
    num_chunks: int | None
    generation_s: float = math.nan
    subject: Subject | None = None
    trace: Trace | None = None
    peak: float = math.nan
    fits_cap: bool | None = None
    is_on_frontier: bool = False
    error: MeshwrightError | None = None

    @property
    def span_s(self) -> float:
        """Makespan of an iteration in seconds; inf where it was refused."""
        return math.inf if self.trace is None else metrics.span_s(self.trace)

    @property
    def device_time_s(self) -> float:
        """Longest time of a device in seconds; inf where it was refused."""
        return math.inf if self.trace is None else metrics.device_time_s(self.trace)

    @property
    def num_copies(self) -> int:
        """Devices of one pipeline on which a stage, with its parameters, stands at most."""
        if self.trace is None:
            return 1
        return max(map(len, self.trace.program.tables.devices_of_stage), default=1)


@dataclass(frozen=True, eq=False)
class ScheduleComparison:
    """Rows by device time, refused ones last; the cap is in full-stage activations.

    ``bound_s``: by chunks a device (1, and 2 in V shape) a span that no order of F, I and W is below, in seconds.
    """

    rows: tuple[ScheduleRow, ...]
    num_devices: int
    num_microbatches: int
    memory_cap: float | None
    bound_s: dict[int, float]

    @property
    def simulated(self) -> tuple[ScheduleRow, ...]:
        """The rows that were not refused."""
        return tuple(row for row in self.rows if row.error is None)

    @property
    def frontier(self) -> tuple[ScheduleRow, ...]:
        """What no other beats in span and peak, the smallest peak first."""
        return tuple(sorted((row for row in self.rows if row.is_on_frontier), key=lambda row: row.peak))


def compare_schedules(
    names: Sequence[str | Schedule] = (ALL,),
    *,
    stages: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    times: Sequence[float] | None = None,
    comm: float | None = None,
    stage_times: StageTimes | str | os.PathLike[str] | None = None,
    memory_cap: float | None = None,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
    **passes: bool,
) -> ScheduleComparison:
    """Simulate schedules with the same counts and times, and find the frontier of span against peak.

    Args:
        names: schedules by name, ``./mine.py:wave``, torch's CSV files; ``all``: every registered one and the searched one
            at the cap (p without one); ``search``: searched ones at several caps up to the cap (2p without one).
        stages, microbatches, chunks, times, comm: as of `subject`; chunks are of schedules that have any.
        stage_times: F, I and W of every stage in seconds, or their CSV file, instead of `times`; one row a device, or one
            for every stage of schedules with several a device.
        memory_cap: activations of full stages that a device may keep.
        iterations: of the program. seed: of the search. progress: is told what is made next.
        passes: split, recompute, as of `subject`.

    Raises:
        UnknownNameError, SpecError: a name that is not there, counts, times or a cap that cannot be.
        MeshwrightError: what every schedule refuses.
    """
    read = None if stage_times is None else read_times(stage_times, times, comm)
    p = stages or (read.num_stages if read is not None and stages is None else DEFAULT_STAGES)
    m = microbatches or DEFAULT_MICROBATCHES
    for what, count in {"stages": stages, "microbatches": microbatches, "chunks": chunks}.items():
        if count is not None and count < 1:
            raise SpecError(f"{count} {what}", allowed="1 or more")
    if memory_cap is not None and not memory_cap >= 1:
        raise SpecError(
            f"a memory cap of {memory_cap:g}", allowed="at least 1, the activations of a full stage"
        )
    by_shape = _times_of_shapes(read, p, times, comm)
    counts = {"stages": p, "microbatches": m}
    rows = []
    for schedule, origin in _entries(names, p, m, chunks, memory_cap, seed, by_shape):
        progress(schedule.name)
        asked = chunks if schedule.num_chunks > 1 and origin != "searched" else None
        choices = {**counts, "chunks": asked, "times": times, "comm": comm, **passes}
        rows.append(_row(schedule, origin, choices, read, iterations))
    rows = _without_repeats(rows)
    refused = next((row.error for row in rows if row.error is not None), None)
    if refused is not None and all(row.error is not None for row in rows):
        raise refused  # what all of them refuse is the user's, not a schedule's
    bounds = {v: span_bound_s(each, m, v) for v, each in by_shape.items()}
    return ScheduleComparison(_ranked(rows, memory_cap), p, m, memory_cap, bounds)


def with_stage_times(made: Subject, times: StageTimes) -> Subject:
    """A bare schedule's subject, priced by the times of its stages. Raises SpecError where their number is another."""
    from meshwright.costs.fixed_costs import FixedCosts
    from meshwright.costs.step.stage_costs import StageCosts, path_times, with_stage_works

    if made.counts is None:
        raise SpecError(f"{made.label} with stage times", allowed="a schedule by name, or ./mine.py:FUNCTION")
    of_path = path_times(times, [hop.device for hop in made.program.tables.paths[0]])
    program = with_stage_works(made.program, made.counts["chunks"])
    messages = FixedCosts({}, times.communication_s)
    return replace(made, program=program, computes=StageCosts.from_times(of_path), messages=messages)


def read_times(
    given: StageTimes | str | os.PathLike[str], times: Sequence[float] | None, comm: float | None
) -> StageTimes:
    """Stage times or their file, with the latency of a hop. Raises SpecError where other times were given, too."""
    if times is not None:
        raise SpecError("both times and stage times were given", allowed="one of them")
    if isinstance(given, StageTimes):
        return given if comm is None else replace(given, communication_s=comm)
    return read_stage_times(given, comm or 0.0)


def _times_of_shapes(
    read: StageTimes | None, p: int, times: Sequence[float] | None, comm: float | None
) -> dict[int, StageTimes]:
    """Times of the stages that are searched, by chunks a device; a shape whose times are not known is left out."""
    forward_s, input_s, weight_s = times or (1.0, 1.0, 1.0)
    each = read or StageTimes.uniform(p, forward_s, input_s, weight_s, comm or 0.0)
    if each.num_stages == 2 * p:
        return {2: each}
    return {1: each, 2: each.folded()} if each.num_stages == p else {}


def _entries(
    names: Sequence[str | Schedule], p: int, m: int, chunks: int | None, cap: float | None, seed: int,
    by_shape: dict[int, StageTimes],
) -> Iterator[tuple[Schedule, Origin]]:  # fmt: skip
    """What is compared: every name is found before the first of them is made."""
    registered = catalog.names("schedules")
    plain = [name for name in names if name not in (ALL, SEARCH)]
    given = [found_schedule(name) for name in plain]
    own = [schedule for name, schedule in zip(plain, given, strict=True) if name not in registered]
    published = [catalog.find_schedule(name) for name in registered if ALL in names or name in plain]
    yield from ((schedule, "published") for schedule in published)
    yield from ((schedule, "own") for schedule in own)
    caps = _caps(p, m, cap) if SEARCH in names else [cap or float(p)] if ALL in names else []
    for num_chunks, times in by_shape.items():
        if num_chunks == 1 or chunks != 1:
            yield from ((_searched(times, each, num_chunks, seed), "searched") for each in caps)


def _caps(p: int, m: int, cap: float | None) -> list[float]:
    """Caps up to the one asked for; above m all are the same."""
    most = min(float(m), cap or 2.0 * p)
    steps = {math.ceil(most * k / NUM_CAPS - 1e-9) for k in range(1, NUM_CAPS)}
    return sorted({*(float(step) for step in steps if 1 <= step < most), most})


def found_schedule(name: str | Schedule) -> Schedule:
    """A schedule by name, from the user's file, or the orders of a CSV file. Raises as `catalog.find_schedule` does."""
    if not isinstance(name, str) or not is_data_file(name):
        return catalog.find_schedule(name)
    lists = load(name)
    if not isinstance(lists, list):
        raise SpecError(
            f"{name} holds no orders", allowed="a schedule's name, ./mine.py:FUNCTION, or FILE.csv"
        )
    orders = read_orders(lists, name)
    num_stages = 1 + max((compute.stage for row in orders for compute in row), default=0)
    num_chunks = -(-num_stages // max(1, len(orders)))
    return _fixed(os.path.basename(name), orders, num_chunks)


def _searched(times: StageTimes, cap: float, num_chunks: int, seed: int) -> Schedule:
    """A search as a schedule: it is made when its orders are asked for."""

    def search(num_devices: int, num_microbatches: int) -> Orders:
        from meshwright.schedules.searched.zero_bubble_search import search_orders

        return search_orders(times, num_microbatches, cap, num_chunks=num_chunks, seed=seed)

    name = f"{SHAPES[num_chunks]} (cap {cap:g})"
    return Schedule(name, search, num_chunks, splits_backward=True, is_exact=True)


@cache
def _load_kernels() -> None:
    """Compile or load what a search runs on, which is not time that the search takes."""
    from meshwright.schedules.searched.zero_bubble_search import search_orders

    for num_chunks in SHAPES:
        times = StageTimes.uniform(2 * num_chunks, 1.0, 1.0, 0.5, 0.3)
        search_orders(times, 3, 1.0, num_chunks=num_chunks, effort=0.01)


def _fixed(name: str, orders: Orders, num_chunks: int) -> Schedule:
    """Orders that are there already, as a schedule."""
    copies = max(map(len, devices_of_stages(orders).values()), default=1)
    return Schedule(
        name, lambda num_devices, num_microbatches: orders, num_chunks, is_exact=True, num_copies=copies
    )


def _row(
    schedule: Schedule, origin: Origin, choices: dict[str, Any], read: StageTimes | None, iterations: int | None
) -> ScheduleRow:  # fmt: skip
    """Make one schedule's order and simulate it; what it refuses is said in its row."""
    asked = schedule.num_chunks if choices["chunks"] is None else choices["chunks"]
    if origin == "searched":
        _load_kernels()
    try:
        began = time.perf_counter()
        orders = schedule.orders(choices["stages"], choices["microbatches"], asked)
        generation_s = time.perf_counter() - began
        made = subject(replace(schedule, function=lambda num_devices, num_microbatches: orders), **choices)
        if read is not None:
            made = with_stage_times(made, read)
        trace = simulate(made, iterations=iterations)
        peak = max(metrics.peak_alive(trace), default=0.0)
    except MeshwrightError as error:
        return ScheduleRow(schedule.name, origin, asked, error=error)
    return ScheduleRow(schedule.name, origin, asked, generation_s, made, trace, peak)


def _without_repeats(rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
    """Of searches that found the same under several caps only that with the smallest cap."""
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for row in rows:
        key = (row.num_chunks, *map(_rounded, (row.span_s, row.device_time_s, row.peak)))
        if row.origin != "searched" or row.error is not None or key not in seen:
            kept.append(row)
        if row.origin == "searched":
            seen.add(key)
    return kept


def _ranked(rows: Sequence[ScheduleRow], cap: float | None) -> tuple[ScheduleRow, ...]:
    """Rows by device time with their verdicts."""
    most = math.inf if cap is None else cap * (1 + 1e-9)
    keys = {id(row): (_rounded(row.span_s), _rounded(row.peak)) for row in rows}
    fitting = {keys[id(row)] for row in rows if row.error is None and row.peak <= most}
    judged = []
    for row in rows:
        if row.error is None:
            span, peak = keys[id(row)]
            beaten = any(other != (span, peak) and other[0] <= span and other[1] <= peak for other in fitting)
            fits = row.peak <= most
            row = replace(row, fits_cap=None if cap is None else fits, is_on_frontier=fits and not beaten)
        judged.append(row)
    order = {id(row): (_rounded(row.device_time_s), _rounded(row.span_s), row.name) for row in judged}
    return tuple(sorted(judged, key=lambda row: order[id(row)]))


def _rounded(value: float) -> float:
    """Without what sums in another order change."""
    return float(f"{value:.10g}")
