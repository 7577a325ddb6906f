"""Cuts a shell script into commands of raw words: quotes, comments, continued lines, arrays and separators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SEPARATORS = (";", "\n", "&&", "||", "|", "&")
_CLOSERS = {"(": ")", "{": "}"}


class WordPart(NamedTuple):
    """A part of a word: literal text, or an expansion such as "$NAME" (with its dollar sign)."""

    text: str
    is_expansion: bool
    is_quoted: bool


Word = tuple[WordPart, ...]


class Token(NamedTuple):
    """A word, or an operator (its text in `operator`, no pieces)."""

    word: Word
    operator: str = ""


def tokens(text: str) -> Iterator[Token]:
    """Words and operators of a script in order; "(" and ")" stand alone only around an array or a subshell."""
    position, size = 0, len(text)
    while position < size:
        character = text[position]
        if text.startswith("\\\n", position):
            position += 2
        elif character in " \t\r":
            position += 1
        elif character == "#":
            end = text.find("\n", position)
            position = size if end < 0 else end
        elif text.startswith(
            "([", position
        ):  # a list of layers such as ([0]*3+[1]*58), written without quotes
            end = text.find(")", position)
            end = size if end < 0 else end + 1
            yield Token((WordPart(text[position:end], False, False),))
            position = end
        elif character in ";\n&|()":
            operator = next((two for two in ("&&", "||", ";;") if text.startswith(two, position)), character)
            yield Token((), operator)
            position += len(operator)
        else:
            word, position = _word(text, position)
            yield Token(word)


def _word(text: str, position: int) -> tuple[Word, int]:
    """The word that begins at `position`, and where it ends."""
    pieces: list[WordPart] = []
    quote, literal = "", ""
    while position < len(text):
        character = text[position]
        if not quote and character in " \t\r\n;&|()":
            break
        if character == "\\" and quote != "'" and position + 1 < len(text):
            literal += "" if text[position + 1] == "\n" else text[position + 1]
            position += 2
        elif character in "'\"" and quote in ("", character):
            pieces.append(WordPart(literal, False, bool(quote)))
            quote, literal, position = ("" if quote else character), "", position + 1
        elif character == "$" and quote != "'" and _begins_expansion(text, position):
            pieces.append(WordPart(literal, False, bool(quote)))
            end = _end_of_expansion(text, position)
            pieces.append(WordPart(text[position:end], True, bool(quote)))
            literal, position = "", end
        elif character == "`" and quote != "'":
            end = text.find("`", position + 1)
            end = len(text) if end < 0 else end + 1
            pieces += [WordPart(literal, False, bool(quote)), WordPart(text[position:end], True, bool(quote))]
            literal, position = "", end
        else:
            literal += character
            position += 1
    pieces.append(WordPart(literal, False, bool(quote)))
    return tuple(piece for piece in pieces if piece.text or piece.is_quoted), position


def _begins_expansion(text: str, position: int) -> bool:
    following = text[position + 1 : position + 2]
    return following.isalnum() or following in ("{", "(", "_", "@", "*", "#", "?")


def _end_of_expansion(text: str, position: int) -> int:
    """Where "$NAME", "${...}", "$(...)" or "$((...))" ends; at the end of the text where it is not closed."""
    opener = text[position + 1]
    if opener not in _CLOSERS:
        end = position + 2
        while opener.isalpha() or opener == "_":
            if end >= len(text) or not (text[end].isalnum() or text[end] == "_"):
                break
            end += 1
        return end
    depth, end = 0, position + 1
    while end < len(text):
        depth += (text[end] == opener) - (text[end] == _CLOSERS[opener])
        end += 1
        if depth == 0:
            break
    return end
