"""What a graph keeps can leave the device and come back: its tensors are let go of, its gradients are the same."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from meshwright.executor.state.held_tensors import HeldTensors

CPU = torch.device("cpu")


def test_tensors_are_let_go_of_and_gradients_are_the_same() -> None:
    layer = nn.Linear(6, 6, dtype=torch.float64)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.silu(layer(x)).sum().backward()
    expected = [x.grad.clone(), layer.weight.grad.clone()]  # type: ignore[union-attr]
    x.grad, layer.weight.grad = None, None
    held = HeldTensors(layer.parameters())
    with held.watching():
        inner = layer(x)
        storage = weakref.ref(inner.untyped_storage())
        loss = torch.nn.functional.silu(inner).sum()
    del inner
    assert storage() is not None  # the graph keeps it
    held.move(CPU)
    assert storage() is None
    loss.backward()
    assert torch.equal(x.grad, expected[0]) and torch.equal(layer.weight.grad, expected[1])


def test_parameters_stay_and_what_several_nodes_keep_is_held_once() -> None:
    layer = nn.Linear(6, 6, bias=False, dtype=torch.float64)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    held = HeldTensors(layer.parameters())
    with held.watching():
        loss = (layer(x) * layer(x)).sum()
    first = layer.weight.untyped_storage().data_ptr()
    places = [place.tensor for place in held._places.values()]
    assert all(place.untyped_storage().data_ptr() != first for place in places)
    assert sum(place.data_ptr() == x.data_ptr() for place in places) == 1
    held.move(CPU)
    loss.backward()
    expected = 2 * layer(x).detach().T @ x.detach()
    assert torch.allclose(layer.weight.grad, expected)  # type: ignore[arg-type]
