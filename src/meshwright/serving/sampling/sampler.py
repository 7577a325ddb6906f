"""Draws the next tokens of a batch: a row of parameters for every output that runs, and one call a step.

Shapes: R rows of a step, V vocabulary.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.sampling.inverse_draw import NO_TOKEN, drawn_by_inverse, drawn_of_few
from meshwright.serving.sampling.kept_tokens import is_filtered, kept_tokens
from meshwright.serving.sampling.keyed_uniform import keyed_uniforms, stream_key
from meshwright.serving.sampling.logprobs import TopLogprobs, logprob_offset, top_logprobs
from meshwright.serving.sampling.proposed_token import ProposedToken, taken_or_replaced
from meshwright.serving.sampling.token_adjustment import TokenAdjustment, TokenMask
from meshwright.specs.error import SpecError

# Kinds of rows. Open: every token may come. Proposed, for one draw: there is a token that was drawn from something else.
GREEDY_ROW, ADJUSTED_GREEDY_ROW, OPEN_ROW, FILTERED_ROW, PROPOSED_ROW = range(5)
SEED_BITS = 63
FIRST_CAPACITY = 16  # rows
CHUNK_BYTES = 2**20  # logits that are worked on at a time: what a core's own cache holds
MOST_LOGPROBS = 20  # as the field's APIs have it


@dataclass(slots=True)
class Drawn:
    """What a step drew.

    Args:
        token_ids: ``[R]``, int64. `NO_TOKEN` where nothing can be drawn: logits that are no numbers, or a grammar that allows
            nothing more.
        logprobs: ``[R]``, float32: of the drawn tokens, under the model's own distribution (`logprobs`); NaN where the
            request asks for none.
        top: for each row its `num_logprobs` best tokens, None where it asks for none; () where nobody does.
    """

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    top: Sequence[TopLogprobs | None] = ()


class Sampler:
    """Rows of outputs that run, and their next tokens.

    Token t of output i of a request is drawn with key (seed, i, t), and is a function of its own logits only: the same in
    every batch. The order is: biases, penalties, grammar, temperature, min-p and top-k, top-p.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self._free: list[int] = []
        self._parameters: list[SamplingParameters] = []
        self._adjustments: list[TokenAdjustment | None] = []
        self._kinds = np.zeros(0, np.int8)
        self._temperatures = np.zeros(0, np.float32)
        self._keys = np.zeros(0, np.uint64)
        self._draft_keys = np.zeros((0, 2), np.uint64)  # of what others propose, and of whether it is taken
        self._positions = np.zeros(0, np.uint64)  # of the next token in its output
        self._num_logprobs = np.zeros(0, np.int64)  # -1: none are asked for

    def add(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        output_number: int = 0,
        mask: TokenMask | None = None,
    ) -> int:
        """A row for an output that begins, or goes on.

        Args:
            parameters: of its request. Without a seed, one is drawn.
            prompt: its tokens, for the repetition penalty.
            output: tokens that it has already; the next one drawn is the one behind them.
            output_number: which of the request's outputs it is.
            mask: of its grammar, which has accepted `output`.

        Raises SpecError as `check`.
        """
        check(parameters, self.vocabulary_size)
        row = self._free.pop() if self._free else self._grown()
        adjustment = TokenAdjustment(parameters, prompt, output, mask)
        is_adjusted = not adjustment.is_none
        if parameters.is_greedy:
            kind = ADJUSTED_GREEDY_ROW if is_adjusted else GREEDY_ROW
        else:
            kind = FILTERED_ROW if is_filtered(parameters) else OPEN_ROW
        seed = secrets.randbits(SEED_BITS) if parameters.seed is None else parameters.seed
        self._parameters[row] = parameters
        self._adjustments[row] = adjustment if is_adjusted else None
        self._kinds[row], self._temperatures[row] = kind, parameters.temperature
        self._keys[row], self._positions[row] = stream_key(seed, output_number), len(output)
        self._draft_keys[row] = [stream_key(seed, output_number, purpose) for purpose in ("draft", "accept")]
        self._num_logprobs[row] = -1 if parameters.num_logprobs is None else parameters.num_logprobs
        return row

    def remove(self, row: int) -> None:
        """Let go of a row; its number is given to another output."""
        self._adjustments[row] = None
        self._free.append(row)

    def draw(
        self,
        rows: NDArray[np.int64],
        logits: NDArray[np.float32],
        proposed: Sequence[ProposedToken | None] = (),
    ) -> Drawn:
        """The next token of every row, which is behind it from now on.

        Args:
            rows: ``[R]``: as `add` gave them, each once.
            logits: ``[R, V]``, which stay as they are.
            proposed: ``[R]``, or none: what `Drafter.draw` drew for this place of rows that are not greedy. It comes where
                it may, and what comes is distributed as without it.
        """
        kinds = self._kinds[rows]
        given = {place: each for place, each in enumerate(proposed) if each is not None}
        kinds[list(given)] = PROPOSED_ROW
        if kinds.any():
            token_ids = self._drawn_by_kind(rows, kinds, logits, given)
            self._accept(rows, token_ids)
        else:
            token_ids = drawn_plainly(logits.argmax(axis=1), logits).token_ids
        self._positions[rows] += np.uint64(1)
        logprobs, top = self._logprobs(rows, token_ids, logits)
        return Drawn(token_ids, logprobs, top)

    def are_plain(self, rows: NDArray[np.int64]) -> bool:
        """Is the largest logit of each row its next token, and nothing else asked for? Then `drawn_plainly` may draw."""
        return not (self._kinds[rows].any() or (self._num_logprobs[rows] >= 0).any())

    def num_allowed(self, row: int, token_ids: Sequence[int]) -> int:
        """How many of these tokens its grammar lets follow, one behind the other."""
        adjustment = self._adjustments[row]
        return len(token_ids) if adjustment is None else adjustment.num_allowed(token_ids)

    def drafter(self, row: int) -> Drafter:
        """What draws proposals for a row from another model's logits."""
        adjustment = self._adjustments[row]
        return Drafter(
            self._parameters[row], self._draft_keys[row, 0], int(self._positions[row]),
            adjustment.fork() if adjustment else None,
        )  # fmt: skip

    def _grown(self) -> int:
        """A row of new ones."""
        begin = len(self._parameters)
        more = max(FIRST_CAPACITY, begin)
        for name in ("_kinds", "_temperatures", "_keys", "_draft_keys", "_positions", "_num_logprobs"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]))
        self._parameters += [SamplingParameters()] * more
        self._adjustments += [None] * more
        self._free += range(begin + more - 1, begin, -1)
        return begin

    def _drawn_by_kind(
        self,
        rows: NDArray[np.int64],
        kinds: NDArray[np.int8],
        logits: NDArray[np.float32],
        proposed: Mapping[int, ProposedToken],
    ) -> NDArray[np.int64]:
        token_ids = np.empty(len(rows), np.int64)
        uniforms = keyed_uniforms(self._keys[rows], self._positions[rows])
        opens = np.flatnonzero(kinds == OPEN_ROW)
        at_once = max(1, CHUNK_BYTES // logits[:1].nbytes)
        for begin in range(0, len(opens), at_once):
            chunk = opens[begin : begin + at_once]
            chosen = rows[chunk]
            adjusted = np.take(logits, chunk, axis=0)
            for row, row_logits in zip(chosen.tolist(), adjusted, strict=True):
                if (adjustment := self._adjustments[row]) is not None:
                    adjustment.apply(row_logits)
            token_ids[chunk] = drawn_by_inverse(adjusted, self._temperatures[chosen], uniforms[chunk])
        for place in np.flatnonzero(kinds != OPEN_ROW).tolist():
            token_ids[place] = self._drawn_alone(
                int(rows[place]), logits[place], float(uniforms[place]), proposed.get(place)
            )
        return token_ids

    def _drawn_alone(
        self, row: int, logits: NDArray[np.float32], uniform: float, proposed: ProposedToken | None
    ) -> int:
        """Of a row that is greedy, filtered, or has a proposal."""
        if (adjustment := self._adjustments[row]) is not None:
            logits = logits.copy()
            adjustment.apply(logits)
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            return NO_TOKEN
        if self._parameters[row].is_greedy:
            return best
        kept = kept_tokens(logits, self._parameters[row])
        if proposed is None:
            return drawn_of_few(*kept, uniform)
        accepting = keyed_uniforms(self._draft_keys[row, 1:], self._positions[row : row + 1])[0]
        return taken_or_replaced(kept, proposed, float(accepting), uniform)

    def _accept(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
            adjustment = self._adjustments[row]
            if adjustment is not None and token_id != NO_TOKEN:
                adjustment.accept(token_id)

    def _logprobs(
        self, rows: NDArray[np.int64], token_ids: NDArray[np.int64], logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], Sequence[TopLogprobs | None]]:
        logprobs = np.full(len(rows), np.nan, np.float32)
        counts = self._num_logprobs[rows]
        asked = np.flatnonzero((counts >= 0) & (token_ids != NO_TOKEN))
        if not len(asked):
            return logprobs, ()
        top: list[TopLogprobs | None] = [None] * len(rows)
        for place in asked.tolist():
            offset = logprob_offset(logits[place])
            logprobs[place] = logits[place, token_ids[place]] - offset
            top[place] = top_logprobs(logits[place], offset, int(counts[place]))
        return logprobs, top


class Drafter:
    """Draws tokens that are proposed for one row, from another model's logits, as the row draws its own: with its adjustments
    for what was said and proposed before, its temperature and its filters. Its numbers are of a key of their own.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        key: np.uint64,
        position: int,
        adjustment: TokenAdjustment | None,
    ) -> None:
        self._parameters, self._key, self._position = parameters, key, position
        self._adjustment = adjustment

    def draw(self, logits: NDArray[np.float32]) -> tuple[int, ProposedToken | None]:
        """From ``[V]``: the token, `NO_TOKEN` where none can come; and what it was drawn from where the row is not greedy."""
        logits = logits.copy()
        if self._adjustment is not None:
            self._adjustment.apply(logits)
        token, proposed = int(logits.argmax()), None
        if not np.isfinite(logits[token]):
            return NO_TOKEN, None
        if not self._parameters.is_greedy:
            kept = kept_tokens(logits, self._parameters)
            uniform = keyed_uniforms(np.array([self._key]), np.array([self._position], np.uint64))[0]
            token = drawn_of_few(*kept, float(uniform))
            proposed = ProposedToken(token, kept)
        self._position += 1
        if self._adjustment is not None:
            self._adjustment.accept(token)
        return token, proposed


def drawn_plainly(best: NDArray[np.int64], logits: NDArray[np.float32]) -> Drawn:
    """Of plain rows (`Sampler.are_plain`), whose largest of ``logits [R, V]`` are ``best [R]``."""
    is_whole = np.isfinite(logits[np.arange(len(best)), best])
    return Drawn(np.where(is_whole, best, NO_TOKEN), np.full(len(best), np.nan, np.float32))


def check(parameters: SamplingParameters, vocabulary_size: int) -> None:
    """Can a model of this vocabulary be sampled so? Raises SpecError."""
    for token_id, bias in parameters.logit_bias:
        if not 0 <= token_id < vocabulary_size or not np.isfinite(bias):
            raise SpecError(
                f"logit_bias {bias} of token {token_id}",
                allowed=f"finite biases of tokens 0 to {vocabulary_size - 1}, the model's",
            )
    if parameters.num_logprobs is not None and not 0 <= parameters.num_logprobs <= MOST_LOGPROBS:
        raise SpecError(
            f"log-probabilities of {parameters.num_logprobs} tokens", allowed=f"0 to {MOST_LOGPROBS}"
        )
    if parameters.grammar and parameters.ignore_eos:
        raise SpecError(
            "ignore_eos beside a grammar: what the grammar describes has an end",
            next="leave out one of both",
        )
