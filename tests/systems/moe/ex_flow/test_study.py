"""Four processes whose tokens stay where their expert is say what one process says, and send what the closed form says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.executor.job.pool import Pool
from meshwright.systems.moe.ex_flow import study
from meshwright.systems.moe.ex_flow.mechanism import sent_numbers
from meshwright.systems.moe.ex_flow.ops import DecoderShape

SMALL = DecoderShape(layers=3, experts=8, sequences=4, prompt=3, steps=2)


def shuffled(shape: DecoderShape, seed: int) -> study.Devices:
    even = np.tile(np.arange(shape.experts) * study.RANKS // shape.experts, (shape.layers, 1))
    return np.random.default_rng(seed).permuted(even, axis=1)


@pytest.mark.parametrize("stays", [True, False])
def test_outputs_and_bytes_of_any_placement(stays: bool, gloo_pool: Pool) -> None:
    devices = shuffled(SMALL, 1)
    found, (outputs, _) = study.on_processes(SMALL, devices, stays, gloo_pool), study.alone(SMALL)
    for ours, theirs in zip(found.outputs, outputs, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-10
    expected = study.expected_bytes(SMALL, devices, stays)
    assert {name: found.sent_bytes[name] for name in expected} == expected
    counted = {name for name in found.sent_bytes if "COUNT" not in name}
    assert counted == set(expected) and ("RETURN_ROWS" in counted) != stays


@pytest.mark.slow
def test_all_tokens_on_one_device(gloo_pool: Pool) -> None:
    """Three of four have nothing to do; tokens that stay are sent there once, and never again."""
    devices = np.zeros((SMALL.layers, SMALL.experts), np.int64)
    found, (outputs, _) = study.on_processes(SMALL, devices, True, gloo_pool), study.alone(SMALL)
    assert max(float((a - b).abs().max()) for a, b in zip(found.outputs, outputs, strict=True)) < 1e-10
    moved = SMALL.sequences * (study.RANKS - 1) // study.RANKS
    assert found.sent_bytes["SEND_ROWS"] == moved * (1 + SMALL.hidden) * study.FLOAT64_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_a_fitted_placement_has_fewer_moves_than_turns(seed: int) -> None:
    shape = DecoderShape(seed=seed)
    sent = {
        name: study.expected_bytes(shape, each.devices, True)["SEND_ROWS"]
        for name, each in study.placements(shape).items()
    }
    assert sent["ex_flow"] < sent["round_robin"]


def test_placements_are_fitted_to_other_prompts() -> None:
    shape = DecoderShape()
    others = replace(shape, **study.FITTED)
    assert study.routing_of(others).num_tokens == 64 * shape.prompt
    assert not (study.prompt_ids(others)[: shape.sequences] == study.prompt_ids(shape)).all()


def test_one_all_to_all_sends_more_where_contexts_are_large() -> None:
    """By hand, 4 devices, 100 wide, by chance: 2 x 75 numbers; else 75 and three times the context."""
    assert sent_numbers(100, 8, 4, 0.75, 2) == 150
    assert sent_numbers(100, 8, 4, 0.75, 1) == 75 + 24
    assert sent_numbers(100, 40, 4, 0.75, 1) > 150
