"""What a measurement takes and keeps: how much of it is done, the times of every case, and what of them counts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from meshwright.executor.measure.cases import compute_cases
from meshwright.executor.measure.stages import stage_cases
from meshwright.executor.team.slowed_link import SlowedLinks

Thunk = Callable[[], object]
# Disturbances only ever add time: the lower quartile of the repetitions is the undisturbed time, yet no lucky one.
QUANTILE = 0.25
TRANSFER_BYTES = (4, 16 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
REDUCE_BYTES = (4, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
COLLECTIVES = (*RING_PASSES, "all_to_all")
TICKS_A_STAGE = 5  # how many ordinary cases the steps of one stage take as long as, for the progress line
USUAL_SHARE = 0.9  # of the repetitions of a collective


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds over all cases (seconds apart, so that one disturbance cannot spoil a case),
    seconds of one case in one round, most repetitions of an exchange, transfers beside products, steps of every stage,
    and how many stages."""

    num_rounds: int
    case_budget_s: float
    most_exchanges: int
    num_slowed: int
    num_stage_rounds: int
    num_stages: int

    def total(self) -> int:
        """Number of ticks of the progress line."""
        cases = len(compute_cases()) + len(TRANSFER_BYTES) + len(REDUCE_BYTES)
        return self.num_rounds * cases + 1 + self.num_stage_rounds * TICKS_A_STAGE * self.num_stages


EFFORTS = {
    "full": Effort(
        2, 0.020, most_exchanges=40, num_slowed=60, num_stage_rounds=3, num_stages=len(stage_cases())
    ),
    "quick": Effort(1, 0.001, most_exchanges=5, num_slowed=10, num_stage_rounds=1, num_stages=1),
}


@dataclass
class Recorder:
    """Times per table and shape, in seconds; every rank keeps its own until `merged`."""

    rank: int
    num_processes: int
    effort: Effort
    done: int = 0
    links: SlowedLinks = field(default_factory=SlowedLinks)
    compute_factor: float = 1.0
    times: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)

    def add(self, table: str, shape: tuple[int, ...], seconds: Sequence[float]) -> None:
        """Keep repetitions of one case."""
        self.times.setdefault((table, shape), []).extend(seconds)

    def tick(self, what: str, num: int = 1) -> None:
        """Tell the parent that `num` more cases are done."""
        self.done += num
        if self.rank == 0:
            emit({"progress": what, "share": min(1.0, self.done / self.effort.total())})

    def merged(self) -> dict[str, list[list[object]]]:
        """Table -> [shape, seconds, spread]: the mean over ranks of each rank's `usual_s`."""
        rows = [(usual_s(table, times), spread(times)) for (table, _), times in self.times.items()]
        numbers = torch.tensor(rows, dtype=torch.float64)
        dist.all_reduce(numbers)
        numbers /= self.num_processes
        tables: dict[str, list[list[object]]] = {}
        for (table, shape), (seconds, half) in zip(self.times, numbers.tolist(), strict=True):
            tables.setdefault(table, []).append([list(shape), seconds, half])
        return tables


def emit(message: Mapping[str, object]) -> None:
    """One line to the parent process."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def quantile(times: Sequence[float], share: float) -> float:
    """The value below which `share` of the times lie."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def usual_s(table: str, times: Sequence[float]) -> float:
    """What a case takes. Of a collective the mean without the slowest tenth: a step pays for every wait, but not for what
    happens once in a minute."""
    if table not in COLLECTIVES:
        return quantile(times, QUANTILE)
    kept = sorted(times)[: max(1, math.ceil(USUAL_SHARE * len(times)))]
    return sum(kept) / len(kept)


def spread(times: Sequence[float]) -> float:
    """Half the distance from the first to the third quartile, relative to the median."""
    middle = quantile(times, 0.5)
    return (quantile(times, 0.75) - quantile(times, 0.25)) / (2 * middle) if middle > 0 else 0.0
