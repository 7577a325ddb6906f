"""Every schedule at 2 to 64 devices: its bubble and peak, and how long it takes to make and to prove; claims beside values.

Claims (the project's own targets): at 64 devices and 512 microbatches every fixed schedule is generated, lowered and
verified in under a second, every searched one in under ten. The searched ones also beside the public zero-bubble generator
(sail-sg/zero-bubble-pipeline-parallelism): 15.4 s of its heuristic for 8 devices and 64 microbatches. That figure was
measured earlier (one run, one core, its V schedule, equal costs, messages free, peak of 2p chunks, result not validated); it
is not measured in this run. The solver is a proof for small cases and stands apart.

Seconds are of this process's CPU, the median of three, so that what else runs on the machine counts less.

Run: python benchmarks/schedules.py [--devices 2 4 8] [--solver-s 10]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meshwright import catalog
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.lowering import Transfers, program_of_orders
from meshwright.lowering.order import with_shares
from meshwright.schedules.order import Orders
from meshwright.schedules.searched.pipeline import times_of
from meshwright.schedules.searched.stage_times import StageTimes, span_bound_s
from meshwright.schedules.searched.zero_bubble_search import search_orders

PUBLIC_GENERATOR_S = 15.4  # for PUBLIC_COUNTS; measured earlier, see above
PUBLIC_COUNTS = (8, 64)
LARGE = (64, 512)
FIXED_BOUND_S, SEARCHED_BOUND_S = 1.0, 10.0
NUM_REPEATS = 3
MICROBATCHES_A_DEVICE = 4  # of the table
SPREADS = (0.0, 0.2)  # of stage times, where published orders are as good as any, and where they are not
UNEVEN_STEPS = (3, 5, 7)  # of F, I and W: which device is slow differs
SHAPES = {1: "search", 2: "search V"}


@dataclass(frozen=True)
class Generator:
    """What makes the order of one schedule."""

    name: str
    num_chunks: int
    make: Callable[[], Orders]
    is_searched: bool = False


def times(num_devices: int, num_chunks: int, spread: float = 0.0) -> StageTimes:
    """F, I and W of about one second a full stage, up to `spread` more or less by device; messages take `spread` / 2."""
    seconds = [
        tuple(1 + spread * ((step * d) % 11 - 5) / 5 for d in range(num_devices)) for step in UNEVEN_STEPS
    ]
    each = StageTimes(seconds[0], seconds[1], seconds[2], spread / 2)
    return each.folded() if num_chunks == 2 else each


def made(orders: Orders, num_microbatches: int) -> Program:
    """The program of an order, with sends and receives."""
    return Transfers()(program_of_orders(orders, microbatches=num_microbatches))


def cpu_s(function: Callable[[], object], repeats: int = NUM_REPEATS) -> float:
    """Median CPU seconds of a call."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def fixed(num_devices: int, num_microbatches: int) -> list[Generator]:
    """Every registered schedule."""
    found = [catalog.find_schedule(name) for name in catalog.names("schedules")]
    return [
        Generator(each.name, each.num_chunks, partial(each.orders, num_devices, num_microbatches))
        for each in found
    ]


def searched(num_devices: int, num_microbatches: int, spread: float = 0.0) -> list[Generator]:
    """The search of one stage a device and of two in V shape; it keeps to p activations."""
    cap = float(num_devices)
    return [
        Generator(
            name,
            chunks,
            partial(
                search_orders, times(num_devices, chunks, spread), num_microbatches, cap, num_chunks=chunks
            ),
            is_searched=True,
        )
        for chunks, name in SHAPES.items()
    ]


def simulated(orders: Orders, num_microbatches: int, num_chunks: int) -> tuple[float, float, float]:
    """Span in seconds, bubble and peak activations of an order, through the simulator."""
    from meshwright.costs.fixed_costs import FixedCosts
    from meshwright.ir.timing.wiring import wire
    from meshwright.simulator.pricing import price
    from meshwright.simulator.simulate import simulate_priced

    wiring = wire(with_shares(made(orders, num_microbatches), num_chunks))
    costs = FixedCosts.from_times(1.0, 1.0, 1.0)
    trace = simulate_priced(wiring, price(wiring, costs, costs, None))
    return metrics.span_s(trace), metrics.bubble(trace), max(metrics.peak_alive(trace))


