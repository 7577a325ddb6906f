"""The colours of instruction names, the same in the terminal, in HTML and in pictures for papers."""

from __future__ import annotations

from zlib import crc32

# Computes stay apart for the colour-blind without a pattern, and all that carry text are bright enough for a dark one
# (contrast over 4.5, also of odd microbatches); tests/reports/chart/test_palette.py simulates it.
COLOUR_OF_NAME = {
    "F": "#6ea8f0",
    "B": "#57c4a0",
    "I": "#57c4a0",
    "W": "#f2a65a",
    "R": "#b3bac4",
    "S": "#c48fc4",
    "STEP": "#c48fc4",
    "T": "#e8cf5a",
}
COLOUR_OF_KIND = {
    "SEND": "#8f86d8",
    "RECEIVE": "#b9a6e6",
    "COLLECTIVE": "#e57fa3",
    "LOAD": "#c9975b",
    "STORE": "#a97c46",
    "COPY": "#c9975b",
    "CALL": "#9aa3ad",
}
OTHER_COMPUTES = ("#e8cf5a", "#ef8f7d", "#7fd0e0", "#a8cf6a", "#d9a3c7")
INK = "#16202c"  # text on any of the colours above
ODD_MICROBATCH_SHADE = 0.86  # odd microbatches are this much darker, so that equal neighbours stay apart


def colour(name: str, kind: str = "COMPUTE") -> str:
    """The colour `#rrggbb` of an instruction name; unknown names get one that is always the same."""
    if kind in COLOUR_OF_KIND:
        return COLOUR_OF_KIND[kind]
    if name in COLOUR_OF_NAME:
        return COLOUR_OF_NAME[name]
    return OTHER_COMPUTES[crc32(name.encode()) % len(OTHER_COMPUTES)]


def shade(hex_colour: str, factor: float) -> str:
    """The colour multiplied by `factor` in each channel, clipped to what exists."""
    channels = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{min(255, round(channel * factor)):02x}" for channel in channels)


def cell_colour(name: str, kind: str, microbatch: int) -> str:
    """The colour of one cell: that of its name, darker for odd microbatches of a compute."""
    base = colour(name, kind)
    is_odd = kind == "COMPUTE" and microbatch >= 0 and microbatch % 2 == 1
    return shade(base, ODD_MICROBATCH_SHADE) if is_odd else base
