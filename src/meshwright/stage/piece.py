"""Refine: a stage of the pipeline becomes several stages of the program on the same device, so that parameters are
gathered and gradients reduced piece by piece, beside computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.specs.model.layers import StageLayers, split_layers
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.software import EXECUTOR

# Computes of a refined program: finer pieces than these allow change a step by less than its interval, and cost time.
MAX_COMPUTES = 8192


def num_pieces(plan: Plan) -> tuple[int, ...]:
    """Pieces of every stage of the pipeline. Where parameters are sharded a block is a piece, as the software gathers
    them; where gradients are reduced beside computes, or parameters gathered, as many pieces as stay within
    MAX_COMPUTES; otherwise one."""
    blocks = [max(1, layers.num_blocks) for layers in plan.stages()]
    if plan.shared.divides_values:
        return tuple(blocks)
    is_split = plan.dp * plan.cp > 1 and bool({"reduce", "gather"} & set(plan.overlap))
    if not is_split:
        return (1,) * len(blocks)
    passes = 3 if plan.recompute == "full" else 2
    most = max(1, MAX_COMPUTES // (passes * plan.num_microbatches * len(blocks)))
    return tuple(min(count, most) for count in blocks)


def executed_pieces(plan: Plan) -> tuple[int, ...]:
    """Pieces of every stage of the pipeline in a program that processes of one machine run: blocks where gradients or
    parameters are sharded, as they are there whole for one piece at a time; else one, as nothing is gained by exchanging in
    smaller parts what the same cores compute and carry."""
    if plan.shared.divides_gradients and plan.sharing_degree > 1:
        return tuple(max(1, layers.num_blocks) for layers in plan.stages())
    return (1,) * plan.num_stages


def as_executed(plan: Plan) -> Plan:
    """The plan as processes run it, whatever software it was made for: for lowering a program of them."""
    return replace(plan, software=EXECUTOR.name)


def is_vocabulary_split(plan: Plan) -> bool:
    """Are both vocabulary layers divided among the stages of the pipeline?"""
    return plan.vocabulary != "ends" and plan.pp > 1


def has_vocabulary_passes(plan: Plan) -> bool:
    """Are its shares computed by passes of their own (`SplitVocabulary`)? Otherwise they are priced within F and B, as where
    it is interlaced with another order than that of 1F1B."""
    return is_vocabulary_split(plan) and (plan.vocabulary != "interlaced" or plan.schedule == "1f1b")


def has_vocabulary_share(plan: Plan, layers: StageLayers) -> bool:
    """Where they are: is this the piece that computes its device's share, the first of the device's first stage?"""
    if not is_vocabulary_split(plan):
        return False
    first = {(stage.first_block, stage.num_blocks > 0) for stage in plan.stages()[: plan.pp]}
    return (layers.first_block, layers.num_blocks > 0) in first


def is_from_other_stage(plan: Plan, layers: StageLayers, is_backward: bool) -> bool:
    """Does another stage of the pipeline send what this piece works on? Of a stage's pieces the first gets it forward,
    the last backward."""
    if plan.pp == 1 or (layers.has_head if is_backward else layers.has_embedding):
        return False
    if not is_backward and layers.first_block == 0 and plan.layers_per_stage[0]:
        return False  # the embedding is on the same stage, also where this part of a piece has none

    def edge(each: StageLayers) -> tuple[int, bool]:
        return each.first_block + (each.num_blocks if is_backward else 0), each.num_blocks > 0

    return edge(layers) in map(edge, plan.stages())


def piece_layers(stages: Sequence[StageLayers], pieces: Sequence[int]) -> tuple[StageLayers, ...]:
    """Layers of every piece, in the order of the model: blocks as even as can be, embedding first, head last."""
    found = []
    for layers, count in zip(stages, pieces, strict=True):
        sizes = split_layers(layers.num_blocks, count) if layers.num_blocks else (0,)
        block = layers.first_block
        for place, size in enumerate(sizes):
            is_first, is_last = place == 0, place == len(sizes) - 1
            found.append(
                StageLayers(block, size, layers.has_embedding and is_first, layers.has_head and is_last)
            )
            block += size
    return tuple(found)
