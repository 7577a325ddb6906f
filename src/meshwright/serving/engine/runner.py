"""A runner: a model that computes one step's packed tokens over paged blocks of keys and values.

Shapes: T new tokens of all sequences, one behind the other; S sequences; R rows whose logits are asked for; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]  # a block, and where its content goes


@dataclass(slots=True)
class StepInputs:
    """What one step computes. Arrays may be views of buffers that the next step reuses.

    Args:
        token_ids: ``[T]``, int64.
        positions: ``[T]``, int64: of each token in its sequence.
        query_starts: ``[S + 1]``, int32: sequence s has tokens ``query_starts[s]`` to ``query_starts[s + 1]``.
        past_lengths: ``[S]``, int32: tokens of each sequence whose keys and values are in its blocks already.
        block_ids: int32, the blocks of all sequences one behind the other: for each as many as hold its past and new tokens.
        block_starts: ``[S + 1]``, int32: where those of each sequence begin in `block_ids`.
        max_context: the largest past and new tokens of a sequence.
        rows: ``[R]``, int64: the tokens (0 to T - 1) whose logits are returned.
        adapters: the adapter of each sequence by number; (): the model's own weights for all.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    query_starts: NDArray[np.int32]
    past_lengths: NDArray[np.int32]
    block_ids: NDArray[np.int32]
    block_starts: NDArray[np.int32]
    max_context: int
    rows: NDArray[np.int64]
    adapters: Sequence[int] = ()


@runtime_checkable
class EmbeddingRunner(Protocol):
    """What a runner that tells vectors has beside `Runner`."""

    def hidden_rows(self) -> NDArray[np.float32]:
        """``[R, E]``: of the rows of the last `forward`, what the last norm gave."""
        ...


class Runner(Protocol):
    """A model with its blocks. One thread at a time calls it; `forward` may be called from another than made it."""

    block_tokens: int  # tokens that a block holds
    num_blocks: int
    num_host_blocks: int  # blocks in host memory, to which others are swapped out; 0: none
    vocabulary_size: int
    max_model_tokens: int  # the longest sequence that the model takes

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits ``[R, V]`` of the asked rows, valid until the next call; new keys and values are in their blocks."""
        ...

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """In this order, before a forward: to host blocks, from block to block, from host blocks."""
        ...

    def close(self) -> None:
        """Let go of memory and processes."""
        ...


class PreparedStep(Protocol):
    """A step that a runner has been given before all of its tokens are known."""

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """``[T]``: what stands in it when the step runs is what it computes."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """Run it, once: logits ``[R, V]`` of the asked rows, valid until two other steps have been prepared."""
        ...


@runtime_checkable
class PreparingRunner(Protocol):
    """A runner that takes a step's inputs while it runs the step before: what is done between two steps is seen by nobody
    but whoever waits for tokens. It has that beside `Runner`, and is not asked for `forward` meanwhile."""

    def prepare(self, inputs: StepInputs) -> PreparedStep:
        """Keep these inputs; those of the last but one are gone. May be called while another thread runs the last one."""
        ...


class StepUnderWay(Protocol):
    """A step that was started."""

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Need nobody wait for its logits? Otherwise `wake` is called, from another thread, when that is so."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """Wait for them; asked once. Raises what the step raised."""
        ...


@runtime_checkable
class PipelinedRunner(Runner, Protocol):
    """A runner whose stages compute different steps at once. What it is told it does in that order, on every device: a step
    sees all that was started or moved before it."""

    num_lanes: int  # steps that may be under way

    def start(self, inputs: StepInputs) -> StepUnderWay:
        """Begin a step, and come back. Its logits ``[R, V]`` are valid until the next step is started. With `num_lanes`
        steps whose logits nobody has taken it waits until another thread takes some."""
        ...


def num_lanes_of(runner: Runner) -> int:
    """Steps that a runner has under way at once."""
    return runner.num_lanes if isinstance(runner, PipelinedRunner) else 1
