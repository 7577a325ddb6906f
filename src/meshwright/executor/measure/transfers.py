"""Timing what processes send each other: messages, collectives, and how much messages and products slow each other down."""

from __future__ import annotations

import threading
import time
from functools import partial

import torch
import torch.distributed as dist

from meshwright.executor.measure.cases import time_case
from meshwright.executor.measure.recorder import (
    REDUCE_BYTES,
    RING_PASSES,
    TRANSFER_BYTES,
    Recorder,
    Thunk,
    quantile,
)
from meshwright.executor.team.collective import combine, scatter_sum, start_gather, swapping, wait_all
from meshwright.executor.team.transport import Transport

SLOWDOWN_MATMUL = 256  # side of the product that runs while messages move
SLOWDOWN_BYTES = 2 << 20
SLOWDOWN_S = 0.25  # of products alone


def time_transfers(recorder: Recorder, team: Transport) -> None:
    """Point-to-point by bytes, every rank sending and receiving at once; then the collectives."""
    for num_bytes in TRANSFER_BYTES:
        sent, received = torch.ones(num_bytes // 4), torch.empty(num_bytes // 4)
        run: Thunk = partial(exchange, recorder, sent, received)
        recorder.add("send_receive", (num_bytes,), together(run, repetitions(recorder, num_bytes)))
        recorder.tick("send_receive")
    for num_bytes in REDUCE_BYTES:
        for table, run in collectives(recorder, num_bytes, team).items():
            recorder.add(table, (num_bytes,), behind_compute(run, repetitions(recorder, num_bytes)))
        recorder.tick("collectives")


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


def collectives(recorder: Recorder, num_bytes: int, team: Transport) -> dict[str, Thunk]:
    """Every collective over all ranks, by its table, behind what slowed links make it wait for."""
    size = recorder.num_processes
    whole = torch.zeros(max(num_bytes // 4 // size, 1) * size)
    part = whole[: whole.numel() // size]
    exchanges: dict[str, Thunk] = {
        "all_reduce": partial(combine, whole, team),
        "all_gather": partial(gathered, part, team),
        "reduce_scatter": partial(scatter_sum, whole, team),
        "all_to_all": partial(swapped, whole, team),
    }
    return {table: partial(slowed, recorder, table, whole.nbytes, run) for table, run in exchanges.items()}


def slowed(recorder: Recorder, table: str, num_bytes: int, run: Thunk) -> None:
    """A collective over all ranks, behind what slowed links make it wait for."""
    ranks = range(recorder.num_processes)
    if table in RING_PASSES:
        recorder.links.pass_ring(ranks, num_bytes, RING_PASSES[table])
    else:
        recorder.links.pass_to_each(ranks, [num_bytes / len(ranks)] * len(ranks))
    run()


def gathered(part: torch.Tensor, team: Transport) -> None:
    """All members' parts, complete."""
    _, works = start_gather(part, team)
    wait_all(works)


def swapped(whole: torch.Tensor, team: Transport) -> None:
    """A part of every member, complete."""
    swapping(whole, team, 0, 0)()


def behind_compute(run: Thunk, count: int) -> list[float]:
    """Seconds of `count` calls that every rank makes as soon as its own compute has ended, as a step does: with the wait for
    the slowest, and for a core that threads of the backend get beside those that compute. Two warm up."""
    rows_DD = torch.randn(SLOWDOWN_MATMUL, SLOWDOWN_MATMUL)
    columns_DN = torch.randn(SLOWDOWN_MATMUL, 4 * SLOWDOWN_MATMUL)
    dist.barrier()
    return timed(run, 2 + count, lambda: rows_DD @ columns_DN)[2:]


def repetitions(recorder: Recorder, num_bytes: int) -> int:
    """How often to repeat an exchange: fewer for large ones; the same on every rank, by design."""
    usual = 5 if num_bytes > 4 << 20 else 15 if num_bytes > 1 << 20 else 40
    return min(usual, recorder.effort.most_exchanges)


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
    num = recorder.effort.num_slowed
    transfer = quantile(together(lambda: exchange(recorder, sent, received), num), 0.5)
    if recorder.num_processes == 1:
        return {"compute_slowdown": 1.0, "transfer_slowdown": 1.0}
    moved: list[float] = []
    mover = threading.Thread(
        target=lambda: moved.extend(together(lambda: exchange(recorder, sent, received), num))
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
