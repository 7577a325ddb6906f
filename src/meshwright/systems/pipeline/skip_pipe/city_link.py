"""Links between cities: latencies and rates that were measured between twelve regions of a public cloud.

Source: gensyn-ai/skippipe (Nikolay Blagoev, 2025, MIT licence), schedulers/communication_costs.py, whose rates in GiB/s are
whole numbers of Mbit/s. NL to London is a thousandth of what its neighbours have there; it is kept, as plans rest on it.
"""

from __future__ import annotations

import math

from meshwright.specs.error import UnknownNameError

# A line a city: milliseconds / Mbit/s (2^20 bit) to each city above it, in order.
LINKS = """
Australia
Belgium   129/80.5
Canada    98/108 41/163
Germany   125.5/85.7 4/1986.56 44/261
Iowa      84/92 49/232 14/620 53.5/218
Japan     58/113 112/96 74/148 112/90.8 72.5/114.5
LA        69/120 70/159 35/250 73/149.5 23.4/503.5 50/227.5
NL        128/78 3/1986.56 42/205 3.5/1986.56 51/224.5 108.5/93.2 71.5/116.75
Oregon    68/120 66/171 30.5/386 68/122.2 19.3/740 46.2/249.5 12.4/971 67/167
Singapore 48/244 83/132 107/97.79994624 80/102.4 101.5/103.5 35.6/319.5 79.5/138 81.5/134 78.5/137.5
Taiwan    67/172 105/102 89/120.5 102/103 88/104.8576 19.2/628.5 64/132.65 105.5/98 59.5/191 23.2/507
London    132/77 3.5/1986.56 38.5/298 6.6/1546.24 48.1/179 107/72.8 68/122.2 4.8/1.94 64/174 85/128.5 109.5/73.4
"""
WITHIN_CITY = (1.0, 2.0 * 8192)  # ms, Mbit/s: 2 GiB/s
MBIT_PER_GIB = 8 * 1024
BYTES_PER_GIB = 1024**3

_ROWS = [line.split() for line in LINKS.split("\n") if line]
CITIES = tuple(row[0] for row in _ROWS)


def link(one: str, other: str) -> tuple[float, float]:
    """Milliseconds and Mbit/s between two cities, or within one. Raises UnknownNameError."""
    for city in (one, other):
        if city not in CITIES:
            raise UnknownNameError("city", city, CITIES)
    if one == other:
        return WITHIN_CITY
    first, second = sorted((CITIES.index(one), CITIES.index(other)))
    latency_ms, _, rate = _ROWS[second][1 + first].partition("/")
    return float(latency_ms), float(rate)


def message_s(one: str, other: str, num_bytes: float) -> float:
    """Seconds of a message of so many bytes; no time where there is no link, within a node.

    Raises UnknownNameError for a city without links.
    """
    latency_ms, rate = link(one, other)
    seconds = latency_ms / 1000 + num_bytes / (rate / MBIT_PER_GIB * BYTES_PER_GIB)
    assert math.isfinite(seconds), "all rates in the table are above zero"
    return seconds
