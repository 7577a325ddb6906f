"""Outputs as text while they grow: the same as at once, whole characters only, and cut before what stops them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.text.text_folders import KINDS, write_folder

from meshwright.serving.text.output_text import OutputText
from meshwright.serving.text.stop_texts import MOST_CHARACTERS, MOST_STOPS, StopTexts
from meshwright.serving.text.tokenizer import FileTokenizer
from meshwright.specs.error import SpecError

REPLACED = "\ufffd"
FEW = st.text("ab😀", max_size=25)
STOPS = st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory) -> FileTokenizer:
    return FileTokenizer(write_folder(tmp_path_factory.mktemp("model"), request.param))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 420), max_size=40))
def test_any_tokens_are_the_same_text_piece_by_piece_as_at_once(tokenizer, token_ids) -> None:
    growing = OutputText(tokenizer.token_bytes)
    pieces = [*map(growing.add, token_ids), growing.end()]
    assert "".join(pieces) == b"".join(map(tokenizer.token_bytes, token_ids)).decode(errors="replace")


@settings(max_examples=40)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_no_piece_has_half_a_character(tokenizer, text) -> None:
    text = text.replace(REPLACED, "")
    growing = OutputText(tokenizer.token_bytes)
    pieces = [growing.add(one) for one in tokenizer.encode(text, adds_special=False)]
    assert not any(REPLACED in piece for piece in pieces) and growing.end() == ""
    assert "".join(pieces).removeprefix(" " * tokenizer.pads_front) == text


def test_what_is_cut_off_within_a_character_is_told_at_the_end() -> None:
    growing = OutputText(lambda token: bytes([token]))
    assert [growing.add(byte) for byte in "é😀".encode()[:4]] == ["", "é", "", ""]
    assert growing.end() == REPLACED


def stopped_at_once(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The obvious rule: the stop text that is complete first, of those the longest."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=40)
@given(FEW, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_an_output_is_cut_at_the_same_place_in_whatever_pieces_it_comes(text, stops, cuts) -> None:
    data = text.encode()
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[begin:end] for begin, end in zip(borders, borders[1:], strict=False)]
    growing = OutputText(lambda number: pieces[number], stops)
    said = ""
    for number in range(len(pieces)):
        said += growing.add(number)
        assert not any(stop in said for stop in stops)
    said += growing.end()
    assert (said, growing.stopped) == stopped_at_once(text, stops)


def test_what_may_become_a_stop_text_is_held_and_no_more_than_that() -> None:
    watched = StopTexts(["\n\nEnd", "###"])
    assert [watched.add(text) for text in ("a\n", "\nE", "x#", "#b", "##", "#c")] == [
        "a", "", "\n\nEx", "##b", "", "",
    ]  # fmt: skip
    assert watched.stopped == "###" and watched.add("more") == "" and watched.end() == ""


@pytest.mark.parametrize("stops", [[""], ["a"] * (MOST_STOPS + 1), ["a" * (MOST_CHARACTERS + 1)]])
def test_stop_texts_have_bounds(stops) -> None:
    with pytest.raises(SpecError, match="allowed: at most 16"):
        StopTexts(stops)
