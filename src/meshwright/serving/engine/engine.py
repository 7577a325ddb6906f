"""An engine: takes batches, and tells what came of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.sampling.logprobs import TopLogprobs

INFINITY = float("inf")


@dataclass(slots=True)
class Ended:
    """A sequence that got its last token.

    Args:
        sequence: which.
        reason: "stop" (an end of text, a stop token or text), "length", or "error".
        num_tokens: that it got, this last one among them.
        keys: of all its full blocks, where the engine knows its tokens; they are kept for requests that go on from here.
    """

    sequence: Sequence
    reason: str
    num_tokens: int
    keys: tuple[Hashable, ...] = ()


@dataclass(slots=True)
class NewToken:
    """What a sequence got.

    Args:
        sequence: which.
        token_id: the token.
        logprob: its own, NaN where the request asks for none.
        top: the best tokens of this place, where the request asks for them.
        vector: ``[E]``, what the model's last norm gives of the token before it, where the request asks for that.
    """

    sequence: Sequence
    token_id: int
    logprob: float = float("nan")
    top: TopLogprobs | None = None
    vector: NDArray[np.float32] | None = None


class Speculated(NamedTuple):
    """What became of the tokens that were proposed to a sequence: how many, and how many more than one it got by them."""

    sequence: Sequence
    num_proposed: int
    num_accepted: int


@dataclass(slots=True)
class StepResult:
    """What came of a batch.

    Args:
        batch: which.
        start_s, end_s: when it ran, on the engine's clock.
        num_steps: how many times it ran, at most its `repeats`.
        ended: in its last step.
        tokens: that came out, where the engine has them; of one sequence in their order.
        speculated: of those to whom tokens were proposed.
    """

    batch: Batch
    start_s: float
    end_s: float
    num_steps: int
    ended: Items[Ended]
    tokens: Items[NewToken] = ()
    speculated: Items[Speculated] = ()


class Engine(Protocol):
    """Runs batches in the order in which they are submitted."""

    num_lanes: int  # batches of different lanes that are under way beside each other
    depth: int  # batches of one lane that may be submitted before the first of them is polled

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Take a batch. It may run as often as it `repeats`, until a sequence ends; no repetition begins after `until_s`."""
        ...

    def poll(self) -> StepResult:
        """Wait for the one that ends first."""
        ...

    def next_end_s(self) -> float:
        """When that will be, on a virtual clock; minus infinity where nobody knows before it is polled."""
        ...

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Does `poll` come back without waiting for another thread? Otherwise `wake` is called when it would."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended, or was ended from outside: nothing more comes of it."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
