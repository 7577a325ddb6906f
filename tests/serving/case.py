"""Loads and loops for the tests of serving."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.serving.told_engine import ToldEngine

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.engine import StepResult
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request

BLOCK_TOKENS = 4
CONTINUOUS = ContinuousBatching()
LIMITS = Limits(max_batch_tokens=16, max_sequences=8, max_model_tokens=64)


def drawn_load(
    seed: int, num: int = 40, prefixes: int = 0, num_outputs: int = 1, users: int = 1, longest: int = 30
) -> list[Request]:
    """Requests at random times, of random lengths; with `prefixes`, their prompts begin with one of so many."""
    draw = random.Random(seed)
    requests, now_s = [], 0.0
    for number in range(num):
        now_s += draw.expovariate(40.0)
        prompt, output = draw.randint(1, longest), draw.randint(1, longest)
        keys: tuple[tuple[int, int], ...] = ()
        if prefixes:
            own, shared = number + prefixes, draw.randrange(prefixes)
            first = draw.randint(0, prompt // BLOCK_TOKENS)
            keys = tuple((shared if block < first else own, block) for block in range(prompt // BLOCK_TOKENS))
        requests.append(
            Request(
                f"r{number}",
                prompt,
                output,
                now_s,
                num_output_tokens=output,
                block_keys=keys,
                user=f"u{number % users}",
                priority=draw.randrange(3),
                num_outputs=draw.randint(1, num_outputs),
            )  # fmt: skip
        )
    return requests


def drawn(sequence: Sequence) -> tuple[str, int]:
    """A sequence by name."""
    return sequence.request.id, sequence.output


@dataclass
class Decisions:
    """What a scheduler decided, one line a step; it checks the books before each."""

    scheduler: Scheduler
    lines: list[object] = field(default_factory=list)

    def arrived(self, request: Request, now_s: float) -> None:
        """Nothing is decided yet."""

    def refused(self, request: Request, now_s: float, why: Exception) -> None:
        """Nothing is decided."""

    def given_out(self, batch: Batch, now_s: float) -> None:
        """A line."""
        check_books(self.scheduler)
        chunks = [(*drawn(chunk.sequence), chunk.start, chunk.num_tokens) for chunk in batch.chunks]
        moves = (tuple(batch.swap_out), tuple(batch.copies), tuple(batch.swap_in))
        self.lines.append((batch.lane, chunks, [drawn(each) for each in batch.decodes], moves))

    def left(self, sequence: Sequence, now_s: float, reason: str) -> None:
        """Nothing is decided."""

    def ran(self, result: StepResult) -> None:
        """Repetitions are lines, too."""
        again = (result.batch.lane, [], self.lines[-1][2], ((), (), ()))  # type: ignore[index]
        self.lines += [again] * (result.num_steps - 1)


def check_books(scheduler: Scheduler) -> None:
    """Every block has one fate; who runs has enough of them."""
    scheduler.pool.check()
    held = set()
    for sequence in scheduler.sequences():
        held |= set(sequence.blocks)
        assert len(set(sequence.blocks)) == len(sequence.blocks)
    assert len(held) == scheduler.pool.num_held


@dataclass
class Served:
    """A load that a loop has served."""

    loop: ServingLoop
    log: RequestLog
    decisions: Decisions


def served(
    requests: list[Request],
    policy: ContinuousBatching = CONTINUOUS,
    num_blocks: int = 40,
    num_host_blocks: int = 0,
    limits: Limits = LIMITS,
    repeats: bool = True,
    num_lanes: int = 1,
    depth: int = 1,
) -> Served:
    """Serve a load on an engine that is told how long steps take."""
    host = BlockPool(num_host_blocks, BLOCK_TOKENS) if num_host_blocks else None
    scheduler = Scheduler(policy, BlockPool(num_blocks, BLOCK_TOKENS), limits, host, num_lanes)
    log, decisions = RequestLog(), Decisions(scheduler)
    engine = ToldEngine(scheduler, repeats, num_lanes, depth)
    loop = ServingLoop(scheduler, engine, RecordedArrivals(requests), VirtualClock(), [log, decisions])
    loop.run()
    return Served(loop, log, decisions)
