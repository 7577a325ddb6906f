"""A step does what torch's AdamW and SGD do, clips by the norm it is given and refuses missing gradients."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from meshwright.executor.ops.optimizer_step import Optimizer, OptimizerConfig
from meshwright.specs.error import ExecutionError


def _parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for _ in range(2)]
    parameters.append(nn.Parameter(torch.randn(5, dtype=torch.float64)))
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def test_adamw_equals_torch_with_clipping_and_decay_of_matrices_only() -> None:
    mine, theirs = _parameters(), _parameters()
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.3, clip_norm=0.5)
    step = Optimizer(mine, config)
    reference = torch.optim.AdamW(
        [{"params": theirs[:2]}, {"params": theirs[2:], "weight_decay": 0.0}],
        lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3,
    )  # fmt: skip
    for _ in range(3):
        for parameters in (mine, theirs):
            torch.manual_seed(5)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
        expected = float(nn.utils.clip_grad_norm_(theirs, 0.5))
        norm = float(step.squared_norm().sqrt())
        assert norm == pytest.approx(expected, rel=1e-12)
        step.run(norm)
        reference.step()
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_sgd_is_one_line() -> None:
    parameters = _parameters()
    expected = [p.detach() - 0.5 * p.grad for p in parameters]
    step = Optimizer(parameters, OptimizerConfig("sgd", learning_rate=9.0, weight_decay=0.0, clip_norm=None))
    step.run(learning_rate=0.5)
    for one, other in zip(parameters, expected):
        torch.testing.assert_close(one.detach(), other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["adamw", "sgd(momentum=0.9)"])
def test_no_compiler_is_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the step of a process that compiles nothing: it takes as long as importing torch."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it is an error
    parameters = _parameters()
    before = [parameter.detach().clone() for parameter in parameters]
    Optimizer(parameters, OptimizerConfig(name)).run()
    assert not any(torch.equal(one, other) for one, other in zip(parameters, before, strict=True))


def test_a_missing_gradient_is_an_error() -> None:
    parameters = _parameters()
    parameters[1].grad = None
    with pytest.raises(ExecutionError, match="1 of 3 parameters"):
        Optimizer(parameters, OptimizerConfig()).squared_norm()


def test_state_goes_to_another_step() -> None:
    one, other = _parameters(), _parameters()
    first, second = Optimizer(one, OptimizerConfig()), Optimizer(other, OptimizerConfig())
    first.run()
    second.put_back(first.copy())
    for step, parameters in ((first, one), (second, other)):
        torch.manual_seed(1)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step.run()
    assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_zero_forgets_and_a_stage_without_parameters_steps() -> None:
    parameters = _parameters()
    Optimizer(parameters, OptimizerConfig()).zero()
    assert all(parameter.grad is None for parameter in parameters)
    empty = Optimizer([], OptimizerConfig())
    assert float(empty.squared_norm()) == 0.0
    empty.run()
    assert empty.optimizer is None


@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig("adamw", learning_rate=0.1, clip_norm=None),
        OptimizerConfig("sgd(momentum=0.9)", learning_rate=0.1, clip_norm=None),
    ],
    ids=["adamw", "momentum"],
)
@pytest.mark.parametrize("num_before", [0, 2])
def test_a_step_that_is_put_back_leaves_no_trace(config: OptimizerConfig, num_before: int) -> None:
    """Bitwise, also where it was the first one, which made the optimizer's state."""
    finals = []
    for undoes in (False, True):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 3))
        step = Optimizer([weight], config)
        for number in range(num_before + 2):
            weight.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
            if undoes and number == num_before:
                kept = step.copy()
                before = weight.detach().clone()
                step.run(clips=False)
                assert not torch.equal(weight, before)
                step.put_back(kept)
                assert torch.equal(weight, before)
            step.run()
        finals.append(weight.detach().clone())
    assert torch.equal(*finals)


def test_what_exceeds_the_limit() -> None:
    weight = [nn.Parameter(torch.ones(2))]
    assert Optimizer(weight, OptimizerConfig(clip_norm=1.0)).exceeds(1.5)
    assert not Optimizer(weight, OptimizerConfig(clip_norm=1.0)).exceeds(0.5)
    assert not Optimizer(weight, OptimizerConfig(clip_norm=None)).exceeds(1e9)
