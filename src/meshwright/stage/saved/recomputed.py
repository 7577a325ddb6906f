"""Which blocks of a stage, or of a piece of one, are recomputed: its stage's first ones, as many as the plan says.

Where all blocks of a stage are, so are embedding, head and vocabulary share on it. Where only some are, these ends keep
what they keep without recompute: the head is behind blocks that keep everything, the embedding's result is kept as the
input of the first block that is recomputed.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.specs.error import PlanError
from meshwright.specs.model.layers import StageLayers, stage_layers
from meshwright.specs.plan.plan import Plan
from meshwright.stage.piece import has_vocabulary_passes, has_vocabulary_share


def recomputes_ends(plan: Plan, layers: StageLayers) -> bool:
    """Are all blocks of the stage that `layers` belong to recomputed, and its ends with them?"""
    return not plan.recompute_blocks or _num_recomputed(plan, layers) is None


def recomputed_layers(plan: Plan, layers: StageLayers) -> StageLayers:
    """The part of a stage or piece that follows `plan.recompute`: all of it, or its first blocks without any end."""
    count = _num_recomputed(plan, layers)
    return layers if count is None else StageLayers(layers.first_block, count, False, False)


def kept_layers(plan: Plan, layers: StageLayers) -> StageLayers:
    """The other part, which keeps everything."""
    count = _num_recomputed(plan, layers)
    if count is None:
        return StageLayers(layers.first_block + layers.num_blocks, 0, False, False)
    return layers._replace(first_block=layers.first_block + count, num_blocks=layers.num_blocks - count)


def is_recomputed(plan: Plan, layers: StageLayers) -> bool:
    """Does a piece keep nothing but its input, with recompute "full"?"""
    if recomputes_ends(plan, layers):
        return True
    has_share = has_vocabulary_share(plan, layers) and not has_vocabulary_passes(plan)
    has_end = layers.has_embedding or layers.has_head or has_share
    return not has_end and recomputed_layers(plan, layers).num_blocks == layers.num_blocks


def is_partly_recomputed(plan: Plan, layers: StageLayers) -> bool:
    """Does a piece keep something of what it has, and is something recomputed?"""
    return not is_recomputed(plan, layers) and recomputed_layers(plan, layers).num_blocks > 0


def _num_recomputed(plan: Plan, layers: StageLayers) -> int | None:
    """Blocks of a stage or piece that are recomputed; None where its whole stage is. Raises PlanError."""
    if not plan.recompute_blocks:
        return None
    return _of_its_stage(plan.layers_per_stage, plan.recompute_blocks, layers)


@lru_cache(maxsize=4096)
def _of_its_stage(per_stage: tuple[int, ...], recomputed: tuple[int, ...], layers: StageLayers) -> int | None:
    """The stage is the one that has these blocks; without blocks, one without at that place if there is one."""
    end = layers.first_block + layers.num_blocks
    found = [
        (stage, count)
        for stage, count in zip(stage_layers(per_stage), recomputed, strict=True)
        if stage.first_block <= layers.first_block and end <= stage.first_block + stage.num_blocks
    ]
    if not found:
        raise PlanError(
            f"blocks {layers.first_block} to {end - 1} are in no stage of {per_stage} blocks",
            allowed="a stage, or a piece of one, where only some blocks are recomputed",
        )
    stage, count = min(found, key=lambda each: bool(each[0].num_blocks) != bool(layers.num_blocks))
    if count == stage.num_blocks:
        return None
    return min(max(0, stage.first_block + count - layers.first_block), layers.num_blocks)
