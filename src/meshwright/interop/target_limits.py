"""What a program has no words for, as limits of a search: which choices are decided or ruled out before plans are ranked.

One place for what the exports refuse and a search can avoid. A target's limits are regions: together they hold everything
that it can say. What no region can rule out (layers of a stage, divisors of heads and sequences) the export refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.interop.megatron.option import PIPELINE_INSIDE
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.specs.sequence.context_parallel import Context

BOTH = ("reduce", "gather")
PIPELINES = ("1f1b", "interleaved_1f1b")
BALANCED: tuple[Context, ...] = (
    "ring",
    "all_gather",
    "ulysses",
)  # devices of cp do equal work; torchtitan divides no heads
MEGATRON_ORDERS = tuple("-".join(order) for order in (AXES, PIPELINE_INSIDE))
# Ranks in the usual order, microbatches that are not cut, tables on the first and last stage, tokens as each kind of context
# parallelism has them: no program says others.
_USUAL: Mapping[str, Any] = {
    "mesh_order": "-".join(AXES), "token_parts": 1, "vocabulary": Plan.vocabulary, "token_layout": "",
}  # fmt: skip


@dataclass(frozen=True)
class Region:
    """A part of the space of plans: `fix` as of `planner.space.space_of`, where a tuple of values allows each of them."""

    fix: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        shown = {name: _shown(name, value) for name, value in self.fix.items() if name not in _USUAL}
        return ", ".join(f"{name} {value}" for name, value in shown.items()) or "everything"


def regions(target: str, today: Plan) -> tuple[Region, ...]:
    """The regions that a target can say; one that holds everything for a name without limits.

    Args:
        target: "megatron", "torchtitan" or "deepspeed".
        today: what model and which overlaps it is about.
    """
    limits = _LIMITS.get(target)
    return (Region(),) if limits is None else limits(today)


def _megatron(today: Plan) -> tuple[Region, ...]:
    """Some blocks of a stage are recomputed whole only. Experts, and overlap of tensor parallelism, go with sequence
    parallelism only."""
    common = {**_USUAL, "mesh_order": MEGATRON_ORDERS, "schedule": PIPELINES, "context": BALANCED}
    recomputes: tuple[dict[str, Any], ...] = (
        {"recompute": ("none", "selective"), "recompute_blocks": 0},
        {"recompute": "full"},
    )
    parts: tuple[dict[str, Any], ...] = ({},)
    if today.model.num_experts or "tp" in today.overlap:
        parts = ({"tp": 1}, {"sequence_parallel": True})
    return tuple(Region({**common, **chosen, **part}) for chosen in recomputes for part in parts)


def _torchtitan(today: Plan) -> tuple[Region, ...]:
    """FSDP shards gradients, too; whole copies go with no other parallelism; tensor parallelism divides sequences."""
    common = {
        **_USUAL, "schedule": (*PIPELINES, "gpipe"), "recompute": ("none", "selective_op", "full"), "recompute_blocks": 0,
        "context": BALANCED[:2], "ulysses": 1, "etp": 0,
    }  # fmt: skip
    whole = {**common, "sharding": "none", "cp": 1}
    sharded = {**common, "sharding": ("zero2", "zero3")}
    return (
        Region({**sharded, "tp": 1}),
        Region({**sharded, "sequence_parallel": True}),
        Region({**whole, "tp": 1, "pp": 1}),
        Region({**whole, "tp": 1, "dp": 1}),
        Region({**whole, "dp": 1, "sequence_parallel": True}),
    )


def _deepspeed(today: Plan) -> tuple[Region, ...]:
    """No pipeline and no context parallelism in its configuration; each ZeRO stage overlaps in its own way."""
    common = {
        **_USUAL, "pp": 1, "cp": 1, "sequence_parallel": False, "recompute": ("none", "full"), "recompute_blocks": 0,
        "sharding_degree": 0, "etp": 0,
    }  # fmt: skip
    return (
        Region({**common, "sharding": "none", "overlap": ()}),
        Region({**common, "sharding": ("zero1", "zero2"), "overlap": ("reduce",)}),
        Region({**common, "sharding": "zero3", "overlap": BOTH, "tp": 1, "ep": 1}),
    )


_LIMITS: Mapping[str, Callable[[Plan], tuple[Region, ...]]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
}


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return (" and " if name == "overlap" else " or ").join(value) or "nothing"
