"""What `make gpu` says of context parallelism, as far as it goes without devices: both sides on CPU, the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.gpu.context import NUM_STEPS, Shared, Turn, compared, context, ours, theirs

from meshwright.specs import Cluster, ModelSpec

LENGTH = 64
MODEL = ModelSpec.decoder(2, 64, 4, vocabulary_size=64, max_sequence_length=LENGTH, name="shared")
SMALL = Shared(MODEL, num_samples=2, device="cpu", dtype="float32", num_steps=3)


@pytest.mark.parametrize("num_devices", [0, 1])
def test_fewer_than_two_devices_share_nothing_and_it_says_so(num_devices: int) -> None:
    part = context("H100", num_devices)
    assert part.verdict == "skipped" and part.ran == 0
    assert f"sees {num_devices} here" in part.lines[0]


@pytest.mark.slow
def test_both_begin_with_the_same_loss() -> None:
    """What does not run on CPU is torch's sharded attention alone: there a process has whole sequences."""
    alone = theirs(replace(SMALL, degree=1))
    shared = ours(SMALL, Cluster.detect(2))
    assert alone.losses[0] == pytest.approx(shared.losses[0], rel=1e-5)
    assert len(alone.seconds) == len(shared.seconds) == SMALL.num_steps


@pytest.mark.slow
def test_torch_shares_no_sequences_on_cpu() -> None:
    """When it does, it belongs beside ours there as well."""
    with pytest.raises(Exception, match="scaled_dot_product_flash_attention_for_cpu"):
        theirs(SMALL, "allgather")


def test_ways_are_compared_turn_by_turn() -> None:
    def turns(*seconds: float, loss: float = 8.0) -> list[Turn]:
        return [Turn([loss] * NUM_STEPS, [9.0, 9.0, each, each, each, each]) for each in seconds]

    part = compared({"torch": turns(2.0, 4.0, 8.0), "ours": turns(1.0, 2.0, 4.0)})
    assert part.verdict == "passed" and part.ran == 6 * NUM_STEPS
    assert part.figures["torch"]["ratio"] == 2.0 and part.figures["ours"]["ratio"] == 1.0
    assert compared({"torch": turns(1.0, 1.0, loss=9.0), "ours": turns(1.0, 1.0)}).verdict == "failed"
