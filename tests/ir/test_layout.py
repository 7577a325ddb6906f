"""Layouts: the table of exchanges, its transposes and duals are one law, and a text of them is read as it is written."""

from __future__ import annotations

import pytest

from meshwright.ir.layout import (
    DUAL,
    ENTER,
    LAYOUTS,
    MAPS,
    SEND,
    TRANSPOSES,
    dual,
    entered,
    fits,
    layouts_of,
    maps,
    operation_of,
    transposed,
    turned,
)
from meshwright.ir.table import Exchange
from meshwright.specs.error import ProgramError

TABLE = [  # design: forward, maps, transpose
    ("all_gather", "split", "shared", "reduce_scatter"),
    ("reduce_scatter", "partial", "split", "all_gather"),
    ("all_reduce", "partial", "copied", None),
    (ENTER, "copied", "shared", "all_reduce"),
    ("all_to_all", "split", "split", "all_to_all"),
    (SEND, "split", "split", SEND),
]


@pytest.mark.parametrize("name, taken, made, transpose", TABLE)
def test_lines_of_the_table(name: str, taken: str, made: str, transpose: str | None) -> None:
    assert MAPS[name][0] == (taken, made)
    assert TRANSPOSES[name] == transpose


@pytest.mark.parametrize("name", list(TRANSPOSES))
def test_a_transpose_maps_the_dual_of_what_was_made_to_the_dual_of_what_was_taken(name: str) -> None:
    taken, made = MAPS[name][0]
    opposite = TRANSPOSES[name]
    if opposite is None:
        assert DUAL[made] == DUAL[taken], "no exchange: the gradient lies as it has to"
    else:
        assert (DUAL[made], DUAL[taken]) in MAPS[opposite]


def test_duals() -> None:
    assert [DUAL[each] for each in LAYOUTS] == ["split", "copied", "copied", "partial"]
    assert dual("tp:shared cp:split") == "tp:partial cp:split"
    assert dual("") == ""


def test_what_is_copied_may_be_read_as_shared_and_not_the_reverse() -> None:
    allowed = {(has, needs) for has in LAYOUTS for needs in LAYOUTS if fits(has, needs)}
    assert allowed == {(each, each) for each in LAYOUTS} | {("copied", "shared")}


@pytest.mark.parametrize(
    "operation, taken, made, is_so",
    [
        ("all_to_all", "split(tokens)", "split(heads)", True),
        ("all_to_all", "split(tokens)", "split(tokens)", False),
        ("all_to_all", "split", "split", False),
        (SEND, "split(tokens)", "split(tokens)", True),
        (SEND, "split(tokens)", "split(heads)", False),
        (SEND, "split(tokens)", "split(tokens)+1", False),
        ("all_gather", "split(tokens)", "shared", True),
        ("all_gather", "split(tokens)+1", "shared", False),
        ("reduce_scatter", "partial", "split(hidden)", True),
        ("reduce_scatter", "partial", "split(hidden)+1", False),
    ],
)
def test_of_what_is_split_the_dimension_and_the_turn_count(
    operation: str, taken: str, made: str, is_so: bool
) -> None:
    assert maps(operation, taken, made) == is_so


def test_a_message_turns_parts_around_the_axis() -> None:
    assert maps(SEND, "split(tokens)", "split(tokens)+1", (1, 4))
    assert maps(SEND, "split(tokens)+3", "split(tokens)", (1, 4))
    assert maps(SEND, "split(tokens)", "split(tokens)+3", (-1, 4))
    assert not maps(SEND, "split(tokens)", "split(tokens)+2", (1, 4))
    assert turned("tp:split(heads) cp:split(tokens)+2", "cp", 2, 3) == "tp:split(heads) cp:split(tokens)+1"
    assert turned("tp:split(heads)", "cp", 1, 3) == "tp:split(heads)"
    assert dual("cp:split(tokens)+2 tp:shared") == "cp:split(tokens)+2 tp:partial"


@pytest.mark.parametrize(
    "text",
    [
        *("tp", "tp:whole", ":split", "tp:split tp:copied"),
        *("tp:partial(tokens)", "tp:copied+1", "tp:split()"),
    ],
)
def test_a_text_that_says_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="each axis once"):
        layouts_of(text)


@pytest.mark.parametrize(
    "algorithm, operation",
    [
        ("ring", "all_reduce"),
        ("all_to_all.top8", "all_to_all"),
        ("ring_all_gather/2", "all_gather"),
        ("all_reduce.two_level", "all_reduce.two_level"),
        ("all_gather.canonical", "all_gather.canonical"),
    ],
)
def test_an_algorithm_names_its_operation(algorithm: str, operation: str) -> None:
    assert operation_of(algorithm) == operation


@pytest.mark.parametrize("algorithm", ["", "gossip"])
def test_an_algorithm_that_nobody_knows_is_refused(algorithm: str) -> None:
    with pytest.raises(ProgramError, match="of which nobody knows what it makes"):
        operation_of(algorithm)


def test_exchanges_are_transposed() -> None:
    assert transposed(Exchange(("tp",), algorithm="all_gather.bidirectional")) == Exchange(
        ("tp",), algorithm="reduce_scatter.bidirectional"
    )
    assert transposed(Exchange(("tp",), algorithm="ring")) is None
    assert transposed(Exchange(("cp",), shift=1)) == Exchange(("cp",), shift=-1)
    assert transposed(Exchange(("pp",), (0, 1))) == Exchange(("pp",), (1, 0))
    routed = Exchange(("ep",), size="routed", algorithm="all_to_all.top8")
    assert transposed(routed) == routed
    assert entered(("tp",)) == Exchange(("tp",), algorithm="all_reduce")
