"""Fits what an engine adds to a step on a measured log of requests, and shows the rest of it beside two nulls.

    python -m benchmarks.fit.fit_serving

The log is of vLLM 0.19 with Llama-3.1-8B in bfloat16 on one RTX PRO 6000 (LLMServingSim, casys-kaist @5daddb2): 300 requests
in half a minute, more than it keeps up with. Fitted are the host's seconds of a step and a factor of all that the device
does, on the first third of the requests; kernels are those of the nearest measured chip, scaled by bandwidth and peak. The
nulls: the roofline of the data sheet, and the first third's own figures. Last, the constants that `fit_serving_tables` finds
on other engines' runs alone, whatever they give here.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import meshwright.catalog  # noqa: F401 - knows what fills the slot `costs`
from meshwright.serving.fleet.fleet import serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram, StepTime
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import StepModel
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model

from .fit_serving_tables import AddedConstants
from .serving_parts import PartTable

LOGGER = logging.getLogger(__name__)
LOG = Path("../shared/data/calibration/serving/vllm_requests/RTXPRO6000_Llama-3.1-8B.csv")
MODEL, CLUSTER = "llama-3.1-8b", "1xRTX-PRO-6000"
# Of the Server Edition, as the table of the run has it; the preset is the Workstation Edition's.
BANDWIDTH_BYTES_PER_S = 1597e9
OTHERS = AddedConstants(
    (1.05, 1.00, 1.01, 1.02, 1.07), 0.47e-3, 2e-6, 3e-6
)  # fit_serving_tables, all of its rows
PLAN = ServingPlan(
    ReplicaLayout(), 1, max_batch_tokens=2048, max_sequences=128
)  # as the log's file of settings says
LONGEST = 8192  # tokens of a request
FACTORS = tuple(0.8 + 0.05 * step for step in range(13))
HOSTS_S = tuple(0.5e-3 * step for step in range(17))
RATE = "output tokens/s"
SHARES = {"median": 0.5, "95th percentile": 0.95}


@dataclass(frozen=True)
class Measured:
    """One request of the log: its load, and the seconds to its first token, for each other, and until it ended."""

    request: Request
    ttft_s: float
    tpot_s: float
    end_s: float


@dataclass(frozen=True)
class Overlaid:
    """Steps of a table of kernels alone, with an overhead."""

    table: StepTable
    overhead: StepOverhead

    def step(self, batch: BatchShape) -> StepTime:
        """One stage."""
        seconds = self.overhead.host_s + self.overhead.device_factor * self.table.step(batch).latency_s
        return StepTime(seconds, seconds)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """The host's time changes when the span is over: as if it were so much shorter."""
        host_s, factor = self.overhead.host_s, self.overhead.device_factor
        number, seconds = 0, 0.0
        while number == 0 or (number < most and seconds < span_s):
            context = num_context + number * num_decodes
            seconds += host_s + factor * self.table.latency.seconds(0, 0, 0, num_decodes, context)
            number += 1
        return number, seconds


