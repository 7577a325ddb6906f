"""GNNPipe's program: legal in every order, its messages and times as the formulas say, its embeddings in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text, to_text
from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe import card as gnn_pipe
from meshwright.systems.pipeline.gnn_pipe import volume
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    NUMBER_BYTES,
    ChunkedGraph,
    Chunks,
    GraphNetwork,
    even_offsets,
)

NETWORK = GraphNetwork(4, 8, 20, 3)


def sparse_chunks(num_chunks: int, seed: int) -> Chunks:
    """Chunks of drawn sizes, about half of them with edges to each other."""
    draws = np.random.default_rng(seed)
    near = np.triu(draws.random((num_chunks, num_chunks)) < 0.5, 1)
    near |= near.T
    return Chunks(
        tuple(draws.integers(3, 9, num_chunks).tolist()),
        tuple(tuple(np.flatnonzero(r).tolist()) for r in near),
    )


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("gnn_pipe")
    assert "2308.10087" in card.paper and card.is_simulated and card.is_executed
    assert sum(claim.is_evidence for claim in card.claims) == 10
    own = [claim for claim in card.claims if ":" not in claim.by and claim.by != "volume_of_graphs"]
    assert own and all(claim.judge(getattr(gnn_pipe, claim.by)(**claim.arguments)).passed for claim in own)


@pytest.mark.slow
def test_real_graphs_are_where_deep_networks_pay(shared_data: Path) -> None:
    folder = shared_data / "workloads" / "graphs"
    assert 1 < gnn_pipe.volume_of_graphs("mean", folder) < gnn_pipe.volume_of_graphs("most", folder)
    # two halves of a citation network read a part of each other; sixteen layers of sixteen numbers
    assert gnn_pipe.bytes_of_parts("cora", folder) > 2 * 2708 * 16 * 4


def test_the_hybrid_lies_between_graph_parallelism_and_the_pipeline() -> None:
    """Ends are those of the two, whatever the graph; in between one border of a group pair is 2 |V| h."""
    network, graph = GraphNetwork(8, 16, 16, 16), gnn_pipe.ring_graph(600, 20)
    whole, halves = (ChunkedGraph(graph, even_offsets(600, parts)) for parts in (1, 2))
    pipeline = volume.num_sent_bytes(gnn_pipe.gnn_pipe(network, Chunks.of(whole), 4))
    assert volume.num_hybrid_bytes(whole, network, 4) == pipeline
    assert volume.num_hybrid_bytes(halves, network, 1) == volume.num_halo_bytes(halves, network)
    # two parts of a ring: each reads 20 nodes on either side, both ways in eight layers; then one border of groups
    assert volume.num_hybrid_bytes(halves, network, 2) == 4 * 16 * (2 * 8 * 2 * 40 + 2 * 600)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_epoch_is_a_legal_program(num_devices: int, seed: int) -> None:
    controller = gnn_pipe.ShuffledChunks(NETWORK, sparse_chunks(6, seed), num_devices, seed)
    for epoch in range(3):
        program = controller.next(epoch, {})
        verify(program)
        verify(program, host="in_order")
        assert from_text(to_text(program)).digest() == program.digest()


def test_the_controller_draws_an_order_an_epoch() -> None:
    controller = gnn_pipe.ShuffledChunks(NETWORK, Chunks.even(24, 8), 2, seed=3)
    orders = [controller.order(epoch) for epoch in range(5)]
    assert all(sorted(order) == list(range(8)) for order in orders) and len(set(map(tuple, orders))) == 5
    program = controller.next(4, {})
    forwards = [row.microbatch for row in program.instructions(1) if row.name == "GRAPH_F"]
    backwards = [row.microbatch for row in program.instructions(1) if row.name == "GRAPH_B"]
    assert forwards == orders[4] and backwards == orders[4][::-1]
    assert controller.next(4, {"loss": 1.0}).digest() == program.digest() != controller.next(3, {}).digest()


def test_messages_do_not_depend_on_chunks_or_edges() -> None:
    for chunks in (Chunks.even(30, 5), sparse_chunks(5, 1), Chunks((30,), ((),))):
        program = gnn_pipe.gnn_pipe(NETWORK, chunks, 4)
        assert volume.num_sent_bytes(program) == 2 * 3 * sum(chunks.sizes) * 8 * NUMBER_BYTES


@pytest.mark.parametrize(("num_devices", "num_chunks"), [(2, 3), (3, 12)])
def test_an_epoch_fills_and_drains_once(num_devices: int, num_chunks: int) -> None:
    assert gnn_pipe.span_over_busy(num_devices, num_chunks) == pytest.approx(
        (num_chunks + num_devices - 1) / num_chunks
    )


def test_old_embeddings_take_memory_between_epochs() -> None:
    wide = GraphNetwork(8, 64, 64, 64)
    chunks = Chunks.even(4000, 4)
    trace = gnn_pipe.simulated(gnn_pipe.gnn_pipe(wide, chunks, 2), epochs=3)
    unread = Chunks(chunks.sizes, ((),) * 4)
    without = gnn_pipe.simulated(gnn_pipe.gnn_pipe(wide, unread, 2), epochs=3)
    # the second device holds the inputs of four layers for all nodes
    history = 4 * 4000 * 64 * NUMBER_BYTES
    more = metrics.peak_bytes(trace, 1) - metrics.peak_bytes(without, 1)
    assert history * 0.9 < more < 2.2 * history


def test_wrong_orders_and_too_many_devices_are_refused() -> None:
    with pytest.raises(SpecError, match="each of the chunks 0 to 2 once"):
        gnn_pipe.gnn_pipe(NETWORK, Chunks.even(9, 3), 2, order=[0, 0, 1])
    with pytest.raises(SpecError, match="4 layers on 5 devices"):
        gnn_pipe.gnn_pipe(NETWORK, Chunks.even(9, 3), 5)
