"""Graph convolutions of parts against the whole graph; handlers of a stage on chunks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.error import SpecError
from meshwright.specs.record import record
from meshwright.systems.pipeline.gnn_pipe.graph_file import load_chunked, save_chunked
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    ChunkedGraph,
    Chunks,
    Graph,
    ShuffledChunks,
    cut_graph,
)
from meshwright.systems.pipeline.gnn_pipe.ops import (
    Dropout,
    GraphTraining,
    adam_step,
    convolve,
    initial_weights,
    part_of,
    training_loss,
)
from meshwright.systems.pipeline.gnn_pipe.study import generated_graph, network_of, train_in_chunks

pytest.importorskip("torch")

SMALL = generated_graph(90)
THREE_CHUNKS, THREE_LAYERS = cut_graph(SMALL, 3), network_of(SMALL, 3, 8)
WEIGHTS = [initial_weights(THREE_LAYERS, layer, 5, torch.float64) for layer in range(3)]


def test_the_whole_is_the_formula() -> None:
    graph = THREE_CHUNKS.graph
    assert graph.features is not None
    x = torch.from_numpy(graph.features.toarray())
    a = torch.from_numpy(THREE_CHUNKS.propagation.toarray())
    for layer, flat in enumerate(WEIGHTS):
        taken, made = THREE_LAYERS.shape(layer)
        x = a @ x @ flat[: taken * made].view(taken, made) + flat[taken * made :]
        x = x if layer == 2 else x.relu()
    part, none = part_of(THREE_CHUNKS, None, torch.float64), Dropout(THREE_CHUNKS, 8, 0.0, 0, 0)
    found = convolve(THREE_LAYERS, range(3), part, WEIGHTS, None, {}, none)
    assert torch.allclose(found.output, x, atol=1e-12) and len(found.inputs) == 2


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_chunks_with_true_embeddings_are_rows_of_the_whole(probability: float) -> None:
    dropout = Dropout(THREE_CHUNKS, 8, probability, 1, 2)
    part = part_of(THREE_CHUNKS, None, torch.float64)
    whole = convolve(THREE_LAYERS, range(3), part, WEIGHTS, None, {}, dropout)
    pieces = [
        torch.stack(whole.inputs)[:, lo:hi]
        for lo, hi in zip(THREE_CHUNKS.offsets[:-1], THREE_CHUNKS.offsets[1:])
    ]
    outputs, losses = [], []
    for chunk in range(3):
        own = part_of(THREE_CHUNKS, chunk, torch.float64)
        others = {c: pieces[c] for c in own.halo_rows}
        assert set(others) == set(THREE_CHUNKS.neighbours[chunk])
        outputs.append(convolve(THREE_LAYERS, range(3), own, WEIGHTS, None, others, dropout).output)
        losses.append(training_loss(own, outputs[-1], len(part.train)))
    assert torch.allclose(torch.cat(outputs), whole.output, atol=1e-12)
    assert float(sum(losses)) == pytest.approx(float(training_loss(part, whole.output, len(part.train))))


def test_dropout_is_keyed_by_seed_epoch_and_layer() -> None:
    nodes = torch.arange(90)
    scale = Dropout(THREE_CHUNKS, 8, 0.25, 1, 2).scale(1, nodes)
    assert scale.unique().tolist() == [0.0, pytest.approx(4 / 3)] and 0.1 < (scale == 0).double().mean() < 0.4
    assert torch.equal(Dropout(THREE_CHUNKS, 8, 0.25, 1, 2).scale(1, nodes[7:9]), scale[7:9])
    others = [(2, 2, 1), (1, 3, 1), (1, 2, 2)]
    assert all(
        not torch.equal(Dropout(THREE_CHUNKS, 8, 0.25, s, e).scale(layer, nodes), scale)
        for s, e, layer in others
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


pytest.importorskip("torch")

GRAPH = generated_graph(80)
CHUNKED, NETWORK = cut_graph(GRAPH, 4), network_of(GRAPH, 4, 6)
FROZEN = GraphTraining(NETWORK, rate=0.0, decay=0.0, dropout=0.0, dtype="float64")


def cut_gradients(weights: list[torch.Tensor], order: list[int]) -> list[torch.Tensor]:
    """Of the whole graph, where a chunk's neighbours in chunks behind it are constants."""
    graph, labels = CHUNKED.graph, CHUNKED.graph.labels
    assert graph.features is not None and labels is not None
    place = np.argsort(order)[CHUNKED.chunk_of(np.arange(graph.num_nodes))]
    is_current = torch.from_numpy(place[None, :] <= place[:, None])
    a = torch.from_numpy(CHUNKED.propagation.toarray())
    x, leaves = torch.from_numpy(graph.features.toarray()), [w.clone().requires_grad_() for w in weights]
    for layer, flat in enumerate(leaves):
        taken, made = NETWORK.shape(layer)
        weight, bias = flat[: taken * made].view(taken, made), flat[taken * made :]
        x = (a * is_current) @ x @ weight + (a * ~is_current) @ x.detach() @ weight + bias
        x = x if layer == 3 else x.relu()
    train = graph.split["train"]
    torch.nn.functional.cross_entropy(x[train], torch.from_numpy(labels[train])).backward()
    return [leaf.grad for leaf in leaves]


def first_moments(num_epochs: int, pool: Pool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights, and Adam's means of gradients, of all layers."""
    reached = train_in_chunks(CHUNKED, FROZEN, num_epochs, pool)
    found = {n: v for rank in reached.values for n, v in rank.items()}
    return reached.weights(), [found[ValueName("optimizer_state", layer)][0] for layer in range(4)]


def test_gradients_are_the_whole_graphs_less_those_of_old_embeddings(gloo_pool: Pool) -> None:
    # with frozen weights embeddings are exact behind three epochs, so the fifth epoch's gradient is known
    weights, before = first_moments(4, gloo_pool)
    _, behind = first_moments(5, gloo_pool)
    found = [(b - 0.9 * a) / 0.1 for a, b in zip(before, behind, strict=True)]
    order = ShuffledChunks(NETWORK, Chunks.of(CHUNKED), 2, FROZEN.seed).order(4)
    wanted = cut_gradients(weights, order)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12) and float(other.abs().max()) > 1e-3
    other_order = cut_gradients(weights, order[::-1])
    assert not torch.allclose(found[0], other_order[0], atol=1e-6)


def test_a_graph_is_written_and_read(tmp_path: Path) -> None:
    save_chunked(CHUNKED, tmp_path / "a.npz")
    read = load_chunked(str(tmp_path / "a.npz"))
    assert np.array_equal(read.graph.edges, CHUNKED.graph.edges) and read.sizes == CHUNKED.sizes
    assert read.graph.features is not None and CHUNKED.graph.features is not None
    assert (read.graph.features != CHUNKED.graph.features).nnz == 0
    assert np.array_equal(read.graph.split["train"], CHUNKED.graph.split["train"])


def test_a_training_travels_as_a_mapping() -> None:
    assert record(GraphTraining, asdict(FROZEN), "options") == FROZEN
    assert FROZEN.decay_of(0) == FROZEN.decay and GraphTraining(NETWORK).decay_of(1) == 0.0
