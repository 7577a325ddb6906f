"""The bytes of each token: what it adds to a text, read from how a tokenizer.json decodes.

Tokens of language models stand for bytes. Text made of the bytes of all tokens is the same whether it is decoded token by
token or at once, which a decoder that looks at neighbours does not promise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.specs.error import SpecError

BYTE_LEVEL, METASPACE, BYTE_FALLBACK, REPLACE, STRIP, SEQUENCE = (
    "ByteLevel", "Metaspace", "ByteFallback", "Replace", "Strip", "Sequence",
)  # fmt: skip
NEUTRAL = ("Fuse", STRIP)  # they join tokens, or take off what a beginning of a text has
_FALLBACK_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ByteForm(NamedTuple):
    """How a vocabulary writes bytes.

    Args:
        is_byte_level: every character stands for a byte (GPT-2's table); else tokens are text.
        space: the character that stands for a space in text; "": none does.
        has_fallback: are "<0x0A>" and its like single bytes?
        pads_front: does a text begin with a space that the tokenizer put there?
    """

    is_byte_level: bool
    space: str = ""
    has_fallback: bool = False
    pads_front: bool = False


def byte_form(decoder: Mapping[str, Any] | None, place: str) -> ByteForm:
    """Of the `decoder` of a tokenizer.json. Raises SpecError for one that does not decode token by token."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if BYTE_LEVEL in kinds:
        return ByteForm(is_byte_level=True)
    spaces = [space for step in steps if (space := _space(step))]
    known = {METASPACE, BYTE_FALLBACK, REPLACE, *NEUTRAL}
    if not spaces or not known.issuperset(kinds):
        raise SpecError(
            f"{place} decodes by {', '.join(map(str, kinds)) or 'nothing'}",
            allowed=f"{BYTE_LEVEL}, or {METASPACE} or {REPLACE} with {BYTE_FALLBACK}, as language models have them",
        )
    pads = any(
        step.get("prepend_scheme", "always") != "never"
        if step.get("type") == METASPACE
        else step.get("start", 0)
        for step in steps
        if step.get("type") in (METASPACE, STRIP)
    )
    return ByteForm(False, spaces[0], BYTE_FALLBACK in kinds, bool(pads))


def token_bytes(token: str, form: ByteForm) -> bytes:
    """Of a token of the vocabulary, which is none of the added ones."""
    if form.is_byte_level:
        found = [_BYTES.get(character) for character in token]
        return token.encode() if None in found else bytes(byte for byte in found if byte is not None)
    if form.has_fallback and (single := _FALLBACK_TOKEN.fullmatch(token)):
        return bytes([int(single[1], 16)])
    return token.replace(form.space, " ").encode()


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == SEQUENCE:
        return [step for one in decoder.get("decoders", ()) for step in _steps(one)]
    return [decoder]


def _space(step: Mapping[str, Any]) -> str:
    """The character that a step turns into a space; "": it does not."""
    if step.get("type") == METASPACE:
        return str(step.get("replacement", ""))
    if step.get("type") == REPLACE and step.get("content") == " ":
        return str(step.get("pattern", {}).get("String", ""))
    return ""


def _byte_level_table() -> dict[str, int]:
    """GPT-2's characters of bytes: printable ones of Latin-1 stand for themselves, the others follow behind 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_level_table()
