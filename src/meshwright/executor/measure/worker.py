"""One process of a measurement: `python -m meshwright.executor.measure.worker RANK SIZE FOLDER EFFORT`.

Rank 0 writes one JSON object a line on stdout: {"progress": what, "share": done} and, last, {"result": profile}.
All ranks run the same cases at the same time, so every sample is of a busy machine.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from meshwright.executor.measure.cases import Case, compute_cases
from meshwright.executor.measure.measure import SLOWING_FILE
from meshwright.executor.measure.stages import StageCase, StageTimer, stage_cases, warm
from meshwright.executor.meter.compute_clock import compute_seconds
from meshwright.executor.rank.slowed_compute import stretch
from meshwright.executor.team.collective import combine, scatter_sum, start_gather, wait_all
from meshwright.executor.team.freed_memory import keep_freed_memory
from meshwright.executor.team.slowed_link import SlowedLinks
from meshwright.specs.cluster.profile import COMPUTE_TABLES
from meshwright.specs.cluster.slowing import Slowing

Thunk = Callable[[], object]
RENDEZVOUS_TIMEOUT_S = 60  # a worker that waits longer has lost its peer
MIN_REPETITIONS = 5
UNEVEN = 0.15  # processes of one even machine differ by several percent from one measurement to the next
# Disturbances only ever add time: the lower quartile of the repetitions is the undisturbed time, yet no lucky one.
QUANTILE = 0.25
TRANSFER_BYTES = (4, 16 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
REDUCE_BYTES = (4, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
TICKS_A_STAGE = 5  # how many ordinary cases the steps of one stage take as long as, for the progress line
SLOWDOWN_MATMUL = 256  # side of the product that runs while messages move
SLOWDOWN_BYTES = 2 << 20
USUAL_SHARE = 0.9  # of the repetitions of a collective
SLOWDOWN_S = 0.25  # of products alone
SLOWDOWN_TRANSFERS = 60


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds over all cases (seconds apart, so that one disturbance cannot spoil a case),
    seconds of one case in one round, steps of every stage, and how many stages."""

    num_rounds: int
    case_budget_s: float
    num_stage_rounds: int
    num_stages: int

    def total(self) -> int:
        """Number of ticks of the progress line."""
        cases = len(compute_cases()) + len(TRANSFER_BYTES) + len(REDUCE_BYTES)
        return self.num_rounds * cases + 1 + self.num_stage_rounds * TICKS_A_STAGE * self.num_stages


