"""The process that tries grammars before a server takes them, over a vocabulary of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.serving.confined.answering import Answerer, Refused, answer_lines
from meshwright.serving.sampling.grammar.compiled import LibraryVocabulary, begun_matcher, source_of
from meshwright.serving.sampling.grammar.grammar_text import grammar_text

NUM_BYTE_VALUES = 256


def began(first: Mapping[str, Any]) -> Answerer:
    """What gives a grammar's source, once it has been compiled."""
    tokens = [bytes([value]) for value in range(NUM_BYTE_VALUES)] + [b"<end>"]
    vocabulary = LibraryVocabulary(
        tokens, [NUM_BYTE_VALUES], [NUM_BYTE_VALUES], lambda text: list(text.encode())
    )
    tokenizer = vocabulary.tokenizer()

    def tried(values: Mapping[str, Any]) -> str:
        try:
            source = source_of(grammar_text(values["text"]))
            begun_matcher(tokenizer, source)
        except ValueError as error:
            raise Refused(str(error)) from error
        return source

    return tried


if __name__ == "__main__":
    answer_lines(began)
