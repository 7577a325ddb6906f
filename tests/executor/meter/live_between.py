"""Bytes that live on one rank between the forwards and the backwards of a training step: storages, seen one by one.

All ranks but this one are missing: exchanges move nothing, which memory does not mind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.executor.handlers.core_handler import CORE_HANDLERS
from meshwright.executor.job.job import Job
from meshwright.executor.meter.live_storage import LiveStorage
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handler, Row
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions
from meshwright.executor.team.exchange_ends import teams_of
from meshwright.executor.training.rank_training import TrainingState
from meshwright.ir.timing.wiring import wire

BACKWARD = ("R", "B", "I")
YOUNGEST = 0  # generation of the garbage collector


@contextmanager
def absent_ranks(num_ranks: int) -> Iterator[None]:
    """A process group of so many ranks of which only the first is there."""
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def garbage_on_request() -> Iterator[None]:
    """Garbage goes when it is asked for, so all that is made inside stays in the youngest generation: asking for that is
    cheap, and looking through all that torch and other tests have made takes 0.2 seconds each time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def live_between(job: Job, folder: Path) -> int:
    """Live bytes of rank 0 when the first backward of a step begins, less those that lived before the step; of the
    second, as the first puts tables into caches, which live on."""
    assert job.training is not None
    program, wiring = job.program, wire(job.program)
    seen: list[int] = []
    with absent_ranks(job.num_ranks), LiveStorage() as live, garbage_on_request():

        def watched(handler: Handler) -> Handler:
            def handle(context: Context, row: Row, inputs: Sequence[Any]) -> Any:
                if not seen:
                    interpreter.drain()  # what was issued has been done, in whatever thread
                    gc.collect(YOUNGEST)
                seen.append(live.current_bytes)
                return handler(context, row, inputs)

            return handle

        handlers = {name: watched(h) if name in BACKWARD else h for name, h in CORE_HANDLERS.items()}
        ranked = compile_rank(wiring, 0, job.shape_of(), handlers)
        groups = ProcessGroups(0, job.num_ranks, folder / "rendezvous", "gloo", 60.0)
        groups.make(teams_of(wiring, job.backend))
        context = Context(0, job.num_ranks, program.coordinates(0), groups, job.torch_dtype)
        context.training = TrainingState(job.training, program, 0, job.torch_dtype, context.device)
        store = ValueStore(ranked, context.training.initial_values())
        shared = SharedPositions(folder / "positions", job.num_ranks, is_new=True)
        interpreter = Interpreter(ranked, store, context, Position(shared, 0))
        interpreter.watch(live.in_thread)
        for step in range(2):
            context.training.begin_iteration(step)
            interpreter.drain()
            gc.collect(YOUNGEST)
            seen.clear()
            before = live.current_bytes
            interpreter.run_iteration()
        interpreter.close()
        shared.close()
    return seen[0] - before
