"""Branches executed: processes are one, exchanges counted, the transform keeps parameters, both forms learn."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from meshwright.executor.job.pool import Pool
from meshwright.systems.architecture.shallow_again import study
from meshwright.systems.architecture.shallow_again.drawn_digits import drawn_digits


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_many_processes_are_one(num_devices: int, gloo_pool: Pool) -> None:
    assert study.parameter_difference(gloo_pool, num_devices) < 1e-12


def test_one_all_reduce_runs_in_a_forward(gloo_pool: Pool) -> None:
    assert study.executed_all_reduces(gloo_pool) == 1


def test_a_stack_becomes_branches_of_the_same_parameters() -> None:
    stack = study.ResidualStack([nn.Linear(4, 4) for _ in range(3)])
    broad = study.shallow(stack)
    assert [id(p) for p in broad.parameters()] == [id(p) for p in stack.parameters()]
    x = torch.randn(2, 4)
    one, two, three = stack.layers
    assert torch.allclose(broad(x), x + one(x) + two(x) + three(x), atol=1e-6)
    second = x + one(x)
    third = second + two(second)
    assert torch.allclose(stack(x), third + three(third), atol=1e-6)


def test_transformer_blocks_have_the_slope() -> None:
    assert study.transformer_slope() == pytest.approx(2.0, abs=0.05)


@pytest.mark.slow
def test_losses_are_alike() -> None:
    assert study.loss_ratio() == pytest.approx(1.0, abs=0.05)
    assert study.mean_loss("shallow") < 2.6  # single bytes have 3.3 nats


def test_digits_are_drawn_by_their_seed_and_differ() -> None:
    images, shown = drawn_digits(200, 1)
    again, same = drawn_digits(200, 1)
    assert (images == again).all() and (shown == same).all() and set(shown) == set(range(10))
    assert abs(images[shown == 1].mean() - images[shown == 8].mean()) > 0.05  # two strokes, or seven


@pytest.mark.slow
@pytest.mark.parametrize("form", ["deep", "shallow"])
def test_convolutions_learn_drawn_digits(form: str) -> None:
    assert study.image_accuracy(form, 4) > 0.7  # a guess names a tenth