EFFORTS = {
    "full": Effort(num_rounds=2, case_budget_s=0.020, num_stage_rounds=3, num_stages=len(stage_cases())),
    "quick": Effort(num_rounds=1, case_budget_s=0.001, num_stage_rounds=1, num_stages=1),
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
    if table not in RING_PASSES:
        return quantile(times, QUANTILE)
    kept = sorted(times)[: max(1, math.ceil(USUAL_SHARE * len(times)))]
    return sum(kept) / len(kept)


def spread(times: Sequence[float]) -> float:
    """Half the distance from the first to the third quartile, relative to the median."""
    middle = quantile(times, 0.5)
    return (quantile(times, 0.75) - quantile(times, 0.25)) / (2 * middle) if middle > 0 else 0.0


def time_case(run: Thunk, budget_s: float, inner: int = 1, compute_factor: float = 1.0) -> list[float]:
    """Seconds of one call, several times over, for about `budget_s`; one call warms up."""
    run()
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < MIN_REPETITIONS or time.perf_counter() < deadline:
        start = compute_seconds()
        for _ in range(inner):
            run()
        stretch(compute_factor, start)
        times.append((compute_seconds() - start) / inner)
    return times


def time_compute(recorder: Recorder, cases: Sequence[Case]) -> None:
    """All compute cases once; ranks start each one together."""
    for case in cases:
        run = case.prepare()
        dist.barrier()
        times = time_case(run, recorder.effort.case_budget_s, case.inner, recorder.compute_factor)
        recorder.add(case.table, case.shape, times)
        recorder.tick(case.table)


def exchange(recorder: Recorder, sent: torch.Tensor, received: torch.Tensor) -> None:
    """Send around the ring of all ranks and receive; returns when both are complete."""
    size = recorder.num_processes
    if size == 1:
        received.copy_(sent)
        return
    pending = [dist.irecv(received, (recorder.rank - 1) % size)]
    following = (recorder.rank + 1) % size
    recorder.links.wait_until(recorder.links.message(following, sent.nbytes))
    pending.append(dist.isend(sent, following))
    for work in pending:
        if work is not None:  # None: this rank is no member of the group, which cannot be
            work.wait()


def time_transfers(recorder: Recorder) -> None:
    """Point-to-point by bytes, every rank sending and receiving at once; then the collectives."""
    size = recorder.num_processes
    for num_bytes in TRANSFER_BYTES:
        sent, received = torch.ones(num_bytes // 4), torch.empty(num_bytes // 4)
        run: Thunk = partial(exchange, recorder, sent, received)
        recorder.add("send_receive", (num_bytes,), together(run, repetitions(num_bytes)))
        recorder.tick("send_receive")
    for num_bytes in REDUCE_BYTES:
        whole, world = torch.zeros(max(num_bytes // 4 // size, 1) * size), dist.group.WORLD
        part = whole[: whole.numel() // size]
        collectives: tuple[tuple[str, Thunk], ...] = (
            ("all_reduce", partial(combine, whole, world, "gloo")),
            ("all_gather", partial(gathered, part, world)),
            ("reduce_scatter", partial(scatter_sum, whole, world, "gloo")),
        )
        for table, run_one in collectives:
            run = partial(ring, recorder, RING_PASSES[table], whole.nbytes, run_one)
            recorder.add(table, (num_bytes,), behind_compute(run, repetitions(num_bytes)))
        recorder.tick("collectives")


def gathered(part: torch.Tensor, group: object) -> None:
    """All members' parts, complete."""
    _, works = start_gather(part, group, "gloo")
    wait_all(works)


def behind_compute(run: Thunk, count: int) -> list[float]:
    """Seconds of `count` calls that every rank makes as soon as its own compute has ended, as a step does: with the wait for
    the slowest, and for a core that threads of the backend get beside those that compute. Two warm up."""
    rows_DD = torch.randn(SLOWDOWN_MATMUL, SLOWDOWN_MATMUL)
    columns_DN = torch.randn(SLOWDOWN_MATMUL, 4 * SLOWDOWN_MATMUL)
    dist.barrier()
    return timed(run, 2 + count, lambda: rows_DD @ columns_DN)[2:]


def ring(recorder: Recorder, passes: int, num_bytes: int, run: Thunk) -> None:
    """A collective over all ranks, behind what slowed links make it wait for."""
    recorder.links.pass_ring(range(recorder.num_processes), num_bytes, passes)
    run()


def repetitions(num_bytes: int) -> int:
    """How often to repeat an exchange: fewer for large ones; the same on every rank, by design."""
    return 5 if num_bytes > 4 << 20 else 15 if num_bytes > 1 << 20 else 40


def together(run: Thunk, count: int) -> list[float]:
    """Seconds of `count` calls that all ranks make in step; one warms up."""
    run()
    dist.barrier()
    return timed(run, count)


def timed(run: Thunk, count: int, before: Thunk = lambda: None) -> list[float]:
    """Seconds by the wall of each of `count` calls, with another, that is not timed, in front of each."""
    times = []
    for _ in range(count):
        before()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def time_slowdown(recorder: Recorder) -> dict[str, float]:
    """How much a compute and a transfer slow each other down: seconds together over seconds alone.

    A thread moves a fixed number of messages one after the other, as a stream of the executor does, while this
    one times products; then the same with messages only and products only.
    """
    side_DD = torch.randn(SLOWDOWN_MATMUL, SLOWDOWN_MATMUL)
    sent, received = torch.ones(SLOWDOWN_BYTES // 4), torch.empty(SLOWDOWN_BYTES // 4)
    alone = quantile(time_case(lambda: side_DD @ side_DD, SLOWDOWN_S), 0.5)
    transfer = quantile(together(lambda: exchange(recorder, sent, received), SLOWDOWN_TRANSFERS), 0.5)
    if recorder.num_processes == 1:
        return {"compute_slowdown": 1.0, "transfer_slowdown": 1.0}
    moved: list[float] = []
    mover = threading.Thread(
        target=lambda: moved.extend(together(lambda: exchange(recorder, sent, received), SLOWDOWN_TRANSFERS))
    )
    mover.start()
    products = 0
    begin = time.perf_counter()
    while mover.is_alive():
        side_DD @ side_DD
        products += 1
    mean = (time.perf_counter() - begin) / max(products, 1)
    mover.join()
    numbers = torch.tensor([mean / alone, sum(moved) / len(moved) / transfer], dtype=torch.float64)
    dist.all_reduce(numbers)
    compute, messages = (numbers / recorder.num_processes).tolist()
    return {"compute_slowdown": max(1.0, compute), "transfer_slowdown": max(1.0, messages)}


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
    store = FileStore(str(folder / "rendezvous"), size)
    timeout = datetime.timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    slowing = Slowing.from_dict(json.loads((folder / SLOWING_FILE).read_text()))
    links = SlowedLinks.of(slowing, rank, range(size))
    recorder = Recorder(rank, size, effort, links=links, compute_factor=slowing.factor(rank))
    cases = compute_cases()
    for _ in range(effort.num_rounds):
        time_compute(recorder, cases)
        time_transfers(recorder)
    constants = time_slowdown(recorder)
    recorder.tick("slowdown")
    timers = time_stages(recorder)
    factors = process_factors(recorder, timers)
    passes = [row for timer in timers for row in pass_rows(timer, size)]
    tables = recorder.merged()
    if rank == 0:
        found = {"tables": tables, "constants": constants, "passes": passes, "process_factors": factors}
        emit({"result": found})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    measure_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), EFFORTS[sys.argv[4]])
