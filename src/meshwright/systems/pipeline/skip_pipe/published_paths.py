"""The four plans that SkipPipe's repository ships: twenty nodes in twelve cities, six stages, and the paths through them.

Source: gensyn-ai/skippipe (Nikolay Blagoev, 2025, MIT licence): schedule.json (which node runs which stage, paths, memory,
spans) and create_schedule.py (rounds, times of injection, what is added to a link's seconds).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright.specs.error import UnknownNameError
from meshwright.systems.pipeline.skip_pipe.arrival_dispatch import Network
from meshwright.systems.pipeline.skip_pipe.city_link import message_s
from meshwright.systems.pipeline.skip_pipe.path_plan import PathPlan, repeated

CITIES = "Belgium Canada Germany Iowa Japan LA NL Oregon Singapore Taiwan London Australia".split()
NUM_NODES = 20  # node n stands in city n mod 12
# Nodes of every stage. The first stage also has embedding, head and loss, and is where microbatches enter.
STAGE_NODES = ((0, 3, 4, 10, 11), (15, 8, 14), (1, 9, 6), (16, 12, 13), (5, 18, 7), (17, 2, 19))
STAGE_OF_NODE = {node: stage for stage, nodes in enumerate(STAGE_NODES) for node in nodes}
MEMORY = 3  # microbatches that a node holds, and that a node of the first stage injects in a round
FORWARD_S = 0.055 * 8  # seconds a sample, 8 samples: the offsets of the paths in schedule.json
# Eight samples of 1024 x 1024 float32 and 216 bytes more: what the seconds in schedule.json are of.
MESSAGE_BYTES = 4 * 1024 * 1024 * 8 + 216
COPIES_S = (0.13, 0.2, 0.02)  # between graphics and main memory, by the authors' measurements

RANDOM = """0-12-7-17 0-14-16-9 0-1-8-19 3-12-7-17 3-15-6-5 3-1-8-19 4-13-18-2 4-15-6-5 4-1-8-19 10-13-18-2 10-15-6-5
10-14-16-9 11-13-18-2 11-12-7-17 11-14-16-9"""
COLLIDING = """0-12-5-19 0-1-19-18 0-6-18-17 3-12-6-2 3-14-12-2 3-6-14-13 4-15-13-7 4-15-5-17 4-15-13-7 10-1-17-5 10-1-7-2
10-14-18-19 11-8-16-9 11-8-16-9 11-8-16-9"""
COLLISION_FREE = "0-14-6-12 3-15-17-5 4-7-13-19 10-1-18-2 11-8-16-9"  # each for all three places of its node


def parsed(text: str) -> tuple[tuple[int, ...], ...]:
    """Paths as they stand above."""
    return tuple(tuple(int(node) for node in path.split("-")) for path in text.split())


def straight() -> tuple[tuple[int, ...], ...]:
    """Three full pipelines, of each stage's nodes in order, every one three times."""
    chains = [tuple(nodes[k] for nodes in STAGE_NODES) for k in range(len(STAGE_NODES[1]))]
    return repeated(chains, MEMORY)


PLANS = {
    "full": PathPlan(straight(), 0.0, 3, 0.1),
    "random": PathPlan(parsed(RANDOM), FORWARD_S),
    "colliding": PathPlan(parsed(COLLIDING), FORWARD_S),
    "collision-free": PathPlan(repeated(parsed(COLLISION_FREE), MEMORY), 1.0),
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
                cities = (CITIES[one % len(CITIES)], CITIES[other % len(CITIES)])
                seconds[one, other] = sum(COPIES_S, start=message_s(*cities, MESSAGE_BYTES))
    return Network(seconds, np.full(NUM_NODES, FORWARD_S), MEMORY)
