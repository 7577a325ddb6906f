"""The text form of what an output has to match, as `SamplingParameters.grammar` has it.

A JSON schema stands as it is (``{"type": "object"}`` is any object); other kinds have their name and a colon in front:
``regex:[0-9]+``, ``lark:start: "yes" | "no"``, ``gbnf:root ::= "yes" | "no"``.
"""

from __future__ import annotations

from typing import NamedTuple

JSON_SCHEMA, REGEX, LARK, GBNF = "json_schema", "regex", "lark", "gbnf"
PREFIXED = (REGEX, LARK, GBNF)
JSON_OBJECT = '{"type":"object"}'


class GrammarText(NamedTuple):
    """Of which kind a grammar is, and what it says."""

    kind: str
    body: str


def grammar_text(text: str) -> GrammarText:
    """A text form, taken apart."""
    kind, colon, body = text.partition(":")
    return GrammarText(kind, body) if colon and kind in PREFIXED else GrammarText(JSON_SCHEMA, text)
