"""Searched orders: exact times, memory, the published table, the lower bound, and the solver's proof on small cases."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from benchmarks.schedule_search import GOAL, large_times, random_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import examples

from meshwright.ir.judge.metrics import device_time_s, peak_alive, span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Kind, Work
from meshwright.ir.timing.replay import replay_program
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, Orders, registered
from meshwright.schedules.searched.pipeline import (
    KINDS,
    codes_of,
    evaluate_codes,
    pipeline_of,
    times_of,
)
from meshwright.schedules.searched.stage_times import StageTimes, span_bound_s
from meshwright.schedules.searched.zero_bubble_search import search_orders
from meshwright.specs.error import ProgramError, ScheduleError, SpecError

LITTLE = 0.02  # effort with which a search takes a fraction of a second


def simulated(times: StageTimes, orders: Orders, num_chunks: int = 1) -> Trace:
    """The program of the orders on virtual time: each row its own stage's seconds, messages as latency."""
    program = Transfers()(program_of_orders(orders))
    works = {(n, s): Work(n, share=1 / num_chunks) for n in KINDS for s in range(times.num_stages)}
    program = with_works(program, works)
    verify(program)
    columns = {"F": times.forward_s, "I": times.input_s, "W": times.weight_s}
    names = [program.tables.effects[e].name for e in program.columns.effect.tolist()]
    stages = program.columns.stage.tolist()
    computes = (program.kinds == Kind.COMPUTE).tolist()
    seconds = [columns[n][s] if c else 0.0 for n, s, c in zip(names, stages, computes, strict=True)]
    latency_s = [0.0 if c else times.communication_s for c in computes]
    return Trace(program, *replay_program(program, np.array(seconds), np.array(latency_s)), "max-plus")


def check_within(peaks: Sequence[float], cap: float | Sequence[float]) -> None:
    caps = [cap] * len(peaks) if isinstance(cap, float | int) else list(cap)
    assert all(peak <= limit for peak, limit in zip(peaks, caps, strict=True)), (peaks, caps)


@pytest.mark.parametrize("seed", range(24))
def test_simulation_finds_the_same_times_and_peaks(seed: int) -> None:
    """The kernel's span, device time and peaks are those of the program that a search's order becomes."""
    setting = random_setting(seed)
    orders = search_orders(
        setting.times, setting.num_microbatches, setting.cap, num_chunks=setting.num_chunks, effort=LITTLE
    )
    ours = times_of(setting.times, orders, setting.num_chunks)
    trace = simulated(setting.times, orders, setting.num_chunks)
    assert span_s(trace) == pytest.approx(ours.span_s, rel=1e-12)
    assert device_time_s(trace) == pytest.approx(ours.device_time_s, rel=1e-12)
    assert peak_alive(trace) == pytest.approx(ours.peaks, rel=1e-12)
    check_within(ours.peaks, setting.cap)


# p, m, (F, I, W), cap, chunks, span and device time: rows with unequal costs of the published generators' orders.
Row = tuple[int, int, tuple[float, float, float], float | list[float], int, float, float | None]
UNEQUAL: list[Row] = [
    (4, 8, (1, 1.5, 0.5), 4, 1, 30, None),
    (4, 8, (1, 1.5, 0.5), 8, 1, 28, 28),
    (4, 8, (1, 1.5, 0.5), 4, 2, 26.75, 26.75),
    (4, 8, (1, 1.5, 0.5), 3, 2, 31, None),
    (4, 8, (1, 1.5, 0.5), 2, 2, 41.75, None),
    (8, 24, (1, 1.2, 0.9), 8, 1, 83.5, None),
    (8, 24, (1, 1.2, 0.9), 16, 1, 81.4, 76.3),
    (8, 24, (1, 1.2, 0.9), 8, 2, 78.6, 76.35),
    (8, 24, (1, 1.2, 0.9), 5, 2, 85.45, None),
    (8, 24, (1, 1.2, 0.9), [3.5, 4, 4, 4, 4, 4, 4, 4], 2, 100.6, None),
    (8, 24, (1, 1.2, 0.9), 6, 2, 91.6, None),
]
EQUAL: list[Row] = [
    (4, 8, (1, 1, 1), 4, 1, 27, None),
    (4, 8, (1, 1, 1), 8, 1, 27, 24),
    (4, 8, (1, 1, 1), 4, 2, 25.5, 24),
    (4, 8, (1, 1, 1), 3, 2, 26.5, None),
    (4, 8, (1, 1, 1), 2, 2, 29.5, None),
    (4, 12, (1, 1, 1), 4, 1, 39, None),
    (4, 12, (1, 1, 1), 8, 1, 39, 36),
    (4, 12, (1, 1, 1), 4, 2, 37.5, 36),
    (4, 12, (1, 1, 1), 3, 2, 38.5, None),
    (4, 12, (1, 1, 1), 2, 2, 41.5, None),
    (8, 24, (1, 1, 1), 8, 1, 79, None),
    (8, 24, (1, 1, 1), 16, 1, 79, 72),
    (8, 24, (1, 1, 1), 4, 2, 85.5, None),
    (8, 24, (1, 1, 1), 5, 2, 80.5, None),
    (8, 24, (1, 1, 1), 6, 2, 88.5, None),
    (8, 24, (1, 1, 1), 8, 2, 75.5, 72),
]


