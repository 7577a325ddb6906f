"""Texts that strangers chose, in one visible line: no line breaks, terminal escapes or characters that turn a line around."""

from __future__ import annotations

from meshwright.specs.error import SpecError

UNSEEN = "\N{REPLACEMENT CHARACTER}"  # stands for a character that shows nothing of itself
BREAKS = "\n\t"  # what lays a longer text out


def check_printable(what: str, text: str) -> None:
    """A name that goes into tables, comments and scripts. Raises SpecError with the first character that cannot be."""
    found = next((each for each in text if not each.isprintable()), None)
    if found is not None:
        raise SpecError(
            f"{what} {text!r} has the character {ascii(found)}",
            allowed="one line of visible characters",
            next="name it otherwise",
        )


def printable(text: str, keep: str = "") -> str:
    """The text with a mark for every character that shows nothing of itself, those in `keep` aside."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else UNSEEN for each in text)
