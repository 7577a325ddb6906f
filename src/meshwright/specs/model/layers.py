"""Layers of a stage, and how the blocks of a model are split over stages: evenly or not, never dropped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from meshwright.specs.bound.bound import MOST_STAGES, check_most
from meshwright.specs.error import PlanError


class StageLayers(NamedTuple):
    """Consecutive layers that one stage holds: blocks first_block .. first_block + num_blocks - 1.

    The first stage also holds the embedding; the last one the head: final norm, vocabulary head and loss.
    """

    first_block: int
    num_blocks: int
    has_embedding: bool
    has_head: bool


def ends_encoder(layers: StageLayers, num_encoder_layers: int) -> bool:
    """Is the last block of an encoder of so many among them? Then its norm is, too."""
    return layers.first_block < num_encoder_layers <= layers.first_block + layers.num_blocks


def begins_decoder(layers: StageLayers, num_encoder_layers: int) -> bool:
    """Is the first block behind an encoder among them? Then the table of the decoder's tokens is, too."""
    return 0 < num_encoder_layers and (
        layers.first_block <= num_encoder_layers < layers.first_block + layers.num_blocks
    )


@lru_cache(maxsize=4096)
def split_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Blocks per stage as even as can be; the remainder goes to the first stages (30 on 4: 8, 8, 7, 7).

    A stage may stay without blocks only where there are more stages than blocks; then the first and the last
    stage, which hold embedding and head, go without before the others do.
    """
    if num_layers < 1 or num_stages < 1:
        raise PlanError(
            f"{num_layers} layers cannot be split over {num_stages} stages",
            allowed="at least one layer and one stage",
        )
    check_most("stages", num_stages, MOST_STAGES, PlanError)
    share, rest = divmod(num_layers, num_stages)
    if share:
        return tuple(share + (stage < rest) for stage in range(num_stages))
    order = sorted(range(num_stages), key=lambda stage: (stage in (0, num_stages - 1), stage))
    with_block = set(order[:rest])
    return tuple(int(stage in with_block) for stage in range(num_stages))


def stage_layers(layers_per_stage: Sequence[int]) -> tuple[StageLayers, ...]:
    """The layers of every stage, in the order of the model, from the number of blocks of each."""
    if not layers_per_stage or min(layers_per_stage) < 0:
        raise PlanError(
            f"layers per stage are {tuple(layers_per_stage)}", allowed="one count from 0 for every stage"
        )
    return _stage_layers(tuple(layers_per_stage))


@lru_cache(maxsize=4096)
def _stage_layers(layers_per_stage: tuple[int, ...]) -> tuple[StageLayers, ...]:
    found, first_block, last = [], 0, len(layers_per_stage) - 1
    for stage, num_blocks in enumerate(layers_per_stage):
        found.append(StageLayers(first_block, num_blocks, stage == 0, stage == last))
        first_block += num_blocks
    return tuple(found)
