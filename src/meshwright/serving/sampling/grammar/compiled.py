"""Grammars as llguidance compiles them: one place for its options and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.serving.sampling.grammar.grammar_text import GBNF, JSON_SCHEMA, REGEX, GrammarText
from meshwright.specs.error import SpecError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# The library's own bounds. It says: 14,000 units of fuel or 20,000 items take a millisecond, a state 1 to 2 kB.
LIMITS = {
    "max_items_in_row": 20_000,  # its 2,000 break off objects of a few hundred optional properties
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
# Between the parts of JSON. Without a bound a model may say spaces for ever.
JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,40}"}


class LibraryVocabulary:
    """Tokens, as the library wants them told."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Sequence[int],
        end_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        """`encode`: how the tokenizer itself writes a text that has no choice."""
        self.tokens, self.special_token_ids = list(tokens), list(special_ids)
        self.eos_token_id = end_ids[0]
        self._end_ids, self._encode = list(end_ids), encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())

    def tokenizer(self) -> LLTokenizer:
        """The same as the library has it."""
        found: LLTokenizer = library().LLTokenizer(self, eos_token=self._end_ids)
        return found


def library() -> Any:
    """llguidance. Raises SpecError where it is not installed."""
    try:
        import llguidance
        import llguidance.gbnf_to_lark
    except ImportError as error:
        raise SpecError(
            "output that matches a grammar needs the package llguidance",
            next="pip install 'meshwright[serve]'",
        ) from error
    return llguidance


def source_of(text: GrammarText) -> str:
    """A grammar in the library's own form. Raises ValueError for one that cannot be read."""
    matcher = library().LLMatcher
    if text.kind == JSON_SCHEMA:
        return str(matcher.grammar_from_json_schema(text.body, overrides=JSON_OPTIONS))
    if text.kind == REGEX:
        return str(matcher.grammar_from_regex(text.body))
    return str(matcher.grammar_from_lark(_lark_of_gbnf(text.body) if text.kind == GBNF else text.body))


def begun_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """A matcher before the first token. Raises ValueError: it is no grammar, or nothing matches it."""
    limits = library().LLParserLimits(**LIMITS)
    matcher: LLMatcher = library().LLMatcher(tokenizer, source, limits=limits, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(_told(matcher.get_error()))
    return matcher


def _lark_of_gbnf(body: str) -> str:
    """Raises ValueError."""
    try:
        return str(library().gbnf_to_lark.gbnf_to_lark(body))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(str(error)) from error


def _told(error: str) -> str:
    """The library's words, without its marks."""
    words = " ".join(error.replace("<non-verbose/>", "").split())
    return "nothing matches it" if words.startswith("NoExtension") else words
