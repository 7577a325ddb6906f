"""Graph convolutions: parts agree with the whole, dropout with itself, the optimizer with PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.edge_list import Graph
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import ChunkedGraph, cut_graph
from meshwright.systems.pipeline.gnn_pipe.graph_convolution import (
    Dropout,
    adam_step,
    convolve,
    initial_weights,
    part_of,
    training_loss,
)
from meshwright.systems.pipeline.gnn_pipe.study import generated_graph, network_of

GRAPH = generated_graph(90)
CHUNKED, NETWORK = cut_graph(GRAPH, 3), network_of(GRAPH, 3, 8)
WEIGHTS = [initial_weights(NETWORK, layer, 5, torch.float64) for layer in range(3)]


def test_the_whole_is_the_formula() -> None:
    graph = CHUNKED.graph
    assert graph.features is not None
    x = torch.from_numpy(graph.features.toarray())
    a = torch.from_numpy(CHUNKED.propagation.toarray())
    for layer, flat in enumerate(WEIGHTS):
        taken, made = NETWORK.shape(layer)
        x = a @ x @ flat[: taken * made].view(taken, made) + flat[taken * made :]
        x = x if layer == 2 else x.relu()
    part, none = part_of(CHUNKED, None, torch.float64), Dropout(CHUNKED, 8, 0.0, 0, 0)
    found = convolve(NETWORK, range(3), part, WEIGHTS, None, {}, none)
    assert torch.allclose(found.output, x, atol=1e-12) and len(found.inputs) == 2


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_chunks_with_true_embeddings_are_rows_of_the_whole(probability: float) -> None:
    dropout = Dropout(CHUNKED, 8, probability, 1, 2)
    part = part_of(CHUNKED, None, torch.float64)
    whole = convolve(NETWORK, range(3), part, WEIGHTS, None, {}, dropout)
    pieces = [
        torch.stack(whole.inputs)[:, lo:hi] for lo, hi in zip(CHUNKED.offsets[:-1], CHUNKED.offsets[1:])
    ]
    outputs, losses = [], []
    for chunk in range(3):
        own = part_of(CHUNKED, chunk, torch.float64)
        others = {c: pieces[c] for c in own.halo_rows}
        assert set(others) == set(CHUNKED.neighbours[chunk])
        outputs.append(convolve(NETWORK, range(3), own, WEIGHTS, None, others, dropout).output)
        losses.append(training_loss(own, outputs[-1], len(part.train)))
    assert torch.allclose(torch.cat(outputs), whole.output, atol=1e-12)
    assert float(sum(losses)) == pytest.approx(float(training_loss(part, whole.output, len(part.train))))


def test_dropout_is_keyed_by_seed_epoch_and_layer() -> None:
    nodes = torch.arange(90)
    scale = Dropout(CHUNKED, 8, 0.25, 1, 2).scale(1, nodes)
    assert scale.unique().tolist() == [0.0, pytest.approx(4 / 3)] and 0.1 < (scale == 0).double().mean() < 0.4
    assert torch.equal(Dropout(CHUNKED, 8, 0.25, 1, 2).scale(1, nodes[7:9]), scale[7:9])
    others = [(2, 2, 1), (1, 3, 1), (1, 2, 2)]
    assert all(
        not torch.equal(Dropout(CHUNKED, 8, 0.25, s, e).scale(layer, nodes), scale) for s, e, layer in others
    )


def test_the_step_is_pytorchs() -> None:
    weights, moments = torch.randn(6, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.float64)
    theirs = weights.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1, weight_decay=0.01)
    for epoch in range(3):
        gradient = torch.randn(6, dtype=torch.float64)
        weights, moments = adam_step(weights, gradient, moments, 0.1, 0.01, epoch)
        theirs.grad = gradient
        optimizer.step()
    assert torch.allclose(weights, theirs.detach(), atol=1e-12)


def test_a_graph_without_labels_cannot_be_trained_on() -> None:
    bare = ChunkedGraph(Graph("bare", 3, np.array([[0, 1], [1, 2]])), np.array([0, 3]))
    with pytest.raises(SpecError, match="bare cannot be trained on"):
        part_of(bare, 0, torch.float32)
