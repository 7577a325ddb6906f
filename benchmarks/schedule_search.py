"""Searched schedules: the heuristic beside CP-SAT on random settings, a lower bound at 16 stages, and large pipelines.

    python benchmarks/schedule_search.py                             # 200 settings, 30 s of the solver each
    python benchmarks/schedule_search.py --settings 40 --solver-s 10 # a sample

The first part needs OR-Tools (`pip install -e .[solver]`); without it only the second one runs. The solver gets no hint from
the heuristic. Exit status 3 where a span is more than 3 % above the solver's best, or above the bound.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass

from order_solver import solve_orders

from meshwright.schedules.searched.pipeline import times_of
from meshwright.schedules.searched.stage_times import StageTimes, span_bound_s
from meshwright.schedules.searched.zero_bubble_search import search_orders
from meshwright.specs.error import ExecutionError, SpecError

GOAL = 1.03  # of the heuristic's span to the best that the solver finds, and to the lower bound


@dataclass(frozen=True)
class Setting:
    """One random problem: unequal stages, a message's time, a cap for all devices or one each."""

    times: StageTimes
    num_microbatches: int
    cap: float | list[float]
    num_chunks: int

    def __str__(self) -> str:
        p = self.times.num_stages // self.num_chunks
        cap = f"{self.cap:g}" if isinstance(self.cap, float) else ",".join(f"{c:g}" for c in self.cap)
        shape = "V" if self.num_chunks == 2 else " "
        return f"p={p} m={self.num_microbatches:<2} {shape} c={self.times.communication_s:<4g} cap {cap}"


def random_setting(seed: int, most_devices: int = 6, most_microbatches: int = 12) -> Setting:
    """Times in tenths of a second, so that the solver's whole numbers are exact; a third are V shapes."""
    draw = random.Random(seed)
    num_devices, m = draw.randint(2, most_devices), draw.randint(2, most_microbatches)
    num_chunks = draw.choice((1, 1, 2))
    num_stages = num_devices * num_chunks

    def seconds(low: int, high: int) -> tuple[float, ...]:
        return tuple(draw.randint(low, high) / 10 for _ in range(num_stages))

    communication_s = draw.choice((0, draw.randint(1, 10))) / 10
    times = StageTimes(seconds(5, 20), seconds(5, 20), seconds(3, 20), communication_s)
    middle = draw.uniform(1, 1.5 * num_devices)
    caps = [max(1.0, float(round(middle + draw.uniform(-1, 1)))) for _ in range(num_devices)]
    return Setting(times, m, caps if draw.random() < 0.5 else caps[0], num_chunks)


def beside_solver(num_settings: int, solver_s: float, num_workers: int) -> bool:
    """One line a setting: both spans and what the solver proved; then how many are within the goal. Are all of them?"""
    ratios, gaps, num_proven, num_unsolved, seconds = [], [], 0, 0, []
    for seed in range(num_settings):
        setting = random_setting(seed)
        given = (setting.times, setting.num_microbatches, setting.cap)
        began = time.perf_counter()
        ours = times_of(
            setting.times, search_orders(*given, num_chunks=setting.num_chunks), setting.num_chunks
        )
        seconds.append(time.perf_counter() - began)
        try:
            solution = solve_orders(
                *given, num_chunks=setting.num_chunks, time_limit_s=solver_s, num_workers=num_workers
            )
        except ExecutionError:
            num_unsolved += 1
            print(
                f"{seed:>3} {str(setting):<42} heuristic {ours.span_s:8.2f}   solver found nothing",
                flush=True,
            )
            continue
        ratio = ours.span_s / solution.span_s
        ratios.append(ratio)
        gaps.append(ours.span_s / solution.bound_s)
        num_proven += solution.is_optimal
        print(
            f"{seed:>3} {str(setting):<42} heuristic {ours.span_s:8.2f}   solver {solution.span_s:8.2f} "
            f"{'proven' if solution.is_optimal else f'bound {solution.bound_s:.2f}':<13} ratio {ratio:.4f}",
            flush=True,
        )
    if not ratios:
        return True
    within = sum(ratio <= GOAL for ratio in ratios)
    equal = sum(ratio <= 1 + 1e-9 for ratio in ratios)
    print(
        f"\n{num_settings} settings, {solver_s:g} s of the solver each: heuristic within {GOAL - 1:.0%} in {within} of "
        f"{len(ratios)}, as good or better in {equal}, worst {max(ratios):.4f}, best {min(ratios):.4f}; the solver proved "
        f"{num_proven} ({num_proven / num_settings:.0%}), found nothing in {num_unsolved}; the heuristic is within "
        f"{GOAL - 1:.0%} of the solver's lower bound in {sum(gap <= GOAL for gap in gaps)}; it took "
        f"{statistics.median(seconds):.2f} s (median), at most {max(seconds):.2f} s"
    )
    return within == len(ratios)


