"""What all pictures are drawn with: themes, the elements of SVG as text, and the plane that takes numbers to pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Ticks = Iterable[tuple[float, str]]  # places on an axis and their texts
Shape = Literal["circle", "square", "triangle", "diamond"]
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT_SIZE = 11
CHARACTER_WIDTH = 6.1  # of that font size, on average; only used to leave room
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
SQUARE, KEY_HEIGHT = 11, 18  # pixels: a coloured square of a key, and one of its lines


@dataclass(frozen=True)
class Theme:
    """Colours of a picture, any that SVG understands (in a page also `var(--name)`)."""

    ink: str = "#16202c"
    muted: str = "#5d6875"
    grid: str = "#dfe4ea"
    background: str = "none"
    series: tuple[str, ...] = ("#2f6fd0", "#d9772b", "#2a9d76", "#b0488f", "#6b5718", "#7a828c")

    @property
    def ground(self) -> str:
        """What is behind the picture, also where the page around it says that."""
        return self.background if self.background != "none" else "var(--ground)"

    @property
    def rim(self) -> str:
        """Attributes of words that may lie on lines: a rim of the ground keeps these from striking them through."""
        return f' paint-order="stroke" stroke="{self.ground}" stroke-width="4" stroke-linejoin="round"'


PAPER = Theme(background="#ffffff")
PAGE = Theme(
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--line)",
    series=("var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)", "var(--s6)"),
)


def svg_document(
    body: Sequence[str], width: int, height: int, title: str, theme: Theme, standalone: bool
) -> str:
    """SVG text of a drawing of the given size with an accessible title; `standalone` adds what a file of its own needs."""
    namespace = f' xmlns="{SVG_NAMESPACE}"' if standalone else ""
    ground = f'<rect width="{width}" height="{height}" fill="{theme.background}"/>' if standalone else ""
    return (
        f'<svg{namespace} viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="{FONT}" font-size="{FONT_SIZE}"><title>{escape(title)}</title>{ground}'
        + "\n".join(body)
        + "</svg>"
    )


def text(x: float, y: float, content: str, colour: str, anchor: str = "start", extra: str = "") -> str:
    """Words that begin, end or have their middle at x, on the line y; `extra` are more attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{extra}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0, dash: str = "") -> str:
    """A straight line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def rect(x: float, y: float, wide: float, tall: float, fill: str, extra: str = "", hint: str = "") -> str:
    """A rectangle; `hint` is shown when it is pointed at."""
    shape = f'<rect x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{tall:g}" fill="{fill}"{extra}'
    return f"{shape}><title>{escape(hint)}</title></rect>" if hint else f"{shape}/>"


def mark(shape: Shape, x: float, y: float, radius: float, style: str, hint: str = "") -> str:
    """A point of a chart; `style` are its attributes, `hint` is shown when it is pointed at."""
    r = radius
    drawn = {
        "circle": f'circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"',
        "square": f'rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:g}" height="{2 * r:g}"',
        "triangle": f'polygon points="{x:.1f},{y - r:.1f} {x + r:.1f},{y + r:.1f} {x - r:.1f},{y + r:.1f}"',
        "diamond": f'path d="M{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}L{x - r:.1f} {y:.1f}Z"',
    }[shape]
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f"<{drawn} {style}>{title}</{drawn.partition(' ')[0]}>"


def colour_key(
    body: list[str], fills: Iterable[tuple[str, str]], left: float, y: float, width: float, theme: Theme
) -> float:
    """Coloured squares with their names from `y` down, on as many lines as they need; returns the y below them."""
    x = left
    for name, fill in fills:
        wide = SQUARE + 5 + CHARACTER_WIDTH * len(name) + 16
        if x + wide > width and x > left:
            x, y = left, y + KEY_HEIGHT
        body += [
            rect(x, y + 2, SQUARE, SQUARE, fill),
            text(x + SQUARE + 5, y + SQUARE + 1, name, theme.ink),
        ]
        x += wide
    return y + KEY_HEIGHT


class Plane(NamedTuple):
    """The plotted rectangle in pixels and the range of numbers that it shows, on even or on logarithmic axes."""

    left: float
    top: float
    right: float
    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    is_logarithmic: bool = False

    def x(self, value: FloatArray | float) -> FloatArray:
        """Pixels from the left."""
        return self.left + self._share(value, self.x_low, self.x_high) * (self.right - self.left)

    def y(self, value: FloatArray | float) -> FloatArray:
        """Pixels from the top."""
        return self.bottom - self._share(value, self.y_low, self.y_high) * (self.bottom - self.top)

    def _share(self, value: FloatArray | float, low: float, high: float) -> FloatArray:
        if self.is_logarithmic:
            return np.asarray(np.log(np.asarray(value) / low) / np.log(high / low))
        return np.asarray((np.asarray(value) - low) / (high - low))

    def axes(
        self,
        x_ticks: Ticks,
        y_ticks: Ticks,
        theme: Theme,
        x_label: str = "",
        y_label: str = "",
        has_columns: bool = False,
    ) -> list[str]:
        """Texts of both axes, faint lines across (`has_columns`: and down), the ground line, what is on each axis."""
        drawn = []
        for tick, name in y_ticks:
            y = float(self.y(tick))
            drawn.append(line(self.left, y, self.right, y, theme.grid))
            drawn.append(text(self.left - 6, y + 4, name, theme.muted, "end"))
        for tick, name in x_ticks:
            x = float(self.x(tick))
            top, colour = (self.top, theme.grid) if has_columns else (self.bottom + 4, theme.muted)
            drawn.append(line(x, self.bottom, x, top, colour))
            drawn.append(text(x, self.bottom + 16, name, theme.muted, "middle"))
        drawn.append(line(self.left, self.bottom, self.right, self.bottom, theme.muted))
        if x_label:
            across = (self.left + self.right) / 2
            drawn.append(text(across, self.bottom + 36, x_label, theme.muted, "middle"))
        if y_label:
            x, y = 13.0, (self.top + self.bottom) / 2
            turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"'
            drawn.append(text(x, y, y_label, theme.muted, "middle", turned))
        return drawn
