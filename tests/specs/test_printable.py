"""Names that strangers chose: refused where they are given, marked where they are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import Cluster, ModelSpec
from meshwright.specs.error import SpecError
from meshwright.specs.printable import BREAKS, UNSEEN, check_printable, printable

HOSTILE = ("a\nb", "a\rb", "\x1b[31mred", "a\x00b", "a\u2028b", "a\u202eb", "a\x85b", "\x9b2J")
MODEL = ModelSpec.decoder(2, 64, 4)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_one_visible_line(name: str) -> None:
    cluster = Cluster("2xcpu")
    for make in (
        lambda: replace(MODEL, name=name),
        lambda: replace(MODEL, source=name),
        lambda: replace(cluster, name=name),
        lambda: replace(cluster.devices[0], name=name),
    ):
        with pytest.raises(SpecError, match="one line of visible characters"):
            make()


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "Qwen/Qwen3-8B", "模型", "modèle $(id) `id` '\"#;&|"])
def test_whatever_can_be_seen_is_a_name(name: str) -> None:
    assert replace(MODEL, name=name).name == name


@given(st.text())
def test_what_is_shown_is_as_long_and_visible(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) == len(text)
    assert printable(text, BREAKS).replace("\n", "").replace("\t", "").isprintable()
    assert [a for a, b in zip(text, shown, strict=True) if a != b] == [a for a in text if not a.isprintable()]
    if shown == text:
        check_printable("text", text)
    else:
        assert UNSEEN in shown
