"""DrawingEngine: a simulated engine that answers: steps take as long as they would, and their tokens are drawn.

On the wall clock a server of it is one that clients and load tools can be tried against, at the pace of any cluster.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items

import numpy as np

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.engine.engine import INFINITY, Ended, NewToken, StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence, Status
from meshwright.serving.request.request import Request
from meshwright.serving.sampling.logprobs import TopLogprobs
from meshwright.serving.simulated.simulated_engine import SimulatedEngine


class DrawingEngine:
    """Args:
    simulated: says when a step ends, and who has all of its tokens.
    token_ids: tokens are drawn of these, each as likely as any other, whatever a request says of sampling.
    mean_output: tokens of an output in the mean, by a geometric distribution, up to what was asked for; a request that
        ignores the end of text gets all.
    block_tokens: of the engine's blocks.
    now_s: the clock of the loop.
    """

    depth = 1

    def __init__(
        self, simulated: SimulatedEngine, token_ids: Items[int], mean_output: int, block_tokens: int,
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self.num_lanes = simulated.num_lanes
        self._simulated, self._token_ids, self._now_s = simulated, token_ids, now_s
        self._timer: tuple[float, threading.Timer] | None = None  # of the end that somebody waits for
        self._mean_output, self._block_tokens = mean_output, block_tokens
        self._drawn: dict[Sequence, list[int]] = {}
        self._draws: dict[Sequence, random.Random] = {}
        self._ended_s = [0.0] * simulated.num_lanes  # of each lane, the batch that ended last
        self._logprob = -math.log(len(token_ids))

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Step by step: every token is told when it is there."""
        batch.repeats = 1
        for chunk in batch.chunks:
            if chunk.sequence.request.num_output_tokens is None:
                chunk.sequence.request.num_output_tokens = self._num_output(chunk.sequence.request)
        self._simulated.submit(batch, self._due_s(batch, now_s), until_s)

    def poll(self) -> StepResult:
        """The first that was submitted; whoever asks waits until it ends."""
        result = self._simulated.poll()
        batch = result.batch
        self._ended_s[batch.lane] = result.end_s
        drawing = [*(chunk.sequence for chunk in batch.chunks if chunk.is_last), *batch.decodes]
        # Who was ended from outside while the step ran gets nothing more.
        result.tokens = [self._token(each) for each in drawing if each.status is not Status.ENDED]
        result.ended = [self._end(each) for each in result.ended]
        return result

    def next_end_s(self) -> float:
        """When the first of what is under way ends."""
        return self._simulated.next_end_s()

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Is it time?"""
        end_s = self.next_end_s()
        if (left_s := end_s - self._now_s()) <= 0.0:
            return True
        if self._timer is None or self._timer[0] != end_s:
            self._stop_timer()
            self._timer = (end_s, threading.Timer(left_s, wake))
            self._timer[1].daemon = True
            self._timer[1].start()
        return False

    def forget(self, sequence: Sequence) -> None:
        """Nothing more comes of it."""
        self._drawn.pop(sequence, None)
        self._draws.pop(sequence, None)
        self._simulated.forget(sequence)

    def close(self) -> None:
        """Nobody is woken any more."""
        self._stop_timer()
        self._simulated.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _due_s(self, batch: Batch, now_s: float) -> float:
        """When the engine that is simulated would have begun: behind the lane's last batch, and when all had come. What
        the host here takes to choose and to answer is no time of the host there, which is in the steps."""
        arrivals = (chunk.sequence.request.arrival_s for chunk in batch.chunks)
        return min(now_s, max(self._ended_s[batch.lane], *arrivals, 0.0))

    def _num_output(self, request: Request) -> int:
        """How many tokens the model would have had to say."""
        most = request.max_output_tokens
        if request.sampling.ignore_eos:
            return most
        draw = random.Random(f"length/{request.id}").random()
        drawn = 1 + int(math.log(1.0 - draw) / math.log1p(-1.0 / max(2, self._mean_output)))
        return min(drawn, most)

    def _token(self, sequence: Sequence) -> NewToken:
        """Of an output with a seed always the same."""
        sampling = sequence.request.sampling
        if sequence not in self._draws:
            seed = sequence.request.id if sampling.seed is None else sampling.seed
            self._draws[sequence] = random.Random(f"{seed}/{sequence.output}")
            self._drawn[sequence] = []
        token = self._draws[sequence].choice(self._token_ids)
        self._drawn[sequence].append(token)
        if sampling.num_logprobs is None:
            return NewToken(sequence, token)
        best = np.asarray(self._token_ids[: sampling.num_logprobs], np.int64)
        return NewToken(
            sequence, token, self._logprob, TopLogprobs(best, np.full(len(best), self._logprob, np.float32))
        )

    def _end(self, ended: Ended) -> Ended:
        """Its last token is not computed, so blocks are kept up to there."""
        request = ended.sequence.request
        reason = "stop" if ended.num_tokens < request.max_output_tokens else "length"
        keys: tuple[Hashable, ...] = ()
        if request.block_keys and request.prompt is not None:
            tokens = [*request.prompt, *self._drawn.get(ended.sequence, ())][:-1]
            keys = block_keys(tokens, self._block_tokens, request.adapter)
        return Ended(ended.sequence, reason, ended.num_tokens, keys)
