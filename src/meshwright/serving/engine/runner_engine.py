"""The engine of a real model: packs batches for a runner, draws tokens, and knows what ends a sequence.

With `depth` 2 a thread runs batches in order. The next one is chosen and packed while one runs, and what came of a step is
told while the next one runs: between them tokens are drawn and written to where the next step reads them, nothing else. A
sequence that a token ends (not its length, which is known before) was then given one step more, whose token is nobody's. A
pipeline has a lane for each stage instead: while one lane's tokens are drawn and its next batch is chosen, the others' run.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.engine.engine import INFINITY, Ended, NewToken, Speculated, StepResult
from meshwright.serving.engine.runner import (
    PipelinedRunner,
    PreparingRunner,
    Runner,
    num_lanes_of,
)
from meshwright.serving.engine.running_rows import RunningRows, StepWork
from meshwright.serving.engine.running_step import (
    ComputedWhenAsked,
    RunningStep,
    drawing,
    move_blocks,
    prepared,
    vectors_of,
)
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.engine.step_thread import StepThread
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.serving.sampling.output_end import is_last
from meshwright.serving.sampling.sampler import Drawn, Sampler, drawn_plainly
from meshwright.serving.sampling.token_adjustment import NothingAllowed, TokenMask
from meshwright.specs.error import SpecError, UnknownNameError

logger = logging.getLogger(__name__)

MaskOf = Callable[[SamplingParameters], TokenMask | None]


def no_mask(parameters: SamplingParameters) -> TokenMask | None:
    """Of requests without a grammar."""
    return None


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
        self._under_way: deque[RunningStep] = deque()
        self._num_submitted = self._num_polled = 0
        self._lock = threading.Lock()  # the sampler, between this thread and the one that runs
        self._thread = StepThread() if self.depth > 1 else None
        # One that could start steps at once may have a single lane: with a thread its steps wait for the tokens before them.
        self._pipeline = runner if isinstance(runner, PipelinedRunner) and self._thread is None else None

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Take a batch; it runs once."""
        for sequence in batch.preempted:
            self._rows.left(self._row_of[sequence])
        for chunk in batch.chunks:
            if chunk.sequence not in self._row_of:
                self._begin(chunk.sequence)
        work = self._work(batch, now_s)
        self._num_submitted += 1
        if self._thread is None:
            self._draw_what_it_needs(work)
        step = self._step(work)
        self._under_way.append(step)
        if self._thread is not None:
            self._thread.give(step, self._compute_behind)

    def poll(self) -> StepResult:
        """The one that was submitted first. Raises what its runner raises."""
        step = self._under_way.popleft()
        if self._thread is not None:
            self._thread.take()
        result = self._told(step)
        self._num_polled += 1
        while self._forgotten and self._forgotten[0][0] <= self._num_polled:
            self._free(self._forgotten.popleft()[1])
        return result

    def next_end_s(self) -> float:
        """Nobody knows."""
        return -INFINITY

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """See `Engine`."""
        if self._thread is not None:
            return self._thread.has_ended(wake)
        first = self._under_way[0]
        return first.result is not None or first.computed.has_ended(wake)

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
            self._thread.close()
        self.runner.close()

    def _begin(self, sequence: Sequence) -> None:
        request = sequence.request
        assert request.prompt is not None, "a real engine serves tokens"
        prompt = np.asarray(request.prompt, np.int32)
        try:
            if request.adapter:
                self._adapted[sequence] = self._adapters.begin(request.adapter)
            mask = self._mask_of(request.sampling)
            with self._lock:
                row = self._sampler.add(request.sampling, prompt.tolist(), (), sequence.output, mask)
        except (SpecError, UnknownNameError) as why:  # who checks requests has let it through; it fails alone
            logger.warning("request %s cannot be served: %s", request.id, why)
            with self._lock:
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
        if self._adapted.pop(sequence, None) is not None:
            self._adapters.end(sequence.request.adapter)

    def _draw_what_it_needs(self, work: StepWork) -> None:
        """A sequence that changes lanes while its step is under way goes on with the token of that step."""
        for step in self._under_way:
            if self._rows.late(work) is None:
                return
            self._told(step)

    def _step(self, work: StepWork) -> RunningStep:
        """Its inputs, as far as they are known; a pipeline begins to compute it."""
        inputs, batch = self._rows.inputs(work, self._adapters_of(work)), work.batch
        rows, sequences = drawing(work)
        if self._pipeline is not None:
            start_s = self._now_s()
            move_blocks(self._pipeline, batch)
            return RunningStep(work, self._pipeline.start(inputs), rows, sequences, start_s)
        made = prepared(self.runner, inputs)
        step = RunningStep(work, ComputedWhenAsked(self.runner, batch, made), rows, sequences, self._now_s())
        if self._thread is None:
            return step
        step.takes, step.late = made.token_ids, self._rows.late(work)
        step.before = self._under_way[-1] if self._under_way else None
        wants_vector = any(each.request.gives_vector for each in sequences)
        outlast = isinstance(self.runner, PreparingRunner)  # logits of this step the next one
        step.is_plain = outlast and not wants_vector and self._sampler.are_plain(rows)
        self._rows.given_out(rows)
        return step

    def _compute_behind(self, step: RunningStep) -> None:
        """In a thread of its own, behind the step before."""
        step.start_s = self._now_s()
        step.take_late()
        self._compute(step)

    def _compute(self, step: RunningStep) -> None:
        """Wait for logits, and draw what the next step needs."""
        step.logits = step.computed.logits()
        if step.is_plain:
            step.token_ids = step.logits.argmax(axis=1)
        else:
            self._choose(step)
        step.end_s = self._now_s()

    def _choose(self, step: RunningStep) -> None:
        """Draw, while logits and what else the model says are there."""
        assert step.logits is not None
        with self._lock:
            step.drawn = self._sampler.draw(step.rows, step.logits)
        step.vectors = vectors_of(self.runner, step.sequences)
        # Who got none has ended, but may be in the batch that is under way, and no model knows NO_TOKEN.
        step.token_ids = np.maximum(step.drawn.token_ids, 0)

    def _told(self, step: RunningStep) -> StepResult:
        """What came of a step; without a thread it is computed now."""
        if step.result is None:
            if self._thread is None:
                self._compute(step)
            tokens, ended = self._drawn(step)
            step.logits = None
            self._ended.update(end.sequence for end in ended)
            speculated = self._speculated(step.work, tokens)
            step.result = StepResult(step.work.batch, step.start_s, step.end_s, 1, ended, tokens, speculated)
        return step.result

    def _drawn(self, step: RunningStep) -> tuple[list[NewToken], list[Ended]]:
        """The next token of everyone who gets one, and whose last one it is."""
        if not step.sequences:
            return [], []
        drawn = step.drawn
        if drawn is None:
            assert step.token_ids is not None and step.logits is not None
            drawn = drawn_plainly(step.token_ids, step.logits)
        tokens = self._appended(step.rows, step.sequences, drawn, step.vectors)
        return tokens, [self._end(token) for token in self._last_ones(tokens)]

    def _speculated(self, work: StepWork, tokens: list[NewToken]) -> list[Speculated]:
        """Nothing is proposed here."""
        return []

    def _appended(
        self,
        rows: NDArray[np.int64],
        sequences: list[Sequence],
        drawn: Drawn,
        vectors: dict[Sequence, NDArray[np.float32]],
    ) -> list[NewToken]:
        """A token of each, but of those that have ended."""
        token_ids, logprobs, tops = drawn.token_ids, drawn.logprobs, drawn.top or [None] * len(rows)
        if self._ended:
            lives = [place for place, each in enumerate(sequences) if each not in self._ended]
            rows, token_ids, logprobs = rows[lives], token_ids[lives], logprobs[lives]
            tops, sequences = [tops[place] for place in lives], [sequences[place] for place in lives]
        self._rows.append(rows, np.maximum(token_ids, 0))
        vectors_of = map(vectors.get, sequences)
        return list(map(NewToken, sequences, token_ids.tolist(), logprobs.tolist(), tops, vectors_of))

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
