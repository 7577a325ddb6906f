"""Placements of runs of steps, each by itself: affinity that grows is seen to grow, and loads alone do not pass for it."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import api
from meshwright.specs.error import SpecError
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun

EXPERTS, LAYERS, TOKENS, DEVICES = 8, 3, 2_000, 4


def growing(shares: tuple[float, ...]) -> RoutingTrace:
    """In each step so many tokens follow a permutation of experts from layer to layer, the others go anywhere."""
    random, steps = np.random.default_rng(0), []
    follows = random.permutation(EXPERTS)
    for share in shares:
        experts = random.integers(EXPERTS, size=(TOKENS, LAYERS))
        is_affine = random.random(TOKENS) < share
        for layer in range(1, LAYERS):
            experts[is_affine, layer] = follows[experts[is_affine, layer - 1]]
        steps.append(experts)
    runs = tuple(TraceRun(5 * number, 0, TOKENS) for number in range(len(shares)))
    return RoutingTrace(np.concatenate(steps)[:, :, None], EXPERTS, tuple(range(LAYERS)), runs, "tests")


def test_affinity_grows_from_step_to_step() -> None:
    """Of tokens that follow the permutation all stay, of others one in four."""
    shares = (0.0, 0.3, 0.6, 0.9)
    found = api.place_over_steps(growing(shares), DEVICES, by=["ex_flow", "round_robin"])
    assert [(each.first, each.last) for each in found] == [(0, 0), (5, 5), (10, 10), (15, 15)]
    for share, each in zip(shares, found, strict=True):
        ours, turns = each.trial.rows
        assert 1 - ours.moved == pytest.approx(share + (1 - share) / DEVICES, abs=0.05)
        assert turns.moved > ours.moved or share == 0
        assert ours.moved_by_loads == pytest.approx(1 - 1 / DEVICES, abs=0.01)
    bits = [each.trial.affinity_bits for each in found]
    assert bits == sorted(bits)


def test_steps_are_put_together_and_the_last_may_be_fewer() -> None:
    trace = growing((0.1, 0.2, 0.3))
    found = api.place_over_steps(trace, DEVICES, by=["contiguous"], together=2)
    assert [(each.first, each.last) for each in found] == [(0, 5), (10, 10)]
    assert [each.trial.fitted.num_tokens for each in found] == [TOKENS, TOKENS // 2]
    with pytest.raises(SpecError, match="4 steps together, of a trace of 3"):
        api.place_over_steps(trace, DEVICES, together=4)


def test_loads_alone_keep_moves_where_one_device_has_all() -> None:
    """Experts 0 and 1 take three of four tokens of both layers, at random: on a device together 0.75^2 + 3 / 12^2 stay."""
    random = np.random.default_rng(1)
    busy = random.random((40_000, 2)) < 0.75
    experts = np.where(
        busy, random.integers(2, size=busy.shape), random.integers(2, EXPERTS, size=busy.shape)
    )
    trial = api.place_experts(RoutingTrace(experts[:, :, None], EXPERTS, (0, 1)), DEVICES, by=["contiguous"])
    (row,) = trial.rows
    expected = 1 - 0.75**2 - 3 * (0.25 / 3) ** 2
    assert row.moved_by_loads == pytest.approx(expected, abs=0.01)
    assert row.moved == pytest.approx(row.moved_by_loads, abs=0.01), "nothing is affine"
    copied = api.place_experts(trial.others, DEVICES, by=["eplb(copies=4)"]).rows[0]
    assert copied.moved is None and copied.moved_by_loads is None


def test_it_is_a_verb_of_the_package() -> None:
    assert mw.api.place_over_steps is api.place_over_steps