def large_times(num_devices: int, spread: float, communication_s: float, seed: int) -> StageTimes:
    """Stages whose F, I and W differ by up to `spread` of a second around 1 second."""
    draw = random.Random(seed)
    columns = [tuple(draw.uniform(1 - spread, 1 + spread) for _ in range(num_devices)) for _ in range(3)]
    return StageTimes(columns[0], columns[1], columns[2], communication_s)


def beside_bound(cases: list[tuple[int, int, float]], num_seeds: int) -> bool:
    """Spans over the lower bound (largest work of a device + fill), and seconds to find them. Are all within the goal?"""
    worst = 1.0
    print(
        f"\n{'p':>3} {'m':>4} {'cap':>4} {'shape':<5} {'spread':>6} {'c':>4} {'span/bound':>22} {'search s':>9}"
    )
    for num_devices, m, cap in cases:
        for num_chunks in (1, 2):
            for spread, communication_s in ((0.0, 0.0), (0.1, 0.1), (0.5, 0.1), (0.5, 0.5)):
                ratios, began = [], time.perf_counter()
                for seed in range(num_seeds):
                    times = large_times(num_devices, spread, communication_s, seed)
                    times = times.folded() if num_chunks == 2 else times
                    orders = search_orders(times, m, cap, num_chunks=num_chunks)
                    found = times_of(times, orders, num_chunks)
                    assert max(found.peaks) <= cap
                    ratios.append(found.span_s / span_bound_s(times, m, num_chunks))
                took_s = (time.perf_counter() - began) / num_seeds
                worst = max(worst, *ratios)
                shape = "V" if num_chunks == 2 else "one"
                listed = f"{min(ratios):.4f} to {max(ratios):.4f}"
                print(
                    f"{num_devices:>3} {m:>4} {cap:>4g} {shape:<5} {spread:>6g} {communication_s:>4g} {listed:>22} "
                    f"{took_s:>9.2f}",
                    flush=True,
                )
    return worst <= GOAL


def main() -> None:
    """Read the arguments, run both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", type=int, default=200, help="random settings beside the solver")
    parser.add_argument("--solver-s", type=float, default=30.0, help="seconds of the solver for each")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="threads of the solver: its portfolio of strategies",
    )
    parser.add_argument("--seeds", type=int, default=3, help="random pipelines a line of the second table")
    given = parser.parse_args()
    search_orders(
        StageTimes.uniform(2, 1.0, 1.0, 0.5, 0.3), 3, 1
    )  # compiles the kernels before anything is timed
    try:
        holds = beside_solver(given.settings, given.solver_s, given.workers)
    except SpecError as error:
        print(f"not beside the solver: {error}")
        holds = True
    holds &= beside_bound([(16, 64, 32.0), (64, 512, 128.0)], given.seeds)
    sys.exit(0 if holds else 3)


if __name__ == "__main__":
    main()
