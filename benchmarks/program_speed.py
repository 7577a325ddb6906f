"""Speed of the spine: a 1T-model pipeline of 9.3 million instructions built, verified and simulated; bounds beside values.

Claims (DESIGN, "The program, exactly", and the project's own targets): 64 stages x 512 microbatches x 48 copies, F, B, send
and receive, in under 8 s and 1.5 GB together; the simulation alone at 10 million instructions/s or more on one core; the
quotient (one copy, the axis collapsed) in under 0.3 s; the saved trace opened, and its devices in groups of those that do the
same at the same times, in under 5 s. The event engine at 1 million instructions a second of CPU time or
more on a contended program of 127,000 (`contended_program`), on both hosts, with the times of the Python engine, which is
its reference and runs the same program in the same run.

Run: python benchmarks/program_speed.py [--copies 48]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from contended_program import COSTS as CONTENDED_COSTS
from contended_program import contended

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge.device_group import device_groups
from meshwright.ir.judge.verify import Verification, verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Work
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering import Transfers, program_of_orders, with_works
from meshwright.schedules import registered
from meshwright.simulator import Prices, price, run_events
from meshwright.simulator.event.reference import interpret_events
from meshwright.simulator.simulate import run
from meshwright.specs.cluster.machine import HOSTS

STAGES, MICROBATCHES = 64, 512
COSTS = FixedCosts.from_times(1.0, 1.0, 1.0)
T = TypeVar("T")


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Result and wall seconds."""
    begin = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begin


def build(num_stages: int, num_microbatches: int, copies: int) -> Program:
    """The quotient program: one pipeline, the copies collapsed."""
    orders = registered()["1f1b"].orders(num_stages, num_microbatches)
    program = program_of_orders(orders, collapsed=[Axis("copies", copies, materialised=False)])
    works = {(name, stage): Work(name) for name in "FB" for stage in range(num_stages)}
    return Transfers()(with_works(program, works))


def simulate(verified: Verification) -> tuple[Prices, str, float]:
    """Price and run: (prices, engine, span in seconds)."""
    prices = price(verified.wiring, COSTS, COSTS, None)
    engine, times = run(verified.wiring, prices)
    return prices, engine, float(times[2].max())


def line(claim: str, value: float, bound: float, unit: str, *, lower_is_better: bool = True) -> None:
    """Claim, our value, ratio to the bound (above 1 is better than claimed)."""
    ratio = bound / value if lower_is_better else value / bound
    print(f"{claim:<64} {value:>10.3g} {unit:<6} bound {bound:>8.3g}   ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Print every claim beside its value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--copies", type=int, default=48)
    copies = parser.parse_args().copies
    # kernels are compiled before anything is timed: the quotient first, on which all of them run
    simulate(verify(build(STAGES, MICROBATCHES, 1)))
    (_, quotient_s) = timed(lambda: simulate(verify(build(STAGES, MICROBATCHES, copies))))
    line("quotient built, verified, simulated", quotient_s, 0.3, "s")
    program, build_s = timed(lambda: build(STAGES, MICROBATCHES, copies).expand("copies"))
    verified, verify_s = timed(lambda: verify(program))
    (prices, engine, span), simulate_s = timed(lambda: simulate(verified))
    assert span == 3 * (MICROBATCHES + STAGES - 1), f"1F1B's span is (m + p - 1)(F + B), not {span}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    n = program.num_rows
    print(
        f"{n:,} instructions: build {build_s:.2f} s, verify {verify_s:.2f} s, simulate {simulate_s:.2f} s ({engine})"
    )
    line("expanded: built, verified, simulated", build_s + verify_s + simulate_s, 8.0, "s")
    line("expanded: peak memory of the process", peak, 1.5, "GB")
    ((_, times), replay_s) = timed(lambda: run(verified.wiring, prices))
    line("simulation alone, with its certificate", n / replay_s / 1e6, 10.0, "M/s", lower_is_better=False)
    time_opening(Trace(program, *times, engine))
    time_events()


def time_opening(trace: Trace) -> None:
    """A trace saved, opened, and its devices in groups: a group for each stage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        (_, save_s), size = timed(lambda: trace.save(path)), path.stat().st_size
        (groups, cpu_s), open_s = timed(lambda: cpu_timed(lambda: device_groups(Trace.load(path))))
    assert len(groups) == STAGES, f"{STAGES} stages are as many groups, not {len(groups)}"
    print(f"saved in {save_s:.2f} s, {size / 1e6:.2f} MB; opened in {cpu_s:.2f} s of CPU")
    line("saved trace opened by groups of devices", open_s, 5.0, "s")


def time_events(num_microbatches: int = 64, repeats: int = 5) -> None:
    """The event engine beside its reference: CPU seconds, tables included, the best of some runs."""
    wiring = wire(contended(num_microbatches))
    prices, n = price(wiring, CONTENDED_COSTS, CONTENDED_COSTS, None), wiring.program.num_rows
    print(f"{n:,} instructions that share devices ({run(wiring, prices)[0]})")
    for host in HOSTS:
        runs = [cpu_timed(partial(run_events, wiring, prices, host=host)) for _ in range(repeats)]
        expected, reference_s = cpu_timed(partial(interpret_events, wiring, prices, host=host))
        for ours, theirs in zip(runs[0][0], expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=0.0)
        events_s = min(seconds for _, seconds in runs)
        line(f"event engine, {host} host", n / events_s / 1e6, 1.0, "M/s", lower_is_better=False)
        print(
            f"its reference in Python, the same times: {n / reference_s / 1e6:.3f} M/s (no bound)", flush=True
        )


def cpu_timed(function: Callable[[], T]) -> tuple[T, float]:
    """Result and seconds of this process's CPU time."""
    begin = time.process_time()
    result = function()
    return result, time.process_time() - begin


if __name__ == "__main__":
    main()
