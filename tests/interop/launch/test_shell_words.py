"""Words of a shell script: quotes, comments, continued lines, expansions, operators."""

from __future__ import annotations

import pytest

from meshwright.interop.launch.shell_words import tokens


def shapes(text: str) -> list[str]:
    """Words with expansions in angle brackets; operators as they are."""
    return [
        token.operator
        or "".join(f"<{piece.text}>" if piece.is_expansion else piece.text for piece in token.word)
        for token in tokens(text)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' \"d e\" # rest", ["a", "b c", "d e"]),
        ("--x \\\n  --y", ["--x", "--y"]),
        ("A=( --x 1 )", ["A=", "(", "--x", "1", ")"]),
        ("a && b | c; d", ["a", "&&", "b", "|", "c", ";", "d"]),
        ('"$A/b" ${C:-"d e"} `i`', ["<$A>/b", '<${C:-"d e"}>', "<`i`>"]),
        ('$((E * 2)) $(f "g h")', ["<$((E * 2))>", '<$(f "g h")>']),
        ("'$A' \\$B x#y 5$ ", ["$A", "$B", "x#y", "5$"]),
        ("${A[@]} $@ $1", ["<${A[@]}>", "<$@>", "<$1>"]),
        ("${A", ["<${A>"]),
    ],
)  # fmt: skip
def test_words_are_cut_as_a_shell_cuts_them(text: str, expected: list[str]) -> None:
    assert shapes(text) == expected


def test_an_empty_word_in_quotes_is_a_word() -> None:
    assert len(list(tokens("a '' b"))) == 3
