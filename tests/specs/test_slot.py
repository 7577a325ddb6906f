"""Tests of specs/slot.py: names, options and files as people write them."""

from __future__ import annotations

import pytest

from meshwright.specs import PlanError
from meshwright.specs.slot import Reference


def test_a_name_may_have_spaces_and_options() -> None:
    assert Reference.of("this computer") == Reference("this computer")
    assert Reference.of(" zero3 ") == Reference("zero3")
    found = Reference.of("./my work/mine.py:wave (chunks=2, kind=fast)")
    assert found == Reference("./my work/mine.py:wave", (("chunks", 2), ("kind", "fast")))
    assert found.names_code and not Reference.of("zero3").names_code
    assert Reference.of(str(found)) == found


def test_booleans_are_read_as_files_write_them_too() -> None:
    assert Reference.of("static(adapts=true)") == Reference.of("static(adapts=True)")
    assert Reference.of("static(adapts=false)").options == (("adapts", False),)


@pytest.mark.parametrize("text", ["", "()", "name(2)", "name(", "name(a=)"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"NAME\(option=value"):
        Reference.of(text)
