"""What followed the last tokens before is proposed: the longest end that came before, where it came last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from meshwright.serving.decoder.decoder import decoder_of
from meshwright.serving.decoder.ngram import what_followed
from meshwright.specs.error import PlanError


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 9, 2, 3], 4, [9, 2, 3]),
        ([5, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 1, [8]),  # the place that came last
        ([5, 2, 7, 2, 2], 3, [7, 2, 2]),  # a place behind which there are as many as asked for
        ([1, 2, 3], 4, []),
        ([7], 4, []),
        ([7, 7], 4, [7]),
    ],
)
def test_what_followed_is_proposed(tokens: list[int], most: int, expected: list[int]) -> None:
    assert what_followed(np.array(tokens, np.int32), 3, 1, most) == expected


@given(some.lists(some.integers(0, 3), min_size=1, max_size=20), some.integers(1, 4), some.integers(1, 5))
def test_it_is_what_obvious_code_finds(tokens: list[int], longest: int, most: int) -> None:
    expected: list[int] = []
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        begins = [at + size for at in range(len(tokens) - size) if tokens[at : at + size] == tokens[-size:]]
        if begins:
            whole = [at for at in begins if at + most <= len(tokens)]
            expected = tokens[(whole or begins)[-1] :][:most]
            break
    assert what_followed(np.array(tokens, np.int32), longest, 1, most) == expected


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("ngram(tokens=0)", "1 or more"),
        ("ngram(longest=1, shortest=2)", "shortest <= longest"),
        ("ngram(acceptance=1.5)", "acceptance"),
        ("draft(tokens=4)", "model"),
        ("medusa", "medusa"),
    ],
)
def test_what_is_no_decoder_is_refused(reference: str, words: str) -> None:
    import meshwright.catalog  # noqa: F401  which finds names

    with pytest.raises(PlanError, match=words):
        decoder_of(reference)
