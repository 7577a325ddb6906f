"""Which stages of a plan, or pieces of them, are alike: what one computes, keeps and holds is asked for one of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.stage.piece import has_vocabulary_share, is_from_other_stage
from meshwright.stage.saved.recomputed import recomputed_layers, recomputes_ends

Said = TypeVar("Said")


def of_alike(
    plan: Plan, stages: Sequence[StageLayers], function: Callable[[StageLayers], Said]
) -> tuple[Said, ...]:
    """What a function says of the layers of every stage, where it says the same of stages that are alike."""
    first = first_alike(plan, tuple(stages))
    known = {number: function(stages[number]) for number in dict.fromkeys(first)}
    return tuple(known[number] for number in first)


@lru_cache(maxsize=64)
def first_alike(plan: Plan, stages: tuple[StageLayers, ...]) -> tuple[int, ...]:
    """For every stage the number of the first that is as it is: equal in all but their place in the model."""
    known: dict[tuple[object, ...], int] = {}
    return tuple(known.setdefault(_alike(plan, layers), number) for number, layers in enumerate(stages))


def _alike(plan: Plan, layers: StageLayers) -> tuple[object, ...]:
    """All that depends on a stage, its place in the model aside: equal for stages that are alike. Between the halves of an
    encoder-decoder the place counts."""
    model = plan.model
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    received = tuple(is_from_other_stage(plan, layers, is_backward) for is_backward in (False, True))
    ends = (layers.has_embedding, layers.has_head, has_vocabulary_share(plan, layers))
    again = recomputed_layers(plan, layers).num_blocks, recomputes_ends(plan, layers)
    place = layers.first_block if model.num_encoder_layers else 0
    return (tuple((model.block_kind(block), count) for block, count in kinds), ends, received, again, place)
