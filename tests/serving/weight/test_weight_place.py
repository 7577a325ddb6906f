"""Which blocks of weights a stage has, which parameter is of which, and what a place may say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest

from meshwright.serving.weight.weight_place import (
    NOTHING_FETCHED,
    FetchedBlocks,
    Resident,
    WeightSource,
    block_of,
    fetched_blocks,
    stage_blocks,
)
from meshwright.specs.error import SpecError

STAGES = (stage_blocks(range(1), True, False), stage_blocks(range(1, 2), False, True))


@dataclass(frozen=True)
class Chosen:
    """Some blocks."""

    blocks: Sequence[str]
    window: int = 2
    source: WeightSource = WeightSource("disk", 1e9)

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        return [block for block in self.blocks if block in blocks or block == "nowhere"]


def test_blocks_are_in_the_order_of_their_use() -> None:
    assert STAGES == (
        ("embedding", "layers.0.attention", "layers.0.feed_forward"),
        ("layers.1.attention", "layers.1.feed_forward", "head"),
    )


@pytest.mark.parametrize(
    ("parameter", "block"),
    [
        ("embedding.weight", "embedding"),
        ("positions.weight", "embedding"),
        ("final_norm.bias", "head"),
        ("head.weight", "head"),
        ("layers.12.qkv.bias", "layers.12.attention"),
        ("layers.3.attention_result_norm.weight", "layers.3.attention"),
        ("layers.3.mlp_norm.weight", "layers.3.feed_forward"),
        ("layers.3.mixture.shared.gate_up.weight", "layers.3.feed_forward"),
    ],
)
def test_every_parameter_is_of_one_block(parameter: str, block: str) -> None:
    assert block_of(parameter) == block


def test_what_is_fetched_is_told_in_the_order_of_its_use() -> None:
    found = fetched_blocks(Chosen(["head", "layers.0.attention"]), STAGES)
    assert found == FetchedBlocks(("layers.0.attention", "head"), 2, "disk")
    assert FetchedBlocks.of(asdict(found)) == found
    assert fetched_blocks(Resident(), STAGES) == fetched_blocks(Chosen([]), STAGES) == NOTHING_FETCHED


def test_what_is_not_there_and_what_could_not_come_is_refused() -> None:
    with pytest.raises(SpecError, match="nowhere"):
        fetched_blocks(Chosen(["nowhere"]), STAGES)
    with pytest.raises(SpecError, match="window of 1"):
        fetched_blocks(Chosen(["head"], 1), STAGES)
    with pytest.raises(SpecError, match="0.0 bytes/s"):
        WeightSource("disk", 0.0)
