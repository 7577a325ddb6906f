"""One process of a measurement: `python -m meshwright.executor.measure.worker RANK SIZE FOLDER EFFORT`.

Rank 0 writes one JSON object a line on stdout: {"progress": what, "share": done} and, last, {"result": profile}.
All ranks run the same cases at the same time, so every sample is of a busy machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.executor.measure.cases import Case, compute_cases, time_case
from meshwright.executor.measure.measure import SLOWING_FILE
from meshwright.executor.measure.recorder import (
    EFFORTS,
    QUANTILE,
    TICKS_A_STAGE,
    Effort,
    Recorder,
    emit,
    quantile,
    spread,
)
from meshwright.executor.measure.stages import StageCase, StageTimer, stage_cases, warm
from meshwright.executor.measure.transfers import time_slowdown, time_transfers
from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.team.freed_memory import keep_freed_memory
from meshwright.executor.team.slowed_link import SlowedLinks
from meshwright.executor.team.transport import Transport
from meshwright.specs.cluster.profile import COMPUTE_TABLES
from meshwright.specs.cluster.slowing import Slowing

RENDEZVOUS_TIMEOUT_S = 60  # a worker that waits longer has lost its peer
UNEVEN = 0.15  # processes of one even machine differ by several percent from one measurement to the next


def time_compute(recorder: Recorder, cases: Sequence[Case]) -> None:
    """All compute cases once; ranks start each one together."""
    for case in cases:
        run = case.prepare()
        dist.barrier()
        times = time_case(run, recorder.effort.case_budget_s, case.inner, recorder.compute_factor)
        recorder.add(case.table, case.shape, times)
        recorder.tick(case.table)


def time_stages(recorder: Recorder) -> list[StageTimer]:
    """Passes of every calibration stage; stages take turns."""
    timers = []
    for case in stage_cases()[: recorder.effort.num_stages]:
        timers.append(warm(case, recorder.compute_factor))
        dist.barrier()
    for _ in range(recorder.effort.num_stage_rounds):
        for timer in timers:
            dist.barrier()
            timer.run_step(is_split=False)
            timer.run_step(is_split=True)
            recorder.tick("stages", TICKS_A_STAGE)
    return timers


def process_factors(recorder: Recorder, timers: Sequence[StageTimer]) -> list[float]:
    """What a compute takes on each process over the mean of all, in the median over cases and passes.

    None where they are as good as alike: then all are one kind of device.
    """
    cases = [times for (table, _), times in recorder.times.items() if table in COMPUTE_TABLES]
    own = [quantile(times, QUANTILE) for times in cases]
    own += [quantile(times, 0.5) for timer in timers for times in timer.times.values()]
    seconds = torch.zeros(recorder.num_processes, len(own), dtype=torch.float64)
    seconds[recorder.rank] = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(seconds)
    factors: list[float] = (seconds / seconds.mean(0)).median(1).values.tolist()
    return factors if max(factors) > (1 + UNEVEN) * min(factors) else []


def pass_rows(timer: StageTimer, num_processes: int) -> list[dict[str, object]]:
    """One row a pass: the mean over ranks of each rank's median (work this long has no lucky repetition)."""
    rows = [(quantile(times, 0.5), spread(times)) for times in timer.times.values()]
    numbers = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(numbers)
    case: StageCase = timer.case
    stage = {
        "model": case.model.to_dict(),
        "num_blocks": case.num_blocks,
        "has_embedding": case.has_embedding,
        "has_head": case.has_head,
        "num_sequences": case.num_sequences,
        "sequence_length": case.sequence_length,
    }
    numbers /= num_processes
    return [
        {"name": name, **stage, "seconds": seconds, "spread": half}
        for name, (seconds, half) in zip(timer.times, numbers.tolist(), strict=True)
    ]


def measure_rank(rank: int, size: int, folder: Path, effort: Effort) -> None:
    """Measure everything on this rank; rank 0 reports."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as those do that train
    torch.manual_seed(rank)
    slowing = Slowing.from_dict(json.loads((folder / SLOWING_FILE).read_text()))
    links = SlowedLinks.of(slowing, rank, range(size))
    recorder = Recorder(rank, size, effort, links=links, compute_factor=slowing.factor(rank))
    everyone = tuple(range(size)), "measure"
    with ProcessGroups(rank, size, folder / "rendezvous", "gloo", RENDEZVOUS_TIMEOUT_S) as groups:
        groups.make([everyone])  # as a training makes its teams: they exchange by the same transport
        found = measured(recorder, groups.labelled(*everyone))
        if rank == 0:
            emit({"result": found})


def measured(recorder: Recorder, team: Transport) -> dict[str, object]:
    """Tables, constants and passes: means of all ranks, known to each."""
    cases = compute_cases()
    for _ in range(recorder.effort.num_rounds):
        time_compute(recorder, cases)
        time_transfers(recorder, team)
    constants = time_slowdown(recorder)
    recorder.tick("slowdown")
    timers = time_stages(recorder)
    factors = process_factors(recorder, timers)
    passes = [row for timer in timers for row in pass_rows(timer, recorder.num_processes)]
    return {
        "tables": recorder.merged(), "constants": constants, "passes": passes, "process_factors": factors,
    }  # fmt: skip


if __name__ == "__main__":
    measure_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), EFFORTS[sys.argv[4]])
