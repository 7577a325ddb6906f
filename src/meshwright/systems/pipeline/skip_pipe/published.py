"""The authors' network and plans, from network.toml: twenty nodes in cities, links between them, paths of a round."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path

import numpy as np

from meshwright.specs.error import UnknownNameError
from meshwright.systems.pipeline.skip_pipe.mechanism import Network, PathPlan, repeated

TABLE = tomllib.loads(Path(__file__).with_name("network.toml").read_text(encoding="utf-8"))
WITHIN_CITY = (1.0, 2.0 * 8192)  # ms, Mbit/s: 2 GiB/s
MBIT_PER_GIB = 8 * 1024
BYTES_PER_GIB = 1024**3
_ROWS = [line.split() for line in TABLE["links"].split("\n") if line]
CITIES = tuple(row[0] for row in _ROWS)
STAGE_NODES = tuple(tuple(nodes) for nodes in TABLE["stage_nodes"])
STAGE_OF_NODE = {node: stage for stage, nodes in enumerate(STAGE_NODES) for node in nodes}
NUM_NODES, MEMORY = len(STAGE_OF_NODE), TABLE["memory"]
FORWARD_S = 0.055 * 8  # seconds a sample, 8 samples: the offsets of the paths in schedule.json
# Eight samples of 1024 x 1024 float32 and 216 bytes more: what the seconds in schedule.json are of.
MESSAGE_BYTES = 4 * 1024 * 1024 * 8 + 216
COPIES_S = (0.13, 0.2, 0.02)  # between graphics and main memory, by the authors' measurements


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


def parsed(text: str) -> tuple[tuple[int, ...], ...]:
    """Paths as they stand in the table."""
    return tuple(tuple(int(node) for node in path.split("-")) for path in text.split())


def straight() -> tuple[tuple[int, ...], ...]:
    """Three full pipelines, of each stage's nodes in order, every one three times."""
    chains = [tuple(nodes[k] for nodes in STAGE_NODES) for k in range(len(STAGE_NODES[1]))]
    return repeated(chains, MEMORY)


PLANS = {
    "full": PathPlan(straight(), 0.0, 3, 0.1),
    "random": PathPlan(parsed(TABLE["paths"]["random"]), FORWARD_S),
    "colliding": PathPlan(parsed(TABLE["paths"]["colliding"]), FORWARD_S),
    "collision-free": PathPlan(repeated(parsed(TABLE["paths"]["collision-free"]), MEMORY), 1.0),
}


def published(name: str) -> PathPlan:
    """A plan by name. Raises UnknownNameError."""
    if name not in PLANS:
        raise UnknownNameError("published plan", name, PLANS)
    return PLANS[name]


@cache
def network() -> Network:
    """The twenty nodes and what messages between them take, equal to schedule.json to the last digit."""
    seconds = np.zeros((NUM_NODES, NUM_NODES))
    for one in range(NUM_NODES):
        for other in range(NUM_NODES):
            if one != other:
                here, there = (TABLE["cities"][node % len(CITIES)] for node in (one, other))
                seconds[one, other] = sum(COPIES_S, start=message_s(here, there, MESSAGE_BYTES))
    return Network(seconds, np.full(NUM_NODES, FORWARD_S), MEMORY)
