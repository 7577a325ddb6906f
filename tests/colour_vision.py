"""Colours as people see them: how far two are apart, also for the three kinds of colour blindness, and contrast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Linear sRGB to what is left of it: Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", IEEE TVCG 15(6), 2009, severity 1.0.
VISIONS: Mapping[str, NDArray[np.float64]] = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranope": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanope": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# IEC 61966-2-1: linear sRGB to CIE XYZ, and its white (D65).
XYZ_OF_RGB = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])
LUMINANCE = XYZ_OF_RGB[1]
# In CIEDE2000 a difference of 1 is about what is just noticed by who looks for it (2.3 in the older Lab distance: Mahy et
# al. 1994); at five of these, areas of two colours beside each other and in a legend are told apart.
LEAST_DISTANCE = 5.0
LEAST_TEXT_CONTRAST = 4.5  # WCAG 2.2, 1.4.3
LEAST_LINE_CONTRAST = 3.0  # WCAG 2.2, 1.4.11
LEAST_GROUND_DISTANCE = 10.0  # of an area from what is behind it


def linear(colour: str) -> Vector:
    """The channels of `#rrggbb` as light, from 0 to 1."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG defines it, from 1 to 21."""
    low, high = sorted(float(LUMINANCE @ linear(each)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, vision: str = "trichromat") -> Vector:
    """CIE L*a*b* of a colour as it is seen."""
    seen = np.clip(VISIONS[vision] @ linear(colour), 0.0, 1.0)
    share = XYZ_OF_RGB @ seen / WHITE
    root = np.where(share > (6 / 29) ** 3, np.cbrt(share), share * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = root.tolist()
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: Vector, other: Vector) -> float:
    """The distance of two L*a*b*: Sharma, Wu, Dalal, "The CIEDE2000 Color-Difference Formula", 2005."""
    chroma = np.hypot([one[1], other[1]], [one[2], other[2]]).mean()
    stretch = 1.5 - 0.5 * math.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    (l1, c1, h1), (l2, c2, h2) = (
        (each[0], math.hypot(each[1] * stretch, each[2]), math.atan2(each[2], each[1] * stretch) % math.tau)
        for each in (one, other)
    )
    turn = (h2 - h1 + math.pi) % math.tau - math.pi if c1 * c2 else 0.0
    light, grey = (l1 + l2) / 2, (c1 + c2) / 2
    hue = h1 + turn / 2 if c1 * c2 else h1 + h2
    tone = 1 - 0.17 * math.cos(hue - math.radians(30)) + 0.24 * math.cos(2 * hue)
    tone += 0.32 * math.cos(3 * hue + math.radians(6)) - 0.20 * math.cos(4 * hue - math.radians(63))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * grey)
    by_hue = 2 * math.sqrt(c1 * c2) * math.sin(turn / 2) / (1 + 0.015 * grey * tone)
    away = ((math.degrees(hue) - 275 + 180) % 360 - 180) / 25
    bend = math.sin(math.radians(60 * math.exp(-(away**2)))) * 2 * math.sqrt(grey**7 / (grey**7 + 25.0**7))
    return math.sqrt(by_light**2 + by_chroma**2 + by_hue**2 - bend * by_chroma * by_hue)


def distance(one: str, other: str) -> float:
    """CIEDE2000 of two colours to whoever tells them apart the worst."""
    return min(ciede2000(lab(one, vision), lab(other, vision)) for vision in VISIONS)


def alike(colours: Mapping[str, str] | Iterable[str], least: float = LEAST_DISTANCE) -> list[str]:
    """The pairs that somebody cannot tell apart, in words."""
    named = colours if isinstance(colours, Mapping) else {each: each for each in colours}
    apart = {pair: distance(*(named[each] for each in pair)) for pair in combinations(named, 2)}
    return [f"{one} and {other}: {found:.1f}" for (one, other), found in apart.items() if found < least]
