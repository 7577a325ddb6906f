"""An engine whose sequences may get several tokens a step: some are proposed, one step computes them all, the model decides.

What is proposed for certain (n-grams; a draft model's best token) comes where the sequence itself draws it, so tokens are
those without proposals, one for one. What was drawn from a distribution is taken or replaced (`sampling.proposed_token`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np

from meshwright.serving.engine.engine import Ended, NewToken, Speculated
from meshwright.serving.engine.proposer import Continuation, ProposalPlace, Proposer
from meshwright.serving.engine.runner import Runner
from meshwright.serving.engine.runner_engine import MaskOf, RunnerEngine, no_mask
from meshwright.serving.engine.running_rows import StepWork
from meshwright.serving.engine.running_step import RunningStep, vectors_of
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence


class SpeculatingEngine(RunnerEngine):
    """As `RunnerEngine`, one batch at a time: the next one depends on how many tokens came out of this one."""

    def __init__(
        self,
        runner: Runner,
        proposer: Proposer,
        now_s: Callable[[], float],
        end_ids: Collection[int] = (),
        mask_of: MaskOf = no_mask,
        adapters: ServedAdapters | None = None,
    ) -> None:
        super().__init__(runner, now_s, end_ids, 1, mask_of, adapters)
        self.num_lanes, self._pipeline = 1, None
        self._proposer = proposer
        self._proposals: list[Continuation] = []  # to the decodes of the batch under way

    def forget(self, sequence: Sequence) -> None:
        """See `Engine`."""
        self._proposer.forget(sequence)
        super().forget(sequence)

    def close(self) -> None:
        """Let go of both models."""
        try:
            self._proposer.close()
        finally:
            super().close()

    def _work(self, batch: Batch, now_s: float) -> StepWork:
        for sequence in batch.preempted:
            self._proposer.forget(sequence)
        self._proposals = self._proposed(batch) if batch.num_proposed else []
        token_ids = [each.token_ids for each in self._proposals]
        return self._rows.work(batch, self._row_of, now_s, token_ids if any(token_ids) else ())

    def _proposed(self, batch: Batch) -> list[Continuation]:
        """To every decode: what its grammar lets follow of what the decoder proposes."""
        places = [self._asked(sequence, batch.num_proposed) for sequence in batch.decodes]
        asked = [place for place in places if place is not None]
        found = {
            place.sequence: self._cut(place, proposal)
            for place, proposal in zip(asked, self._proposer.propose(asked), strict=True)
        }
        return [found.get(sequence, Continuation()) for sequence in batch.decodes]

    def _cut(self, place: ProposalPlace, proposal: Continuation) -> Continuation:
        """As far as there is room for it, a model knows its tokens, and the grammar lets them follow."""
        token_ids = proposal.token_ids[: place.most]
        size = self.runner.vocabulary_size
        known = next((at for at, token in enumerate(token_ids) if not 0 <= token < size), len(token_ids))
        return proposal.first(self._sampler.num_allowed(self._row_of[place.sequence], token_ids[:known]))

    def _asked(self, sequence: Sequence, most: int) -> ProposalPlace | None:
        """What there is room for: in its blocks, and before its last token, which is not computed."""
        row = self._row_of[sequence]
        tokens = self._rows.tokens(row)
        in_blocks = len(sequence.blocks) * self.runner.block_tokens - len(tokens)
        most = min(most, in_blocks, self._rows.room(row) - 1)
        if most < 1 or sequence in self._ended:
            return None
        return ProposalPlace(sequence, tokens, most, lambda: self._sampler.drafter(row))

    def _choose(self, step: RunningStep) -> None:
        """Where something is proposed, draws follow one another."""
        if not step.work.proposed:
            super()._choose(step)

    def _drawn(self, step: RunningStep) -> tuple[list[NewToken], list[Ended]]:
        """Token behind token, as long as what comes is what was proposed."""
        work, rows, sequences = step.work, step.rows, step.sequences
        if not work.proposed:
            tokens, ended = super()._drawn(step)
            self._settle(work, tokens)
            return tokens, ended
        logits, nums = step.logits, work.num_wanted
        assert logits is not None
        firsts = np.cumsum(nums) - nums
        proposals = [Continuation()] * (len(sequences) - len(self._proposals)) + self._proposals
        tokens, ended = list[NewToken](), list[Ended]()
        live, depth = list(range(len(sequences))), 0
        while live:
            drawn = [proposals[at].drawn[depth] if depth < nums[at] - 1 else None for at in live]
            these = [sequences[at] for at in live]
            found = self._sampler.draw(rows[live], logits[firsts[live] + depth], drawn)
            new = self._appended(rows[live], these, found, vectors_of(self.runner, these))
            last = self._last_ones(new)
            tokens += new
            ended += [self._end(token) for token in last]
            goes_on = {each.sequence: each.token_id for each in new}
            for token in last:
                del goes_on[token.sequence]
            live = [
                at for at in live
                if depth < nums[at] - 1 and goes_on.get(sequences[at]) == proposals[at].token_ids[depth]
            ]  # fmt: skip
            depth += 1
        self._settle(work, tokens)
        return tokens, ended

    def _settle(self, work: StepWork, tokens: list[NewToken]) -> None:
        """Of what decodes computed, keys and values stay up to the last token that was accepted."""
        if not work.batch.num_proposed:
            return
        first, got = len(work.batch.chunks), Counter(token.sequence for token in tokens)
        nums = np.array([max(1, got[each]) for each in work.batch.decodes], np.int64)
        self._rows.settle(work.rows[first:], work.starts[first:] + nums)

    def _speculated(self, work: StepWork, tokens: list[NewToken]) -> list[Speculated]:
        got = Counter(token.sequence for token in tokens)
        pairs = zip(work.batch.decodes, work.proposed)  # noqa: B905  nothing may be proposed to anybody
        return [Speculated(each, len(more), max(0, got[each] - 1)) for each, more in pairs if more]