@dataclass(frozen=True)
class ByParts:
    """Steps by constants for kinds of kernels."""

    table: PartTable
    constants: AddedConstants

    def step(self, batch: BatchShape) -> StepTime:
        """One device: nothing is exchanged."""
        (seconds,) = self._seconds(np.array([batch], np.float64)).tolist()
        return StepTime(seconds, seconds)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """All at once, then as many as begin in time."""
        steps = np.zeros((most, len(BatchShape._fields)))
        steps[:, 3], steps[:, 4] = num_decodes, num_context + num_decodes * np.arange(most)
        ends = np.cumsum(self._seconds(steps))
        number = min(most, 1 + int(np.searchsorted(ends, span_s)))
        return number, float(ends[number - 1])

    def _seconds(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        ones = np.ones(len(steps))
        layers = self.table.program.model.num_layers * ones
        return self.constants.seconds(np.column_stack([self.table.seconds(steps), ones, layers, 0.0 * ones]))


def measured(path: Path) -> list[Measured]:
    """The log, by arrival."""
    with path.open(encoding="utf-8", newline="") as lines:
        return sorted(map(_measured, csv.DictReader(lines)), key=lambda each: each.request.arrival_s)


def _measured(row: dict[str, str]) -> Measured:
    prompt, output = int(row["input_toks"]), int(row["output_toks"])
    arrival_s, first_s, last_s = (float(row[name]) for name in ("arrival_s", "first_token_s", "last_token_s"))
    request = Request(row["request_id"], prompt, output, arrival_s, num_output_tokens=output)
    return Measured(request, first_s - arrival_s, (last_s - first_s) / (output - 1), last_s)


def simulated(log: Sequence[Measured], program: ForwardProgram, steps: StepModel) -> list[Measured]:
    """The same requests on the simulated engine, in the order of the log."""
    requests = [replace(each.request) for each in log]
    served = serve(PLAN, program, steps, requests, LONGEST)
    found = {each.request.id: each for each in served.logs[0].records}
    records = (found[each.request.id] for each in log)
    return [Measured(each.request, each.ttft_s, each.tpot_s, each.end_s) for each in records]


def fitted(log: Sequence[Measured], table: StepTable) -> StepOverhead:
    """That with the least mean |log(simulated / measured)| of both times over the first third of the requests."""
    third = len(log) // 3

    def error(overhead: StepOverhead) -> float:
        pairs = zip(
            simulated(log, table.program, Overlaid(table, overhead))[:third], log[:third], strict=True
        )
        return sum(
            abs(math.log(mine.ttft_s / its.ttft_s)) + abs(math.log(mine.tpot_s / its.tpot_s))
            for mine, its in pairs
        )

    return min((StepOverhead(host_s, factor) for host_s, factor in product(HOSTS_S, FACTORS)), key=error)


def figures(found: Sequence[Measured]) -> Iterator[tuple[str, float]]:
    """What is compared, of the requests behind the first third, or of others."""
    kinds: dict[str, Callable[[Measured], float]] = {
        "TTFT": lambda one: one.ttft_s,
        "TPOT": lambda one: one.tpot_s,
    }
    for name, of in kinds.items():
        for words, share in SHARES.items():
            yield f"{name}, {words}", float(np.quantile([of(each) for each in found], share))


def throughput(found: Sequence[Measured]) -> float:
    """Output tokens a second of the whole run."""
    return sum(each.request.max_output_tokens for each in found) / max(each.end_s for each in found)


def report(
    log: Sequence[Measured], table: StepTable, overhead: StepOverhead, nulls: Mapping[str, StepModel]
) -> Iterator[str]:
    """Lines: what was fitted, then every figure measured, simulated, and by the nulls, as ratios."""
    third = len(log) // 3
    ways: Mapping[str, StepModel] = {"fitted": Overlaid(table, overhead), **nulls}
    runs = {name: simulated(log, table.program, steps) for name, steps in ways.items()}
    yield f"host {1e3 * overhead.host_s:.2f} ms a step, device x {overhead.device_factor:.2f}; {third} of {len(log)} requests"
    yield f"{'':24}{'measured':>10}{''.join(f'{name:>13}' for name in (*runs, 'first third'))}"
    told = {name: {**dict(figures(run[third:])), RATE: throughput(run)} for name, run in runs.items()}
    told["first third"] = {**dict(figures(log[:third])), RATE: throughput(log[:third])}
    for name, value in (*figures(log[third:]), (RATE, throughput(log))):
        yield f"{name:24}{value:10.4g}" + "".join(f"{own[name] / value:13.3f}" for own in told.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--log", type=Path, default=LOG)
    log = measured(parser.parse_args(arguments).log)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    cluster = Cluster(CLUSTER)
    card = replace(cluster.devices[0], memory_bandwidth_bytes_per_s=BANDWIDTH_BYTES_PER_S)
    cluster = replace(cluster, devices=(card,))
    programs = {
        name: ForwardProgram(
            load_model(MODEL), replace(cluster, costs=costs), PLAN.layout, overhead=StepOverhead(host_s=0.0)
        )
        for name, costs in {"nearest": "nearest_kernels", "roofline": "roofline"}.items()
    }
    tables = {
        name: StepTable(own, PLAN.max_batch_tokens, PLAN.max_sequences, LONGEST)
        for name, own in programs.items()
    }
    LOGGER.info(programs["nearest"].costs.assumptions[0])
    nulls = {"others": ByParts(PartTable(programs["nearest"]), OTHERS), "roofline": tables["roofline"]}
    for line in report(log, tables["nearest"], fitted(log, tables["nearest"]), nulls):
        LOGGER.info(line)


if __name__ == "__main__":
    main()
