"""What a request adds to its logits before a token is drawn: biases, then penalties for what was said, then its grammar."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.request.sampling_parameters import SamplingParameters


class TokenMask(Protocol):
    """What an output has to match, at the place where the output is."""

    def allowed(self) -> NDArray[np.bool_]:
        """``[V]``: the tokens that may follow."""
        ...

    def accept(self, token_id: int) -> None:
        """The token that follows."""
        ...

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow, one behind the other; the output stays where it is."""
        ...

    def fork(self) -> TokenMask:
        """Another one at the same place, which goes on by itself."""
        ...


class NothingAllowed:
    """Of an output that cannot be: no token may follow."""

    def __init__(self, vocabulary_size: int) -> None:
        self._allowed = np.zeros(vocabulary_size, np.bool_)

    def allowed(self) -> NDArray[np.bool_]:
        """``[V]``: none."""
        return self._allowed

    def accept(self, token_id: int) -> None:
        """None comes."""

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """None."""
        return 0

    def fork(self) -> NothingAllowed:
        """It never changes."""
        return self


class TokenAdjustment:
    """Adjusts one output's logits; knows what it has said. Costs a few operations on the tokens concerned, not on V."""

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        mask: TokenMask | None = None,
    ) -> None:
        """`output`: what was said before, as of an output that goes on somewhere else; `mask` has accepted it."""
        bias = dict(parameters.logit_bias)
        self._biased = np.fromiter(bias, np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._repetition = parameters.repetition_penalty
        self._frequency, self._presence = parameters.frequency_penalty, parameters.presence_penalty
        self._is_penalised = (self._repetition, self._frequency, self._presence) != (1.0, 0.0, 0.0)
        self._mask = mask
        # Tokens that were said and how often in the output, in the order in which they came; of the prompt 0 times.
        self._places: dict[int, int] = {}
        self._said = np.empty(0, np.int64)
        self._counts = np.empty(0, np.float32)
        if self._is_penalised:
            counts = Counter({int(token): 0 for token in prompt} if self._repetition != 1.0 else {})
            counts.update(map(int, output))
            self._places = {token: place for place, token in enumerate(counts)}
            self._said = np.fromiter(counts, np.int64, len(counts))
            self._counts = np.fromiter(counts.values(), np.float32, len(counts))

    @property
    def is_none(self) -> bool:
        """Does it change no logits, ever?"""
        return not (len(self._biased) or self._is_penalised or self._mask is not None)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these the grammar lets follow, one behind the other."""
        return len(token_ids) if self._mask is None else self._mask.num_allowed(token_ids)

    def fork(self) -> TokenAdjustment:
        """Of an output that said the same, and goes on by itself."""
        made = copy.copy(self)
        made._places, made._said, made._counts = dict(self._places), self._said.copy(), self._counts.copy()
        made._mask = None if self._mask is None else self._mask.fork()
        return made

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Change one row ``[V]`` in place."""
        logits[self._biased] += self._bias
        if self._is_penalised:
            number = len(self._places)
            ids, counts = self._said[:number], self._counts[:number]
            said = logits[ids]
            if self._repetition != 1.0:
                said = np.where(said > 0.0, said / self._repetition, said * self._repetition)
            logits[ids] = said - self._frequency * counts - self._presence * (counts > 0.0)
        if self._mask is not None:
            np.putmask(logits, ~self._mask.allowed(), -np.inf)

    def accept(self, token_id: int) -> None:
        """The token that was drawn."""
        if self._mask is not None:
            self._mask.accept(token_id)
        if not self._is_penalised:
            return
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._said):
            self._said = np.concatenate([self._said, np.zeros(place + 1, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(place + 1, np.float32)])
        self._said[place] = token_id
        self._counts[place] += 1.0
