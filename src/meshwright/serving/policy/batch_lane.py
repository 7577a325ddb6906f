"""A lane: sequences that run together, step by step. An engine has one, or as many as it has pipeline stages."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from meshwright.serving.policy.sequence import Sequence


class BatchLane:
    """Who prefills and who decodes in it. All that decode grow by one token a step, so nobody's length is written down:
    it follows from the step at which a sequence entered. Who needs one more block in a step is found by the step's phase.
    What a sequence got beyond one token (proposals that were accepted) is told when the step has run (`lengthen`).
    """

    def __init__(self, number: int, block_tokens: int) -> None:
        self.number = number
        self.step = 0  # of the next batch
        self.prefilling: dict[Sequence, None] = {}  # in the order of their admission, as below
        self.decoding: dict[Sequence, None] = {}
        self.context = 0  # tokens of all that decode, at the next step
        self._block_tokens = block_tokens
        self._due: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]
        self._ends: list[
            tuple[int, int, Sequence]
        ] = []  # a heap: (`_end`, order, who); some have left, or end sooner

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks for it."""
        return len(self.prefilling) + len(self.decoding)

    def length(self, sequence: Sequence) -> int:
        """Tokens of one that decodes: at the next step it computes the last of them."""
        return sequence.num_tokens + self.step - sequence.entered

    def enter(self, sequence: Sequence, step: int) -> None:
        """It decodes from `step` on, when it has its `num_tokens`."""
        sequence.entered = step
        self.decoding[sequence] = None
        self.context += self.length(sequence)
        self._note(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It decodes no longer; `num_tokens` is what it has."""
        del self.decoding[sequence]
        del self._due[self._phase(sequence)][sequence]
        length = self.length(sequence)
        self.context -= length
        sequence.num_tokens = length

    def lengthen(self, sequence: Sequence, num_tokens: int) -> None:
        """One that decodes got so many tokens beyond one a step."""
        del self._due[self._phase(sequence)][sequence]
        sequence.num_tokens += num_tokens
        self.context += num_tokens
        self._note(sequence)

    def complete(self) -> Iterator[Sequence]:
        """Who decodes and has all its tokens given out: the next step is not for it. Each leaves before the next is asked."""
        ends = self._ends
        while ends and ends[0][0] <= self.step:
            end, _, sequence = heapq.heappop(ends)
            if sequence in self.decoding and self._end(sequence) == end:
                yield sequence

    def due(self) -> dict[Sequence, None]:
        """Who computes the first token of a block at the next step."""
        return self._due[self.step % self._block_tokens]

    def due_during(self, num_steps: int) -> Iterator[Sequence]:
        """The same for the next `num_steps` steps, in their order."""
        due, size = self._due, self._block_tokens
        for step in range(self.step, self.step + num_steps):
            yield from due[step % size]

    def advance(self, num_steps: int = 1) -> None:
        """Steps are given out."""
        self.step += num_steps
        self.context += num_steps * len(self.decoding)

    def _note(self, sequence: Sequence) -> None:
        """When it needs blocks, and when it has all it may have."""
        self._due[self._phase(sequence)][sequence] = None
        heapq.heappush(self._ends, (self._end(sequence), sequence.order, sequence))

    @staticmethod
    def _end(sequence: Sequence) -> int:
        """The step at which it has as many tokens as it may have."""
        return sequence.entered + sequence.most_tokens - sequence.num_tokens

    def _phase(self, sequence: Sequence) -> int:
        return (sequence.entered + 1 - sequence.num_tokens) % self._block_tokens
