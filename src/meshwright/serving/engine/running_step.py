"""A step that an engine was given, from its submission until it is polled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.engine.engine import StepResult
from meshwright.serving.engine.runner import (
    EmbeddingRunner,
    PreparedStep,
    PreparingRunner,
    Runner,
    StepInputs,
    StepUnderWay,
)
from meshwright.serving.engine.running_rows import LateTokens, StepWork
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.sampling.sampler import Drawn


class ForwardStep(NamedTuple):
    """A step of a runner that takes whole inputs only."""

    runner: Runner
    inputs: StepInputs

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """As `PreparedStep`."""
        return self.inputs.token_ids

    def logits(self) -> NDArray[np.float32]:
        """Compute them; they are valid until the next step runs."""
        return self.runner.forward(self.inputs)


class ComputedWhenAsked(NamedTuple):
    """A step of a runner that computes while its caller waits."""

    runner: Runner
    batch: Batch
    prepared: PreparedStep

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """There is no other thread."""
        return True

    def logits(self) -> NDArray[np.float32]:
        """Move blocks, and compute them."""
        move_blocks(self.runner, self.batch)
        return self.prepared.logits()


@dataclass(eq=False, slots=True)
class RunningStep:
    """Args:
    work: what it computes.
    computed: where its logits come from.
    rows, sequences: ``[R]``: those who get a token.
    takes: where its tokens stand until it runs.
    late, before: tokens of it that another step is still to draw, and that step.
    is_plain: are all tokens that come out the largest logits, and do these outlast the next step?
    start_s, end_s: when it ran.
    logits: once they are there.
    token_ids: ``[R]``, what the next step may compute: where logits are no numbers any token.
    drawn, vectors: what came out, where that cannot wait.
    result: once it has been told.
    error: why nothing came of it.
    """

    work: StepWork
    computed: StepUnderWay
    rows: NDArray[np.int64]
    sequences: list[Sequence]
    start_s: float
    takes: NDArray[np.int64] | None = None
    late: LateTokens | None = None
    before: RunningStep | None = None
    is_plain: bool = False
    end_s: float = 0.0
    logits: NDArray[np.float32] | None = None
    token_ids: NDArray[np.int64] | None = None
    drawn: Drawn | None = None
    vectors: dict[Sequence, NDArray[np.float32]] = field(default_factory=dict)
    result: StepResult | None = None
    error: BaseException | None = None

    def take_late(self) -> None:
        """Tokens of the step before, which has run. Raises what that raised."""
        before, self.before = self.before, None
        if self.late is None:
            return
        assert before is not None and self.takes is not None
        if before.error is not None:
            raise before.error
        assert before.token_ids is not None
        self.takes[self.late.places] = before.token_ids[self.late.sources]


def prepared(runner: Runner, inputs: StepInputs) -> PreparedStep:
    """A step that runs when its last tokens are there."""
    return runner.prepare(inputs) if isinstance(runner, PreparingRunner) else ForwardStep(runner, inputs)


def drawing(work: StepWork) -> tuple[NDArray[np.int64], list[Sequence]]:
    """Rows and sequences that get a token."""
    return work.rows[work.draws], list(itertools.compress(work.sequences, work.draws.tolist()))


def vectors_of(runner: Runner, sequences: list[Sequence]) -> dict[Sequence, NDArray[np.float32]]:
    """Of the last forward, for those that ask."""
    asking = [place for place, each in enumerate(sequences) if each.request.gives_vector]
    if not asking:
        return {}
    assert isinstance(runner, EmbeddingRunner), "who takes such requests has looked"
    hidden = runner.hidden_rows()
    return {sequences[place]: hidden[place].copy() for place in asking}


def move_blocks(runner: Runner, batch: Batch) -> None:
    """What a batch has moved before it."""
    if batch.swap_out or batch.swap_in:
        runner.move_blocks(batch.swap_out, (), batch.swap_in)
    if batch.copies:  # of blocks that may just have come back
        runner.move_blocks((), batch.copies, ())
