"""Every operation with parameters: split, unsplit and torch's own gradients agree; lost work is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.specs.error import ExecutionError
from tests.executor.ops.split_parameters import split_parameters

TOLERANCE = 1e-10  # float64, DESIGN's policy


def _module(kind: str) -> nn.Module:
    torch.manual_seed(0)
    made = {
        "linear": lambda: nn.Linear(6, 5),
        "linear without bias": lambda: nn.Linear(6, 5, bias=False),
        "layer norm": lambda: nn.LayerNorm(6),
        "layer norm without bias": lambda: nn.LayerNorm(6, bias=False),
        "rms norm": lambda: nn.RMSNorm(6, eps=1e-6),
        "rms norm, default epsilon": lambda: nn.RMSNorm(6),
    }[kind]()
    module = made.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


KINDS = (
    *("linear", "linear without bias", "layer norm", "layer norm without bias"),
    *("rms norm", "rms norm, default epsilon"),
)


def _gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


def _run(module: nn.Module, x: Tensor, dy: Tensor, is_split: bool) -> tuple[Tensor, list[Tensor]]:
    x = x.detach().requires_grad_()
    queue = WeightGradientQueue("test")
    if not is_split:
        module(x).backward(dy)
    else:
        with registering(queue):
            y = module(x)
        before = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        with deferring(queue):
            y.backward(dy)
        after = [p.grad for p in module.parameters()]
        for old, new in zip(before, after):
            assert (old is None and new is None) or torch.equal(old, new), "I changed a weight gradient"
        assert len(queue) == 1
        assert queue.run() == 1
        assert len(queue) == 0
    assert x.grad is not None
    return x.grad, _gradients(module)


@pytest.mark.parametrize("kind", KINDS)
def test_split_equals_unsplit_equals_torch(kind: str) -> None:
    x, dy = torch.randn(2, 3, 6, dtype=torch.float64), None
    plain = _module(kind)
    dy = torch.randn_like(plain(x))
    expected_x, expected = _run(plain, x, dy, is_split=False)
    _, expected_twice = _run(plain, x, 2 * dy, is_split=False)  # accumulates
    unsplit, split = split_parameters(_module(kind)), split_parameters(_module(kind))
    for module, is_split in ((unsplit, False), (split, True)):
        found_x, found = _run(module, x, dy, is_split)
        _, found_twice = _run(module, x, 2 * dy, is_split)
        torch.testing.assert_close(found_x, expected_x, rtol=0, atol=TOLERANCE)
        for one, other in zip(found + found_twice, expected + expected_twice, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
    assert all(torch.equal(a, b) for a, b in zip(_gradients(unsplit), _gradients(split)))


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_split_equals_torch(padding: int | None) -> None:
    tokens = torch.tensor([[0, 2, 2, 6], [5, 0, 0, 1]])
    dy = torch.randn(2, 4, 3, dtype=torch.float64)
    torch.manual_seed(1)
    plain = nn.Embedding(7, 3, padding_idx=padding, dtype=torch.float64)
    plain(tokens).backward(dy)
    torch.manual_seed(1)
    split = split_parameters(nn.Embedding(7, 3, padding_idx=padding, dtype=torch.float64))
    queue = WeightGradientQueue()
    with registering(queue):
        y = split(tokens)
    with deferring(queue):
        y.backward(dy)
    assert split.weight.grad is None
    queue.run()
    torch.testing.assert_close(split.weight.grad, plain.weight.grad, rtol=0, atol=TOLERANCE)


def test_a_frozen_weight_is_not_owed_and_gets_no_gradient() -> None:
    module = split_parameters(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.RMSNorm(3, eps=1e-6)))
    frozen = [module[0].weight, module[0].bias, module[2].weight]
    for parameter in frozen:
        parameter.requires_grad_(False)
    queue = WeightGradientQueue()
    with registering(queue):
        y = module(torch.randn(2, 3, requires_grad=True))
    assert queue.num_registered == 1
    with deferring(queue):
        y.sum().backward()
    queue.run()
    assert all(parameter.grad is None for parameter in frozen)
    assert module[1].weight.grad is not None


def test_tied_weight_collects_both_uses() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(2)
        layers = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)).double()
        layers[2].weight = layers[0].weight
        return layers

    tokens = torch.tensor([[0, 3, 3, 1]])
    plain, split = model(), split_parameters(model())
    plain(tokens).square().sum().backward()
    queue = WeightGradientQueue()
    with registering(queue):
        loss = split(tokens).square().sum()
    with deferring(queue):
        loss.backward()
    assert queue.run() == 3
    torch.testing.assert_close(split[0].weight.grad, plain[0].weight.grad, rtol=0, atol=TOLERANCE)


def _two_linears() -> nn.Module:
    return split_parameters(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))


def _no_forward(queue: WeightGradientQueue) -> None:
    y = _two_linears()(torch.randn(2, 4))
    with deferring(queue):
        y.sum().backward()


def _no_backward(queue: WeightGradientQueue) -> None:
    with registering(queue):
        _two_linears()(torch.randn(2, 4))


def _half_a_backward(queue: WeightGradientQueue) -> None:
    module = _two_linears()
    with registering(queue):
        hidden = module[0](torch.randn(2, 4))
        y = module[1](hidden.detach().requires_grad_())
    with deferring(queue):
        y.sum().backward()


def _unsplit_backward(queue: WeightGradientQueue) -> None:
    with registering(queue):
        y = _two_linears()(torch.randn(2, 4))
    y.sum().backward()


def _twice(queue: WeightGradientQueue) -> None:
    with registering(queue):
        y = _two_linears()(torch.randn(2, 4))
    with deferring(queue):
        y.sum().backward()
    queue.run()


@pytest.mark.parametrize("misuse", [_no_forward, _no_backward, _half_a_backward, _unsplit_backward, _twice])
def test_a_wrong_count_is_an_error(misuse: Callable[[WeightGradientQueue], None]) -> None:
    queue = WeightGradientQueue("stage 1, microbatch 3")
    misuse(queue)
    with pytest.raises(ExecutionError, match="stage 1, microbatch 3"):
        queue.run()


def test_the_queue_keeps_input_and_output_gradient_alive_until_run() -> None:
    module = split_parameters(nn.Linear(8, 4, bias=False))
    queue = WeightGradientQueue()
    with registering(queue):
        y = module(torch.randn(16, 8, requires_grad=True))
    with deferring(queue):
        y.backward(torch.randn(16, 4))
    del y
    assert queue.pending_bytes() == 4 * (16 * 8 + 16 * 4)
    queue.run()
    assert queue.pending_bytes() == 0


def test_gradients_are_whole_when_saved_tensors_are_packed_elsewhere() -> None:
    module = split_parameters(nn.Linear(3, 2))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        y = module(torch.randn(5, 3))
    y.sum().backward()
    assert module.weight.grad is not None
    assert torch.equal(module.bias.grad, torch.full((2,), 5.0))


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    y = split_parameters(nn.Linear(3, 2))(x).sum()
    with pytest.raises(ExecutionError, match="second derivative"):
        torch.autograd.grad(y, x, create_graph=True)


def test_without_gradients_nothing_is_registered() -> None:
    queue = WeightGradientQueue()
    with registering(queue), torch.no_grad():
        _two_linears()(torch.randn(2, 4))
    assert queue.num_registered == 0


def test_modules_without_split_form_are_named_and_nothing_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(ExecutionError, match=r"1\.weight \(Conv1d\), 1\.bias \(Conv1d\), 2\.0\.weight"):
        split_parameters(model)
    assert type(model[0]) is nn.Linear


def test_splitting_keeps_names_parameters_and_hooks_and_may_be_repeated() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4, elementwise_affine=False))
    before = dict(model.named_parameters())
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    split_parameters(split_parameters(model))(torch.randn(2, 4))
    assert {name: id(p) for name, p in model.named_parameters()} == {n: id(p) for n, p in before.items()}
    assert seen == [1]


def test_bfloat16_norm_stays_near_float32() -> None:
    x, dy = torch.randn(4, 32), torch.randn(4, 32)
    wide, narrow = nn.RMSNorm(32, eps=1e-6), split_parameters(nn.RMSNorm(32, eps=1e-6).bfloat16())
    found_x, found = _run(narrow, x.bfloat16(), dy.bfloat16(), is_split=True)
    expected_x, expected = _run(wide, x.bfloat16().float(), dy.bfloat16().float(), is_split=False)
    torch.testing.assert_close(found_x.float(), expected_x, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found[0].float(), expected[0], rtol=2e-2, atol=2e-2)
