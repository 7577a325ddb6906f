"""A number with its unit as text for people, and the round numbers of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from meshwright.specs import units

_FORMATS: Mapping[str, Callable[[float], str]] = {
    "s": units.format_seconds,
    "B": units.format_bytes,
    "B/s": units.format_bandwidth,
    "FLOP": units.format_flops,
    "FLOP/s": units.format_flops_per_s,
    "share": lambda value: f"{100 * value:.1f} %",
    "": lambda value: f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}",
}
_AXIS_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
TICK_SLACK = 0.8  # a few more ticks than asked for rather than half of them
_TICK_FACTORS = (1, 2, 5, 10)
# Below this, a ratio of measured to predicted counts as right, below the next as near; beyond that it is off.
RATIO_RIGHT = 0.10
RATIO_NEAR = 0.25


def quantity(value: float | None, unit: str = "") -> str:
    """A number in SI as short text: `s`, `B`, `B/s`, `FLOP`, `FLOP/s`, `share` (0.25 is 25 %), or any other unit.

    None and what is not finite are a dash.
    """
    if value is None or not math.isfinite(value):
        return "-"
    known = _FORMATS.get(unit)
    return known(value) if known else f"{_FORMATS[''](value)} {unit}"


def ratio_text(value: float | None) -> str:
    """A ratio as `1.04x`, or a dash."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}x"


def ratio_verdict(value: float | None) -> str:
    """`right`, `near` or `off`: how far a ratio is from one, either way; `unknown` where there is none."""
    if value is None or not math.isfinite(value) or value <= 0:
        return "unknown"
    distance = max(value, 1 / value) - 1
    return "right" if distance <= RATIO_RIGHT else "near" if distance <= RATIO_NEAR else "off"


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _TICK_FACTORS if power * factor >= raw * TICK_SLACK)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_texts(ticks: list[float], unit: str) -> list[str]:
    """The texts of an axis: one common prefix for all of its numbers, the unit only on the last."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    scale, suffix = _axis_scale(largest, unit)
    texts = [f"{tick / scale:.6g}" for tick in ticks]
    return [*texts[:-1], f"{texts[-1]} {suffix}".rstrip()] if texts else []


def axis_ticks(ticks: list[float], unit: str = "") -> list[tuple[float, str]]:
    """Places on an axis with their texts."""
    return list(zip(ticks, tick_texts(ticks, unit), strict=True))


def _axis_scale(largest: float, unit: str) -> tuple[float, str]:
    scales = _AXIS_SCALES.get(unit, ((1.0, unit),))
    return next((pair for pair in scales if largest >= pair[0]), scales[-1])
