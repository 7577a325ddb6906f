"""Grammars of requests: tried in a process that can be given up, compiled once, kept as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.confined.confined_process import AnswerBounds, ConfinedProcess
from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.sampling.grammar.compiled import LibraryVocabulary, begun_matcher
from meshwright.serving.sampling.grammar.grammar_text import grammar_text
from meshwright.specs.error import SpecError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WORKER_MODULE = "meshwright.serving.sampling.grammar.grammar_worker"
MOST_CHARACTERS = 64 << 10  # of a grammar
MOST_KEPT = 64  # compiled grammars


class TokenVocabulary(Protocol):
    """Of a model's tokenizer, what grammars need."""

    vocabulary_size: int
    end_ids: tuple[int, ...]
    special_ids: frozenset[int]

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """Tokens of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text."""
        ...


class GrammarMask:
    """One output under its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        """`matcher`: at its beginning, and nobody else's. `vocabulary_size`: of the model, which may have more tokens."""
        self._matcher = matcher
        self._allowed = np.zeros(vocabulary_size, np.bool_)

    def allowed(self) -> NDArray[np.bool_]:
        """``[V]``, valid until the next call. None of them, once the grammar got beyond a bound: the output has failed."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        known = min(len(bits), len(self._allowed))
        self._allowed[:known] = bits[:known]
        if self._matcher.is_error():
            self._allowed[:] = False
        return self._allowed

    def accept(self, token_id: int) -> None:
        """The token that follows; one that does not match is an error, and nothing is allowed behind it."""
        self._matcher.consume_token(token_id)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow, one behind the other."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def fork(self) -> GrammarMask:
        """Another one at the same place."""
        return GrammarMask(self._matcher.deep_copy(), len(self._allowed))

    @property
    def is_complete(self) -> bool:
        """Does the output match as it is?"""
        return not self._matcher.is_error() and self._matcher.is_accepting()


class Grammars:
    """All grammars of a model's requests. Methods may be called from several threads; close it, for its process.

    Args:
        vocabulary: of its tokenizer.
        model_vocabulary_size: the model's logits, which may be more.
        bounds: of one grammar.
    """

    def __init__(
        self, vocabulary: TokenVocabulary, model_vocabulary_size: int, bounds: AnswerBounds | None = None
    ) -> None:
        self._vocabulary, self._size = vocabulary, model_vocabulary_size
        self._bounds = bounds or AnswerBounds()
        self._starting, self._keeping = threading.Lock(), threading.Lock()
        self._process: ConfinedProcess | None = None
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()  # the one used last is last

    @property
    def num_kept(self) -> int:
        """Compiled grammars that are kept."""
        return len(self._kept)

    def check(self, text: str) -> None:
        """Compile a grammar, for the requests that follow.

        Raises SpecError: it is too large, no grammar, matched by nothing, or takes more time or memory than allowed.
        """
        self._compiled(text)

    def mask_of(self, parameters: SamplingParameters) -> GrammarMask | None:
        """For one new output; None: its request has no grammar. Quick behind `check`. Raises SpecError as it."""
        if not parameters.grammar:
            return None
        return GrammarMask(self._compiled(parameters.grammar).deep_copy(), self._size)

    def close(self) -> None:
        """End the process."""
        with self._starting:
            if self._process is not None:
                self._process.close()
            self._process = None

    def _compiled(self, text: str) -> LLMatcher:
        if len(text) > MOST_CHARACTERS:
            raise SpecError(f"a grammar of {len(text)} characters", allowed=f"at most {MOST_CHARACTERS}")
        with self._keeping:
            found = self._kept.get(text)
        if found is None:
            found = self._tried(text)
        with self._keeping:
            self._kept[text] = found
            self._kept.move_to_end(text)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found

    def _tried(self, text: str) -> LLMatcher:
        """A grammar that compiles where nothing can go wrong is compiled here, too. Raises SpecError."""
        process, tokenizer = self._begun()
        said = f"the {grammar_text(text).kind} cannot be used"
        source = process.ask({"text": text}, said)
        try:
            return begun_matcher(tokenizer, source)
        except ValueError as error:
            raise SpecError(f"{said}: {error}") from error

    def _begun(self) -> tuple[ConfinedProcess, LLTokenizer]:
        """What the first grammar needs. Raises SpecError."""
        with self._starting:
            if self._tokenizer is None:
                self._tokenizer = self._library_tokenizer()
            if self._process is None:
                self._process = ConfinedProcess(WORKER_MODULE, {}, self._bounds, "grammars cannot be tried")
            return self._process, self._tokenizer

    def _library_tokenizer(self) -> LLTokenizer:
        known = self._vocabulary
        if not known.end_ids:
            raise SpecError(
                "the model has no end of text, behind which an output that matches a grammar could end",
                next="name it as eos_token_id in generation_config.json",
            )
        tokens = [known.token_bytes(token_id) for token_id in range(known.vocabulary_size)]
        return LibraryVocabulary(
            tokens, sorted(known.special_ids), known.end_ids, lambda text: known.encode(text, False)
        ).tokenizer()
