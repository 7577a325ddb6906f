"""Pictures in pixels: the size, the colours and the texts of the drawing; what is missing is said before the work."""

from __future__ import annotations

import struct
import sys

import pytest
from tests.reports.sample import pipeline_trace

from meshwright.reports.chart import png
from meshwright.reports.trace.svg import timeline_svg
from meshwright.specs.error import SpecError

pytest.importorskip("resvg_py")


def size_of(picture: bytes) -> tuple[int, int]:
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_a_picture_has_the_pixels_of_its_drawing_times_the_zoom() -> None:
    drawn = timeline_svg(pipeline_trace(), width=600)
    once, twice = size_of(png.png_of(drawn, 1.0)), size_of(png.png_of(drawn))
    assert once[0] == 600 and twice == (2 * once[0], 2 * once[1])


def test_texts_are_drawn() -> None:
    """A renderer without fonts leaves them out, and says nothing."""
    drawn = timeline_svg(pipeline_trace())
    assert png.png_of(drawn) != png.png_of(drawn.replace("bubble", "babble"))


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "_has_font", lambda: False)
    with pytest.raises(SpecError, match="no font"):
        png.check_png()
    monkeypatch.undo()
    png._has_font.cache_clear()
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(SpecError, match=r"meshwright\[png\]"):
        png.png_of("<svg/>")
