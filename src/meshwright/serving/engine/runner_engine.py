"""The engine of a real model: packs batches for a runner, draws tokens, and knows what ends a sequence.

With `depth` 2 a thread runs batches in order, so that the next one is chosen and packed while one runs. A sequence that a
token ends (not its length, which is known before) was then given one step more, whose token is nobody's. A pipeline has a
lane for each stage instead: while one lane's tokens are drawn and its next batch is chosen, the others' batches run.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.engine.engine import INFINITY, Ended, NewToken, Speculated, StepResult
from meshwright.serving.engine.runner import (
    EmbeddingRunner,
    PipelinedRunner,
    Runner,
    StepInputs,
    StepUnderWay,
    num_lanes_of,
)
from meshwright.serving.engine.running_rows import RunningRows, StepWork
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.serving.sampling.output_end import is_last
from meshwright.serving.sampling.proposed_token import ProposedToken
from meshwright.serving.sampling.sampler import Sampler
from meshwright.serving.sampling.token_adjustment import NothingAllowed, TokenMask
from meshwright.specs.error import SpecError, UnknownNameError

logger = logging.getLogger(__name__)

MaskOf = Callable[[SamplingParameters], TokenMask | None]


def no_mask(parameters: SamplingParameters) -> TokenMask | None:
    """Of requests without a grammar."""
    return None


class Started(NamedTuple):
    """A batch that runs."""

    work: StepWork
    start_s: float
    step: StepUnderWay


class _ComputedWhenAsked(NamedTuple):
    """A step of a runner that computes while its caller waits."""

    runner: Runner
    inputs: StepInputs

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """There is no other thread."""
        return True

    def logits(self) -> NDArray[np.float32]:
        """Compute them."""
        return self.runner.forward(self.inputs)


class RunnerEngine:
    """Args:
    runner: the model.
    now_s: the clock of the loop.
    end_ids: tokens that end a text.
    depth: batches that may be submitted before the first of them is polled: 1, or 2. A runner with several lanes has
        one batch of each.
    mask_of: what the outputs of a request have to match.
    adapters: which may come and go; a sequence keeps the one that it began with.
    """

    def __init__(
        self,
        runner: Runner,
        now_s: Callable[[], float],
        end_ids: Collection[int] = (),
        depth: int = 1,
        mask_of: MaskOf = no_mask,
        adapters: ServedAdapters | None = None,
    ) -> None:
        self.runner, self.num_lanes = runner, num_lanes_of(runner)
        self.depth = depth if self.num_lanes == 1 else 1
        self._now_s, self._end_ids, self._mask_of = now_s, frozenset(end_ids), mask_of
        self._adapters = adapters or ServedAdapters()
        self._adapted: dict[Sequence, int] = {}  # by what the others have not: the model's own weights
        self._sampler, self._rows = Sampler(runner.vocabulary_size), RunningRows(runner.block_tokens)
        self._row_of: dict[Sequence, int] = {}
        self._ended: set[Sequence] = set()
        self._forgotten: deque[tuple[int, Sequence]] = deque()  # free when so many batches have been polled
        self._under_way: deque[Future[StepResult] | Started | StepResult] = deque()
        self._num_submitted = self._num_polled = 0
        self._lock = threading.Lock()  # rows and sampler, between this thread and the one that runs
        self._thread = ThreadPoolExecutor(1, "engine") if self.depth > 1 else None
        self._pipeline = runner if isinstance(runner, PipelinedRunner) else None

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Take a batch; it runs once."""
        with self._lock:
            for sequence in batch.preempted:
                self._rows.left(self._row_of[sequence])
            for chunk in batch.chunks:
                if chunk.sequence not in self._row_of:
                    self._begin(chunk.sequence)
            work = self._work(batch, now_s)
        self._num_submitted += 1
        if self._thread is not None:
            self._under_way.append(self._thread.submit(lambda: self._finished(self._started(work))))
            return
        self._draw_what_it_needs(work)
        self._under_way.append(self._started(work))

    def poll(self) -> StepResult:
        """The one that was submitted first. Raises what its runner raises."""
        first = self._under_way.popleft()
        if isinstance(first, Future):
            first = first.result()
        result = self._finished(first) if isinstance(first, Started) else first
        self._num_polled += 1
        while self._forgotten and self._forgotten[0][0] <= self._num_polled:
            self._free(self._forgotten.popleft()[1])
        return result

    def next_end_s(self) -> float:
        """Nobody knows."""
        return -INFINITY

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """See `Engine`."""
        first = self._under_way[0]
        if isinstance(first, Future):
            first.add_done_callback(lambda _: wake())
            return first.done()
        return isinstance(first, StepResult) or first.step.has_ended(wake)

    def forget(self, sequence: Sequence) -> None:
        """Its row is free once all that was submitted with it has run."""
        if sequence in self._row_of:
            self._forgotten.append((self._num_submitted, sequence))
            self._ended.add(sequence)
            if not self._under_way:
                self._forgotten.pop()
                self._free(sequence)

    def close(self) -> None:
        """End the thread, and let go of the model."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self.runner.close()

    def _begin(self, sequence: Sequence) -> None:
        request = sequence.request
        assert request.prompt is not None, "a real engine serves tokens"
        prompt = np.asarray(request.prompt, np.int32)
        try:
            if request.adapter:
                self._adapted[sequence] = self._adapters.begin(request.adapter)
            mask = self._mask_of(request.sampling)
            row = self._sampler.add(request.sampling, prompt.tolist(), (), sequence.output, mask)
        except (SpecError, UnknownNameError) as why:  # who checks requests has let it through; it fails alone
            logger.warning("request %s cannot be served: %s", request.id, why)
            row = self._sampler.add(GREEDY, mask=NothingAllowed(self.runner.vocabulary_size))
        self._rows.begin(row, prompt, request.max_output_tokens)
        self._row_of[sequence] = row

    def _work(self, batch: Batch, now_s: float) -> StepWork:
        """What a batch computes."""
        return self._rows.work(batch, self._row_of, now_s)

    def _free(self, sequence: Sequence) -> None:
        with self._lock:
            self._sampler.remove(self._row_of.pop(sequence))
            self._ended.discard(sequence)
            has_adapter = self._adapted.pop(sequence, None) is not None
        if has_adapter:
            self._adapters.end(sequence.request.adapter)

    def _draw_what_it_needs(self, work: StepWork) -> None:
        """A sequence that changes lanes while its step is under way goes on with the token of that step."""
        for place, first in enumerate(self._under_way):
            if self._rows.are_known(work):
                return
            if isinstance(first, Started):
                self._under_way[place] = self._finished(first)

    def _started(self, work: StepWork) -> Started:
        """Move blocks, and begin to compute."""
        start_s, batch = self._now_s(), work.batch
        if batch.swap_out or batch.swap_in:
            self.runner.move_blocks(batch.swap_out, (), batch.swap_in)
        if batch.copies:  # of blocks that may just have come back
            self.runner.move_blocks((), batch.copies, ())
        with self._lock:
            inputs = self._rows.inputs(work, self._adapters_of(work))
        step = self._pipeline.start(inputs) if self._pipeline else _ComputedWhenAsked(self.runner, inputs)
        return Started(work, start_s, step)

    def _finished(self, started: Started) -> StepResult:
        """Wait for logits, and draw."""
        work, logits = started.work, started.step.logits()
        with self._lock:
            tokens, ended = self._drawn(work, logits)
            self._ended.update(end.sequence for end in ended)
            speculated = self._speculated(work, tokens)
        return StepResult(work.batch, started.start_s, self._now_s(), 1, ended, tokens, speculated)

    def _drawn(self, work: StepWork, logits: NDArray[np.float32]) -> tuple[list[NewToken], list[Ended]]:
        """The next token of everyone who gets one, and whose last one it is."""
        rows = work.rows[work.draws]
        if not len(rows):
            return [], []
        tokens = self._draw(rows, list(itertools.compress(work.sequences, work.draws.tolist())), logits)
        return tokens, [self._end(token) for token in self._last_ones(tokens)]

    def _speculated(self, work: StepWork, tokens: list[NewToken]) -> list[Speculated]:
        """Nothing is proposed here."""
        return []

    def _draw(
        self,
        rows: NDArray[np.int64],
        sequences: list[Sequence],
        logits: NDArray[np.float32],
        proposed: Items[ProposedToken | None] = (),
    ) -> list[NewToken]:
        """A token of each, but of those that have ended."""
        drawn = self._sampler.draw(rows, logits, proposed)
        vectors = self._vectors(sequences)
        token_ids, logprobs, tops = drawn.token_ids, drawn.logprobs, drawn.top or [None] * len(rows)
        if self._ended:
            lives = [place for place, each in enumerate(sequences) if each not in self._ended]
            rows, token_ids, logprobs = rows[lives], token_ids[lives], logprobs[lives]
            tops, sequences = [tops[place] for place in lives], [sequences[place] for place in lives]
        # Who got none has ended, but may be in the batch that is under way, and no model knows NO_TOKEN.
        self._rows.append(rows, np.maximum(token_ids, 0))
        vectors_of = map(vectors.get, sequences)
        return list(map(NewToken, sequences, token_ids.tolist(), logprobs.tolist(), tops, vectors_of))

    def _vectors(self, sequences: list[Sequence]) -> dict[Sequence, NDArray[np.float32]]:
        """Of the last forward, for those that ask."""
        asking = [place for place, each in enumerate(sequences) if each.request.gives_vector]
        if not asking:
            return {}
        assert isinstance(self.runner, EmbeddingRunner), "who takes such requests has looked"
        hidden = self.runner.hidden_rows()
        return {sequences[place]: hidden[place].copy() for place in asking}

    def _last_ones(self, tokens: list[NewToken]) -> list[NewToken]:
        """Those behind which nothing comes."""
        rows = np.array([self._row_of[token.sequence] for token in tokens], np.int64)
        return [
            token
            for token, is_full in zip(tokens, self._rows.are_full(rows).tolist(), strict=True)
            if is_full
            or token.token_id == NO_TOKEN
            or is_last(token.token_id, token.sequence.request.sampling, self._end_ids)
        ]

    def _end(self, token: NewToken) -> Ended:
        """The last token of a sequence, and why it is that."""
        request, row = token.sequence.request, self._row_of[token.sequence]
        num = int(self._rows.num_tokens[row]) - request.num_prompt_tokens
        if token.token_id == NO_TOKEN:
            reason, num = "error", num - 1  # a grammar that is complete allows the end of text
        else:
            reason = "stop" if is_last(token.token_id, request.sampling, self._end_ids) else "length"
        return Ended(token.sequence, reason, num, self._keys(token.sequence, row))

    def _keys(self, sequence: Sequence, row: int) -> tuple[Hashable, ...]:
        """Of its full blocks; its last token is not computed."""
        if not sequence.request.block_keys:
            return ()
        return block_keys(self._rows.tokens(row)[:-1], self.runner.block_tokens, sequence.request.adapter)

    def _adapters_of(self, work: StepWork) -> tuple[int, ...]:
        """Of each sequence; (): nobody has one."""
        return tuple(self._adapted.get(each, 0) for each in work.sequences) if self._adapted else ()
