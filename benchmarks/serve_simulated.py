"""A load of 19,366 requests on simulated replicas: requests a second in the loop, and the step table beside simulated steps.

    python benchmarks/serve_simulated.py [--requests azure_llm_2023_conv.csv] [--runs 11] [--compared 1000]

Llama-3.1-70B on eight H100 (tp 8), the Azure conversation trace of 2023 as it came. Claims: the load is served in the loop at
16,000 requests/s or more (CPU seconds, the median of the runs and its quartiles; Vidur does 790 on the machine for which that
was asked, after its forests are trained); program, table and loop together take less than 20 s; every request that comes
ends once; Little's law holds of who decodes, within 2 %; and with every distinct batch
simulated as its program, medians and 99th percentiles of TTFT and TPOT of the first requests are within 3 % of the table's,
as they came and four times as often, which saturates the replica. A ratio above one is better than claimed. Exit status 3
where a claim fails; without the trace it says so and ends with 0. A minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.serving.fleet.fleet import Served, serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LoadReport
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.request.arrival import at_rate
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import read_requests
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import EveryStep, StepModel
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model

TRACE = Path(__file__).resolve().parents[2] / "shared/data/workloads/serving/azure_llm_2023_conv.csv"
MODEL, CLUSTER, PLAN = "llama-3.1-70b", "1x8xH100", ServingPlan(ReplicaLayout(tp=8))
REQUESTS_PER_S, WHOLE_S, LITTLE, TABLE = 16_000, 20.0, 0.02, 0.03  # what is claimed
SATURATING = 4  # times as often
FAILED = 3


def line(claim: str, value: float, bound: float, ratio: float) -> bool:
    """Claim, our value, and how much better it is than claimed."""
    print(f"{claim:<58} {value:>10,.5g}   bound {bound:>9,.5g}   ratio {min(ratio, 999.0):.2f}", flush=True)
    return ratio >= 1.0


def at_most(claim: str, value: float, bound: float) -> bool:
    """The same, of what is better where it is less."""
    return line(claim, value, bound, bound / value if value > 0 else float("inf"))


def served(requests: Sequence[Request], steps: StepModel, program: ForwardProgram) -> Served:
    """The load on one replica."""
    return serve(PLAN, program, steps, requests, program.model.max_sequence_length)


def speed(requests: Sequence[Request], table: StepTable, number: int) -> Iterator[bool]:
    """Of the loop, over and over."""
    rates = [len(requests) / served(requests, table, table.program).simulate_s for _ in range(number)]
    low, _, high = statistics.quantiles(rates, n=4)
    middle = statistics.median(rates)
    print(f"requests/s of {number} runs, quartiles {low:,.0f} and {high:,.0f}")
    yield line("requests/s in the loop", middle, REQUESTS_PER_S, middle / REQUESTS_PER_S)


def books(requests: Sequence[Request], log: RequestLog) -> Iterator[bool]:
    """Nothing is lost, and time is kept: who decodes is counted in steps on one side, in stays of requests on the other."""
    ended = sum(each.reason == "length" for each in log.records) + len(log.never)
    yield line("requests that ended, of those that came", ended, len(requests), ended / len(requests))
    steps = zip(log.steps.start_s, log.steps.end_s, log.steps.num_decodes, strict=True)
    inside_s = sum((end_s - start_s) * number for start_s, end_s, number in steps)
    stays_s = sum(each.end_s - each.first_token_s for each in log.records)
    yield at_most("Little's law of who decodes, off by", abs(inside_s / stays_s - 1.0), LITTLE)


def accuracy(requests: Sequence[Request], table: StepTable) -> Iterator[bool]:
    """Of the table, at two loads."""
    for words, factor in (("as they came", 1), (f"{SATURATING} times as often", SATURATING)):
        load = at_rate([replace(each) for each in requests], factor)
        quick = LoadReport.of(served(load, table, table.program).logs)
        exact = LoadReport.of(served(load, EveryStep(table.program), table.program).logs)
        for name in ("ttft_s", "tpot_s"):
            for share in ("p50", "p99"):
                off = abs(getattr(quick, name)[share] / getattr(exact, name)[share] - 1.0)
                yield at_most(f"{name} {share}, {words}: the table is off by", off, TABLE)


def claims(requests: Sequence[Request], num_runs: int, num_compared: int) -> Iterator[bool]:
    """All of them."""
    began_s = time.perf_counter()
    program = ForwardProgram(load_model(MODEL), Cluster(CLUSTER), PLAN.layout)
    longest = max(each.num_prompt_tokens + each.max_output_tokens for each in requests)
    table = StepTable(program, PLAN.max_batch_tokens, PLAN.max_sequences, longest)
    found = served(requests, table, program)
    yield at_most("seconds of program, table and loop", time.perf_counter() - began_s, WHOLE_S)
    yield from books(requests, found.logs[0])
    yield from speed(requests, table, num_runs)
    yield from accuracy(requests[:num_compared], table)


def main() -> int:
    """Print every claim beside its value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=Path, default=TRACE)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--compared", type=int, default=1000)
    asked = parser.parse_args()
    if not asked.requests.is_file():
        print(f"absent: {asked.requests.name}, the Azure conversation trace of 2023")
        return 0
    held = [*claims(read_requests(asked.requests), asked.runs, asked.compared)]
    return 0 if all(held) else FAILED


if __name__ == "__main__":
    sys.exit(main())
