"""How instructions are drawn: what each name is for people, its colour on light and dark ground, and its pattern."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from meshwright.reports.chart.palette import OTHER_COMPUTES, colour, shade
from meshwright.reports.trace.legend import MEANINGS
from meshwright.reports.trace.timeline import LANE_OF_KIND, LANES
from meshwright.workbench.document.document import DrawnKind

DARK_GROUND_SHADE = (
    0.9  # of a colour that carries dark text on white: bright areas on black tire, dark ones hide the text
)
SOLID = "solid"
PATTERN_OF_MEANING = {
    "forward": SOLID,
    "backward": "diagonal",
    "input gradient": "back_diagonal",
    "weight gradient": "cross",
    "recompute": "dots",
    "softmax of the split vocabulary": "vertical",
    "gradient of the split head": "horizontal",
    "lookup in the split table": "zigzag",
    "gradient of the split table": "back_diagonal",
    "optimizer step": "grid",
    "send": "horizontal",
    "receive": "vertical",
    "collective": "zigzag",
    "memory": "dots",
    "host": SOLID,
}
OTHER_PATTERNS = ("back_diagonal", "horizontal", "vertical", "zigzag", "dots")  # of names of one's own


def drawn_kinds(names: Sequence[str], kinds: Sequence[str]) -> tuple[list[DrawnKind], list[int]]:
    """The kinds that instructions of these names and `ir.table.Kind` names are, and which of them each is."""
    numbers: dict[str, int] = {}
    found: list[DrawnKind] = []
    of_name = []
    for name, kind in zip(names, kinds, strict=True):
        lane = LANE_OF_KIND[kind]
        meaning = LANES[lane] if lane else MEANINGS.get(name, name)
        if meaning not in numbers:
            numbers[meaning] = len(found)
            base = colour(name, kind)
            pattern = PATTERN_OF_MEANING.get(meaning) or _own_pattern(meaning)
            found.append(DrawnKind(meaning, base, shade(base, DARK_GROUND_SHADE), pattern))
        of_name.append(numbers[meaning])
    return found, of_name


def _own_pattern(name: str) -> str:
    """Always the same of a name, and told by another digit of its number than its colour (`chart.palette.colour`)."""
    return OTHER_PATTERNS[crc32(name.encode()) // len(OTHER_COMPUTES) % len(OTHER_PATTERNS)]