@pytest.mark.slow
@pytest.mark.parametrize(("p", "m", "costs", "cap", "chunks", "span", "device_time"), UNEQUAL + EQUAL)
def test_published_spans_are_met_or_beaten_at_their_peaks(
    p: int,
    m: int,
    costs: tuple[float, float, float],
    cap: float | list[float],
    chunks: int,
    span: float,
    device_time: float | None,
) -> None:
    times = StageTimes.uniform(p, *costs)
    times = times.folded() if chunks == 2 else times
    ours = times_of(times, search_orders(times, m, cap, num_chunks=chunks), chunks)
    check_within(ours.peaks, cap)
    assert ours.span_s <= span + 1e-9
    if device_time is not None:
        assert ours.device_time_s <= device_time + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", (3, 5, 8, 17, 23, 33, 35, 45))
def test_within_three_percent_of_the_solver(seed: int) -> None:
    """A sample of the settings of `benchmarks/schedule_search.py`, which runs 200 with 30 s each."""
    pytest.importorskip("ortools", reason="the solver is the extra `solver`")
    from order_solver import solve_orders

    setting = random_setting(seed)
    given = (setting.times, setting.num_microbatches, setting.cap)
    orders = search_orders(*given, num_chunks=setting.num_chunks)
    ours = times_of(setting.times, orders, setting.num_chunks)
    solution = solve_orders(*given, num_chunks=setting.num_chunks, time_limit_s=20, start_from=orders)
    assert solution.bound_s - 1e-9 <= ours.span_s <= GOAL * solution.span_s


@pytest.mark.slow
@pytest.mark.parametrize("num_chunks", (1, 2))
@pytest.mark.parametrize(("spread", "communication_s"), [(0.0, 0.0), (0.1, 0.1), (0.5, 0.1), (0.5, 0.5)])
def test_within_three_percent_of_the_lower_bound(
    num_chunks: int, spread: float, communication_s: float
) -> None:
    """16 devices, 64 microbatches, a cap of 32."""
    times = large_times(16, spread, communication_s, seed=0)
    times = times.folded() if num_chunks == 2 else times
    ours = times_of(times, search_orders(times, 64, 32, num_chunks=num_chunks), num_chunks)
    check_within(ours.peaks, 32)
    assert ours.span_s <= GOAL * span_bound_s(times, 64, num_chunks)


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.sampled_from((0.005, 0.02)))
def test_every_order_is_legal_within_its_cap_and_above_the_bound(seed: int, effort: float) -> None:
    setting = random_setting(seed)
    m, v = setting.num_microbatches, setting.num_chunks
    orders = search_orders(setting.times, m, setting.cap, num_chunks=v, effort=effort)
    ours = times_of(setting.times, orders, v)
    check_within(ours.peaks, setting.cap)
    assert ours.span_s >= span_bound_s(setting.times, m, v) - 1e-9
    assert sum(map(len, orders)) == 3 * setting.times.num_stages * m


@pytest.mark.parametrize("num_chunks", (1, 2))
def test_is_deterministic_and_never_worse_than_the_published_order(num_chunks: int) -> None:
    times = large_times(4, 0.5, 0.2, seed=1)
    times = times.folded() if num_chunks == 2 else times
    first = search_orders(times, 6, 4, num_chunks=num_chunks, effort=LITTLE)
    assert first == search_orders(times, 6, 4, num_chunks=num_chunks, effort=LITTLE)
    if num_chunks == 1:
        fixed = times_of(times, registered()["zb_h1"].orders(4, 6))
        assert times_of(times, first).span_s <= fixed.span_s


def test_one_device_and_one_microbatch() -> None:
    orders = search_orders(StageTimes((1.0,), (2.0,), (3.0,)), 1, 1)
    assert orders == [[Compute("F", 0, 0), Compute("I", 0, 0), Compute("W", 0, 0)]]
    folded = search_orders(StageTimes((1.0,), (2.0,), (3.0,)).folded(), 2, 1, num_chunks=2)
    assert times_of(StageTimes((1.0,), (2.0,), (3.0,)).folded(), folded, 2).span_s == 12.0


def test_stages_that_take_no_time_and_caps_of_each_device() -> None:
    times = StageTimes((0.0, 1.0, 0.0), (0.0, 1.0, 2.0), (0.0, 0.0, 1.0), 0.3)
    ours = times_of(times, search_orders(times, 5, [3, 2, 1], effort=LITTLE))
    check_within(ours.peaks, [3, 2, 1])
    assert ours.span_s >= span_bound_s(times, 5)


def test_more_memory_is_never_slower() -> None:
    times = large_times(4, 0.5, 0.3, seed=2)
    spans = [times_of(times, search_orders(times, 8, cap, effort=0.2)).span_s for cap in (1, 2, 4, 8)]
    assert spans == sorted(spans, reverse=True)


