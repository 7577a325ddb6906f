"""Handlers of a training step of residual branches: embedding, feed-forward branches, head, plain gradient descent.

`options` of the job: the fields of `BranchTraining`.

Shapes: B samples, C bytes of context, E width of a byte, D width of the stream, U units of a layer, V byte values, N numbers
of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.systems.architecture.shallow_again.mechanism import (
    BRANCH_B,
    BRANCH_F,
    BRANCH_STEP,
    EMBED_B,
    EMBED_F,
    HEAD,
    REDUCE_BRANCHES,
    REDUCE_INPUT_GRADIENT,
)


@dataclass(frozen=True)
class BranchTraining:
    """A network that reads `context` bytes and predicts the next one; `spread` scales what layers add to the stream."""

    num_layers: int = 6
    context: int = 16
    byte_width: int = 16
    width: int = 64
    num_units: int = 128
    spread: float = 0.5
    batch: int = 64
    rate: float = 0.1
    seed: int = 0

    def shapes(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """Of the weights of a layer: embedding (bytes, then what mixes their context), branch, or head."""
        if kind == "embedding":
            return (NUM_BYTE_VALUES, self.byte_width), (self.width, self.context * self.byte_width)
        if kind == "head":
            return ((NUM_BYTE_VALUES, self.width),)
        return (self.num_units, self.width), (self.width, self.num_units)

    def split(self, kind: str, weight_N: Tensor) -> list[Tensor]:
        """Views of a flat weight."""
        shapes = self.shapes(kind)
        parts = torch.split(weight_N, [math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def kind(self, stage: int) -> str:
        """Of a stage of the program."""
        return {0: "embedding", self.num_layers + 1: "head"}.get(stage, "branch")

    def first(self, stage: int, dtype: torch.dtype) -> Tensor:
        """weight_N before the first step: variance 1 / inputs; bytes have variance one."""
        kind = self.kind(stage)
        generator = keyed_generator(random_key("branch", self.seed, stage))
        parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes(kind)]
        for place, part in enumerate(parts):
            if (kind, place) != ("embedding", 0):
                part.mul_(part.shape[1] ** -0.5)
        if kind == "branch":
            parts[1].mul_(self.spread)
        return torch.cat([part.flatten() for part in parts]).to(dtype)


def embed(training: BranchTraining, weight_N: Tensor, context_BC: Tensor) -> Tensor:
    """x_BD from the bytes before the one that is wanted."""
    bytes_VE, mix_DK = training.split("embedding", weight_N)
    return bytes_VE[context_BC].flatten(1) @ mix_DK.T


def branch(training: BranchTraining, weight_N: Tensor, x_BD: Tensor) -> Tensor:
    """What a layer adds to the stream."""
    up_UD, down_DU = training.split("branch", weight_N)
    return F.gelu(x_BD @ up_UD.T) @ down_DU.T


def loss_of(training: BranchTraining, weight_N: Tensor, y_BD: Tensor, target_B: Tensor) -> Tensor:
    """Mean nats of the next byte."""
    (head_VD,) = training.split("head", weight_N)
    return F.cross_entropy(y_BD @ head_VD.T, target_B)


def batch_of(training: BranchTraining, step: int) -> tuple[Tensor, Tensor]:
    """context_BC and target_B."""
    tokens, targets = Corpus.standard_library().batch(
        training.seed, step, range(training.batch), training.context
    )
    return tokens, targets[:, -1]


def _training(context: Any) -> BranchTraining:
    return BranchTraining(**context.options)


def embed_forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The stream that all branches read."""
    training = _training(context)
    weight_N = inputs[0].detach().requires_grad_()
    x_BD = embed(training, weight_N, batch_of(training, context.iteration)[0])
    context.state["embedding"] = (weight_N, x_BD)
    return (x_BD.detach(),)


def branch_forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What one branch adds; what its backward needs."""
    x_BD, weight_N = (value.detach().requires_grad_() for value in inputs)
    output = branch(_training(context), weight_N, x_BD)
    # a copy, because later branches are added in place and the graph may keep what it returned
    return output.detach().clone(), (x_BD, weight_N, output)


def head(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of the stream behind the branches, of the head, and the loss."""
    training = _training(context)
    x_BD, summed_BD, weight = inputs
    y_BD = (x_BD + summed_BD).requires_grad_()
    weight_N = weight.detach().requires_grad_()
    loss = loss_of(training, weight_N, y_BD, batch_of(training, context.iteration)[1])
    torch.autograd.backward(loss)
    return y_BD.grad, weight_N.grad, loss.detach()


def branch_backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of a branch's input and weights."""
    (x_BD, weight_N, output), gradient = inputs
    torch.autograd.backward(output, gradient)
    return x_BD.grad, weight_N.grad


def embed_backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of the embedding, past the branches and through them."""
    weight_N, x_BD = context.state.pop("embedding")
    torch.autograd.backward(x_BD, inputs[0] + inputs[1])
    return (weight_N.grad,)


def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Plain gradient descent."""
    gradient_N, weight_N = inputs
    return (weight_N - _training(context).rate * gradient_N,)


HANDLERS: Handlers = {
    REDUCE_BRANCHES: all_reduce,
    REDUCE_INPUT_GRADIENT: all_reduce,
    EMBED_F: embed_forward,
    BRANCH_F: branch_forward,
    HEAD: head,
    BRANCH_B: branch_backward,
    EMBED_B: embed_backward,
    BRANCH_STEP: step,
}
