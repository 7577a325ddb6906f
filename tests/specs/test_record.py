"""Records come back as they were written, and a table that is no record is refused by the key that is wrong."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.specs.record import plain, record


@dataclass(frozen=True)
class Round:
    radius: float


@dataclass(frozen=True)
class Long:
    width: int
    height: int = 1


@dataclass(frozen=True)
class Drawing:
    name: str
    shape: Round | Long
    style: Literal["thin", "thick"] = "thin"
    is_filled: bool = False
    margin: int | None = None
    points: tuple[tuple[int, float], ...] = ()
    parts: tuple[Long, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


LONG = st.builds(Long, st.integers(), st.integers())
DRAWINGS = st.builds(
    Drawing,
    st.text(),
    st.one_of(LONG, st.builds(Round, st.floats(allow_nan=False))),
    st.sampled_from(["thin", "thick"]),
    st.booleans(),
    st.one_of(st.none(), st.integers()),
    st.lists(st.tuples(st.integers(), st.floats(allow_nan=False))).map(tuple),
    st.lists(LONG).map(tuple),
    st.dictionaries(st.text(), st.integers()),
)


@given(DRAWINGS, st.booleans())
def test_a_record_comes_back(drawing, complete):
    assert record(Drawing, plain(drawing, complete=complete), "here") == drawing


def test_what_is_at_its_default_is_left_out():
    assert plain(Drawing("a", Long(2))) == {"name": "a", "shape": {"width": 2}}
    assert plain(Long(2), complete=True) == {"width": 2, "height": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nmae": "a"}, "did you mean name"),
        ({"name": 3}, "here: 'name' is 3; allowed: text"),
        ({"is_filled": 1}, "'is_filled' is 1; allowed: true or false"),
        ({"margin": "3"}, "'margin' is '3'; allowed: a whole number"),
        ({"margin": True}, "'margin' is True; allowed: a whole number"),
        ({"style": 3}, "'style' is 3; allowed: text"),
        ({"shape": {"radius": "wide"}}, "'shape': 'radius' is 'wide'; allowed: a number"),
        ({"shape": {"width": 1, "depth": 2}}, "'shape': unknown key 'depth'"),
        ({"shape": {"height": 2}}, "'shape': key 'width' is missing"),
        ({"shape": 3}, "'shape' is 3; allowed: a table"),
        ({"points": [[1]]}, "'points', entry 0 is [1]; allowed: a list"),
        ({"points": [[1, "2"]]}, "'points', entry 0, entry 1 is '2'; allowed: a number"),
        ({"points": 3}, "'points' is 3; allowed: a list"),
        ({"options": 3}, "'options' is 3; allowed: a table"),
    ],
)
def test_what_is_no_record_is_refused(change, said):
    with pytest.raises(PlanError, match=re.escape(said)):
        record(Drawing, {"name": "a", "shape": {"width": 1}, **change}, "here", PlanError)