@pytest.mark.parametrize(
    ("num_microbatches", "cap", "num_chunks", "effort", "message"),
    [
        (0, 2, 1, 1.0, "0 microbatches"),
        (4, 0.5, 1, 1.0, "memory caps"),
        (4, [2, 2], 1, 1.0, "memory caps 2, 2 for 3 devices"),
        (4, float("nan"), 1, 1.0, "memory caps nan"),
        (4, 2, 2, 1.0, "2 chunks a device and 3 stages"),
        (4, 2, 3, 1.0, "3 chunks a device"),
        (4, 2, 1, 0.0, "effort 0.0"),
        (10**7, 2, 1, 1.0, "stages x microbatches of a searched order: 30,000,000"),
    ],
)
def test_refuses_what_cannot_be_searched(
    num_microbatches: int, cap: float | list[float], num_chunks: int, effort: float, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        search_orders(
            StageTimes.uniform(3, 1, 1, 1), num_microbatches, cap, num_chunks=num_chunks, effort=effort
        )


def test_times_of_refuses_other_orders_and_deadlocks() -> None:
    times = StageTimes.uniform(2, 1, 1, 1)
    legal = registered()["zb_h1"].orders(2, 2)
    swapped = [legal[1], legal[0]]
    unsplit = registered()["1f1b"].orders(2, 2)
    for orders in (swapped, unsplit, legal[:1], [legal[0], legal[1][:-1]], [legal[0], legal[1][::-1]]):
        with pytest.raises(ScheduleError, match="not of the searched form"):
            times_of(times, orders)
    waiting = [[Compute(k, 0, 0) for k in "IFW"], [Compute(k, 1, 0) for k in "FIW"]]
    with pytest.raises(ScheduleError, match="wait for each other"):
        times_of(times, waiting)


def test_renaming_microbatches_makes_nothing_later() -> None:
    """An order whose two microbatches change places on one device of two, and that in turn."""
    times = StageTimes((1.0, 0.5), (0.5, 1.0), (0.5, 0.5), 0.1)
    pipeline = pipeline_of(times, 2, 2)
    texts = (["F0", "F1", "I1", "I0", "W1", "W0"], ["F0", "F1", "I0", "W0", "I1", "W1"])
    orders = [[Compute(t[0], d, int(t[1])) for t in row] for d, row in enumerate(texts)]
    with pytest.raises(ScheduleError, match="counted up"):
        codes_of(pipeline, orders)
    renamed = evaluate_codes(pipeline, codes_of(pipeline, orders, in_turn=False))
    assert renamed is not None and renamed.span_s <= span_s(simulated(times, orders))
    orders[0][0] = orders[0][1]
    with pytest.raises(ScheduleError, match="counted up"):
        codes_of(pipeline, orders, in_turn=False)


def test_kernel_equals_the_longest_path_of_random_orders() -> None:
    """Random legal orders of random times against a relaxation that knows only the edges."""
    draw, num_legal = random.Random(0), 0
    for _ in range(60):
        p, m = draw.randint(1, 4), draw.randint(1, 4)
        columns = [tuple(draw.uniform(0.1, 2) for _ in range(p)) for _ in range(3)]
        times = StageTimes(columns[0], columns[1], columns[2], draw.uniform(0, 1))
        orders: Orders = [[] for _ in range(p)]
        for row, stage in zip(orders, range(p), strict=True):
            held = dict.fromkeys(KINDS, 0)
            while len(row) < 3 * m:
                kind = draw.choice(
                    [k for k, before in (("F", m), ("I", held["F"]), ("W", held["I"])) if held[k] < before]
                )
                row.append(Compute(kind, stage, held[kind]))
                held[kind] += 1
        exact = evaluate_codes(pipeline_of(times, m, m), codes_of(pipeline_of(times, m, m), orders))
        if exact is None:
            with pytest.raises(ProgramError):
                verify(Transfers()(program_of_orders(orders)))
            continue
        num_legal += 1
        assert exact.span_s == pytest.approx(longest_path_s(times, orders), rel=1e-12)
    assert 20 < num_legal < 60


def longest_path_s(times: StageTimes, orders: Orders) -> float:
    """Relax all edges until nothing changes (Bellman-Ford)."""
    seconds = dict(zip(KINDS, (times.forward_s, times.input_s, times.weight_s), strict=True))
    comm = times.communication_s
    end: dict[Compute, float] = {}
    changed = True
    while changed:
        changed = False
        for row in orders:
            for before, c in zip([None, *row], row):
                waits = [0.0 if before is None else end.get(before, 0.0)]
                if c.name == "F":
                    waits.append(end.get(c._replace(stage=c.stage - 1), -comm) + comm)
                elif c.name == "I":
                    waits += [
                        end.get(c._replace(stage=c.stage + 1), -comm) + comm,
                        end.get(c._replace(name="F"), 0.0),
                    ]
                value = max(waits) + seconds[c.name][c.stage]
                if value > end.get(c, 0.0) + 1e-15:
                    end[c], changed = value, True
    return max(end.values())
