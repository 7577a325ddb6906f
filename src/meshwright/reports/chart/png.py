"""A picture in pixels: SVG that the package drew, rendered by resvg (extra `png`), for slides and for what shows no SVG."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from meshwright.specs.error import SpecError

ZOOM = 2.0  # pixels of the file to those of the drawing: sharp on screens and in print
SANS_SERIF = (
    "DejaVu Sans"  # where none of the fonts that a drawing names is there; without it any font of the machine
)
_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'


def png_of(svg: str, zoom: float = ZOOM) -> bytes:
    """The picture as a PNG file, `zoom` pixels for each of the drawing's.

    Raises SpecError where resvg is not installed, or this machine has no font: texts would be missing.
    """
    check_png()
    return bytes(_resvg().svg_to_bytes(svg_string=svg, zoom=zoom, sans_serif_family=SANS_SERIF))


def check_png() -> None:
    """Raise SpecError where `png_of` would, before anything is drawn."""
    if not _has_font():
        raise SpecError(
            "no font is installed on this machine: a PNG would have no text",
            allowed=".svg without one",
            next="install a font, such as the package fonts-dejavu-core",
        )


@cache
def _has_font() -> bool:
    """Is anything drawn of a letter?"""
    drawn = _resvg().svg_to_bytes
    return bool(drawn(svg_string=_SVG.format('<text y="15">m</text>')) != drawn(svg_string=_SVG.format("")))


def _resvg() -> ModuleType:
    try:
        import resvg_py
    except ImportError:
        raise SpecError(
            "a PNG needs the package resvg_py, which is not installed",
            allowed=".svg without it",
            next="pip install 'meshwright[png]'",
        ) from None
    return resvg_py
