"""The axes of the search: what a candidate decides, in the order of its columns, and the values that have names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from meshwright.schedules.order import registered
from meshwright.specs.plan.plan import AXES as MESH
from meshwright.specs.plan.plan import FLOAT8_RECIPES, RECOMPUTES, VOCABULARIES
from meshwright.specs.sequence.context_parallel import CONTEXTS, TOKEN_LAYOUTS

AXES = (
    *("tp", "cp", "ep", "etp", "pp", "dp", "mesh_order", "context", "token_layout", "ulysses"),
    *("schedule", "num_chunks", "layers"),
    *("recompute", "recompute_blocks", "microbatch_size", "sharding", "sharding_degree"),
    *("sequence_parallel", "float8", "vocabulary"),
)  # fmt: skip
# Other fields of a plan that may be decided beforehand; a space has one value of each.
HANDED_ON = (
    "dtype",
    "master_dtype",
    "reduction_dtype",
    "attention",
    "gathered",
    "dispatch",
    "ep_near",
    "token_parts",
    "parts_of",
    "software",
    "overlap",
    "optimizer",
)
SHARDINGS = ("none", "zero1", "zero2", "zero3")
# Outermost first. Tensor-parallel devices stay next to each other: they talk several times in every layer.
MESH_ORDERS: tuple[str, ...] = (
    "-".join(MESH),
    *("-".join((*order, "tp")) for order in itertools.permutations(MESH[:-1]) if order != MESH[:-1]),
)
# Layers on stages as even as can be, or as if the head (and the embedding) were a layer of the last (and first) stage:
# what Megatron-LM calls accounting for the loss and for the embedding in the split of the pipeline.
LAYERS = ("even", "account_for_loss", "account_for_both")
# Axes of which the first value alone is tried where nobody fixes others; a split vocabulary is tried behind the ranking.
ONE_VALUE = ("float8", "vocabulary")
ENDS: Mapping[str, tuple[int, int]] = {"even": (0, 0), "account_for_loss": (0, 1), "account_for_both": (1, 1)}


def ranked_schedules() -> tuple[str, ...]:
    """The registered schedules that the closed form knows to rank: those that have each stage on one device."""
    return tuple(name for name, one in registered().items() if one.num_copies == 1)


def named() -> Mapping[str, tuple[Any, ...]]:
    """Axes whose values have names, with these in the order of their numbers; 1F1B is the first of the schedules."""
    first = ("1f1b", "interleaved_1f1b")
    schedules = sorted(ranked_schedules(), key=lambda name: (name != first[0], name != first[1], name))
    return {
        "mesh_order": MESH_ORDERS, "context": CONTEXTS, "token_layout": TOKEN_LAYOUTS,
        "schedule": tuple(schedules), "layers": LAYERS, "recompute": RECOMPUTES, "sharding": SHARDINGS,
        "sequence_parallel": (False, True), "float8": FLOAT8_RECIPES, "vocabulary": VOCABULARIES,
    }  # fmt: skip
