"""A draft model: a smaller one of the same vocabulary says what may follow, and the model verifies all of it at once.

Its keys and values lie in blocks of its own. Behind a step they are kept as far as its tokens are those of the output.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.decoder.decoder import OpenRunner
from meshwright.serving.engine.proposer import Continuation, ProposalPlace
from meshwright.serving.engine.runner import Runner, StepInputs
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.specs.option import option

MOST_FED = 2048  # tokens of one step of the draft model, as of the scheduler's steps where nobody says


@dataclass(frozen=True)
class DraftModel:
    """A smaller model proposes what it would say."""

    model: str  # its folder, of the same tokenizer (simulated: also a preset)
    tokens: int = option(4, "Proposed to a sequence in a step, at most.", least=1)
    acceptance: float = option(0.0, "Share that is accepted, for simulated engines.", least=0)

    @property
    def draft(self) -> str:
        """The model."""
        return self.model

    def proposer(self, opened: OpenRunner, vocabulary_size: int) -> DraftProposer:
        """Loads the model. Raises what its engine raises."""
        return DraftProposer(opened(self.model), vocabulary_size)


@dataclass
class _Drafted:
    """What the draft model has of one sequence: its blocks, and the tokens in them."""

    blocks: list[int] = field(default_factory=list)
    fed: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))


class DraftProposer:
    """Args:
    runner: the draft model, which it closes.
    vocabulary_size: of the model that verifies; both may have names for no tokens at their ends (padding).
    """

    def __init__(self, runner: Runner, vocabulary_size: int) -> None:
        self._runner, self._vocabulary_size = runner, vocabulary_size
        self._pool = BlockPool(runner.num_blocks, runner.block_tokens)
        self._drafted: dict[Sequence, _Drafted] = {}

    def propose(self, asked: Items[ProposalPlace]) -> list[Continuation]:
        """See `Proposer`. Who finds no blocks here gets none."""
        proposals = [Continuation() for _ in asked]
        live = [place for place, each in enumerate(asked) if self._has_room(each)]
        if not live:
            return proposals
        drafters = {place: asked[place].drafter() for place in live}
        fed = {place: self._missing(asked[place]) for place in live}
        while live:
            states = [self._drafted[asked[place].sequence] for place in live]
            logits = self._fed(states, [fed[place] for place in live])
            for place, row in zip(live, logits, strict=True):
                token, drawn = drafters[place].draw(row)
                if token != NO_TOKEN:
                    proposals[place].add(token, drawn)
                fed[place] = np.array([token], np.int32)
            live = [
                place for place in live
                if fed[place][0] != NO_TOKEN and len(proposals[place].token_ids) < asked[place].most
            ]  # fmt: skip
        return proposals

    def forget(self, sequence: Sequence) -> None:
        """Its blocks are free."""
        state = self._drafted.pop(sequence, None)
        if state is not None:
            self._pool.give_back(state.blocks)

    def close(self) -> None:
        """Let go of the model."""
        self._runner.close()

    @property
    def num_held_blocks(self) -> int:
        """Of the draft model's."""
        return self._pool.num_held

    def _has_room(self, asked: ProposalPlace) -> bool:
        """Blocks for all that is known and proposed but the last."""
        num_tokens = len(asked.tokens) + asked.most - 1
        if num_tokens > self._runner.max_model_tokens:
            return False
        state = self._drafted.setdefault(asked.sequence, _Drafted())
        more = self._pool.blocks_for(num_tokens) - len(state.blocks)
        if more > self._pool.num_free:
            self.forget(asked.sequence)
            return False
        state.blocks += self._pool.take(max(0, more))
        return True

    def _missing(self, asked: ProposalPlace) -> NDArray[np.int32]:
        """What it has not computed of a sequence, at least the last token; what it has computed and did not come is gone."""
        state, tokens = self._drafted[asked.sequence], asked.tokens
        num = min(len(state.fed), len(tokens) - 1)
        differing = np.flatnonzero(state.fed[:num] != tokens[:num])
        num = int(differing[0]) if len(differing) else num
        state.fed = state.fed[:num]
        return tokens[num:].copy()

    def _fed(self, states: list[_Drafted], tokens: list[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Compute tokens of some sequences, in as many steps as it takes; logits ``[S, V]`` behind the last of each."""
        logits = np.full((len(states), self._vocabulary_size), -np.inf, np.float32)
        left = [(place, each) for place, each in enumerate(tokens)]
        while left:
            now, later, budget = [], [], MOST_FED
            for place, each in left:
                if budget:
                    now.append((place, each[:budget]))
                    each = each[budget:]
                    budget -= len(now[-1][1])
                if len(each):
                    later.append((place, each))
            found = self._runner.forward(self._inputs([(states[place], each) for place, each in now]))
            width = min(found.shape[1], self._vocabulary_size)
            logits[[place for place, _ in now], :width] = found[:, :width]
            left = later
        return logits

    def _inputs(self, work: list[tuple[_Drafted, NDArray[np.int32]]]) -> StepInputs:
        """Packed; counted as computed."""
        pasts = np.array([len(state.fed) for state, _ in work], np.int32)
        counts = np.array([len(tokens) for _, tokens in work], np.int32)
        needed = [self._pool.blocks_for(int(num)) for num in pasts + counts]
        held = [state.blocks[:num] for (state, _), num in zip(work, needed, strict=True)]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        for state, tokens in work:
            state.fed = np.concatenate([state.fed, tokens])
        return StepInputs(
            token_ids=np.concatenate([tokens for _, tokens in work]).astype(np.int64),
            positions=(np.arange(starts[-1]) - np.repeat(starts[:-1] - pasts, counts)).astype(np.int64),
            query_starts=starts, past_lengths=pasts,
            block_ids=np.array([block for blocks in held for block in blocks], np.int32),
            block_starts=np.concatenate([[0], np.cumsum(needed)]).astype(np.int32),
            max_context=int((pasts + counts).max()), rows=(starts[1:] - 1).astype(np.int64),
        )  # fmt: skip