def table(device_counts: list[int]) -> None:
    """Bubble and peak of every schedule at every size, with the seconds to make and prove it."""
    print(
        f"{'p':>3} {'m':>4}  {'schedule':<17} {'span':>8} {'bubble':>7} {'peak':>6} {'generate':>9} {'prove':>8}"
    )
    for p in device_counts:
        m = MICROBATCHES_A_DEVICE * p
        for each in fixed(p, m) + searched(p, m):
            began = time.process_time()
            orders = each.make()
            generated = time.process_time()
            verify(made(orders, m))
            proven = time.process_time()
            span, bubble, peak = simulated(orders, m, each.num_chunks)
            print(
                f"{p:>3} {m:>4}  {each.name:<17} {span:>8.6g} {bubble:>7.1%} {peak:>6.4g} {generated - began:>7.3f} s "
                f"{proven - generated:>6.3f} s",
                flush=True,
            )


def claim(what: str, value: float, bound: float) -> bool:
    """One line: claim, our value, ratio to the bound (above 1 is better than claimed); whether it holds."""
    print(f"{what:<58} {value:>7.2f} s   bound {bound:>5.1f} s   ratio {bound / value:.2f}", flush=True)
    return value <= bound


def claims() -> int:
    """Large schedules made and proven, and the searched ones beside the public generator; how many claims fail."""
    p, m = LARGE
    num_failed = 0
    print(f"\n{p} devices, {m} microbatches: generated, lowered, verified")
    for each in fixed(p, m):
        taken = cpu_s(lambda one=each: verify(made(one.make(), m)))  # type: ignore[misc]
        num_failed += not claim(each.name, taken, FIXED_BOUND_S)
    for spread in SPREADS:
        for each in searched(p, m, spread):
            taken = cpu_s(lambda one=each: verify(made(one.make(), m)))  # type: ignore[misc]
            num_failed += not claim(_told(each, p, m, spread), taken, SEARCHED_BOUND_S)
    p, m = PUBLIC_COUNTS
    print(
        f"\n{p} devices, {m} microbatches: beside {PUBLIC_GENERATOR_S} s of the public generator, measured earlier"
    )
    for spread in SPREADS:
        for each in searched(p, m, spread):
            num_failed += not claim(_told(each, p, m, spread), cpu_s(each.make), PUBLIC_GENERATOR_S)
    return num_failed


def _told(each: Generator, p: int, m: int, spread: float) -> str:
    """The name of a search with what it searched, and how far its span is from a bound that no order is below."""
    stages = times(p, each.num_chunks, spread)
    ratio = times_of(stages, each.make(), each.num_chunks).span_s / span_bound_s(stages, m, each.num_chunks)
    kind = "equal stages" if spread == 0 else f"stages differ by {spread:.0%}"
    return f"{each.name}, {kind}, span/bound {ratio:.4f}"


def solver(limit_s: float) -> None:
    """The CP-SAT model on a small case, apart: it proves, and is no generator for large ones."""
    from order_solver import solve_orders

    from meshwright.specs.error import MeshwrightError

    p, m, cap = 4, 8, 4.0
    began = time.perf_counter()
    try:
        found = solve_orders(times(p, 1), m, cap, time_limit_s=limit_s)
    except MeshwrightError as error:
        print(f"\nthe solver says nothing: {error}")
        return
    proven = "proven" if found.is_optimal else f"lower bound {found.bound_s:g}"
    wall_s = time.perf_counter() - began
    print(
        f"\nsolver, {p} devices, {m} microbatches, cap {cap:g}: span {found.span_s:g} ({proven}) in {wall_s:.1f} s"
    )


def main() -> None:
    """Print the table, every claim beside its value, and the solver's case; exit status 3 where a claim fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--solver-s", type=float, default=10.0, help="time limit of the solver's case")
    given = parser.parse_args()
    for each in fixed(2, 4) + searched(2, 4, 0.1):  # kernels are compiled before anything is timed
        verify(made(each.make(), 4))
    table(given.devices)
    num_failed = claims()
    solver(given.solver_s)
    if num_failed:
        raise SystemExit(3)


if __name__ == "__main__":
    main()
