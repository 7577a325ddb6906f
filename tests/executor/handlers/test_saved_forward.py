"""What a forward keeps: its graph begins with a node that keeps nothing and ends without its outputs."""

from __future__ import annotations

import gc

import torch

from meshwright.executor.handlers.saved_forward import SavedForward, contributions
from meshwright.executor.meter.live_storage import LiveStorage
from meshwright.executor.ops.linear import linear
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering


def forward(x: torch.Tensor) -> tuple[torch.Tensor, SavedForward]:
    """Twice the input: nothing of it is needed for its gradient."""
    saved = SavedForward(WeightGradientQueue("F"))
    (begun,) = saved.begin(x)
    y = begun * 2.0
    saved.close(y)
    return y.detach(), saved


def test_neither_input_nor_output_is_kept() -> None:
    with LiveStorage() as live:
        x = torch.empty(1 << 16)
        y, saved = forward(x)
        assert live.current_bytes >= 2 * x.nbytes
        del x, y
        gc.collect()
        assert live.current_bytes < 64, "numbers of the ends of a graph only"
    assert saved.ends is not None


def test_gradients_of_inputs_come_back() -> None:
    _, saved = forward(torch.ones(3))
    (gradient,) = saved.run_backward(torch.tensor([1.0, 2.0, 3.0]))
    assert gradient is not None and gradient.tolist() == [2.0, 4.0, 6.0]
    assert saved.ends is None and not saved.taken, "its graph is free"


def test_without_gradients_there_is_no_graph() -> None:
    saved, x = SavedForward(WeightGradientQueue("F")), torch.ones(3)
    with torch.no_grad():
        begun = saved.begin(x)
        saved.close(*begun)
    assert begun == (x,) and saved.ends is None


def test_contributions_own_their_memory() -> None:
    """Both terms of a sum get one tensor as their gradient; who adds to the one must not change the other."""
    saved = SavedForward(WeightGradientQueue("F"))
    one, other = saved.begin(torch.ones(3), torch.ones(3))
    saved.close(one + other)
    gradients = saved.run_backward(torch.ones(3))
    assert gradients[0] is not None and gradients[1] is not None
    assert gradients[0].data_ptr() == gradients[1].data_ptr(), "autograd copies none: the case is there"
    first, second = contributions(gradients)
    assert first is not None and second is not None
    first += 1.0
    assert second.tolist() == [1.0, 1.0, 1.0]
    assert contributions((None, first)) == (None, first)


def test_contributions_are_not_what_is_owed_to_weights() -> None:
    """A sum's gradient is also that of the product behind it, whose weight gradient may be computed later."""
    weight = torch.nn.Parameter(torch.eye(3))
    saved = SavedForward(WeightGradientQueue("F"))
    with registering(saved.queue):
        one, other = saved.begin(torch.ones(2, 3), torch.ones(2, 3))
        saved.close(one + linear(other, weight))
    with deferring(saved.queue):
        gradients = saved.run_backward(torch.ones(2, 3))
    (given, owed), taken = saved.queue.owed(), contributions(gradients, saved.queue.owed())
    assert given.tolist() == [[1.0] * 3] * 2 and taken[0] is not None and gradients[0] is not None
    assert gradients[0].data_ptr() == owed.data_ptr(), "autograd copies none: the case is there"
    taken[0].add_(1.0)
    assert owed.tolist() == [[1.0] * 3] * 2
