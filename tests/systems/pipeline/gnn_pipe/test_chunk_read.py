"""What chunks read of each other: this epoch's embeddings of those before, the last epoch's of those behind."""

from __future__ import annotations

import pytest

from meshwright.ir.table import Effect
from meshwright.systems.pipeline.gnn_pipe.chunk_read import EMBEDDING, EMBEDDING_GRADIENT, ReadChunks
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import Chunks
from meshwright.systems.pipeline.gnn_pipe.graph_network import GraphNetwork

ORDER = (2, 0, 3, 1)
# a path of chunks 0 - 1 - 2 - 3
PATH = ReadChunks(GraphNetwork(4, 8, 20, 3), Chunks((5,) * 4, ((1,), (0, 2), (1, 3), (2,))), ORDER)


def named(patterns: tuple, kind: str) -> dict[int, int]:
    """Chunk and age of the patterns of a kind."""
    return {p.part_offset: p.age for p in patterns if p.kind == kind}


def ages(effect: Effect) -> dict[int, int]:
    """Of the embeddings that a forward reads."""
    return named(effect.reads, EMBEDDING.name)


@pytest.mark.parametrize(("chunk", "read"), [(2, {1: 1, 3: 1}), (0, {1: 1}), (3, {2: 0}), (1, {0: 0, 2: 0})])
def test_a_forward_reads_chunks_before_it_as_they_are(chunk: int, read: dict[int, int]) -> None:
    effect = PATH.forward(chunk)
    assert ages(effect) == read and named(effect.writes, EMBEDDING.name) == {chunk: 0}


@pytest.mark.parametrize(("chunk", "added"), [(2, set()), (0, set()), (3, {2}), (1, {0, 2})])
def test_a_backward_adds_to_what_its_forward_read_of_this_epoch(chunk: int, added: set[int]) -> None:
    effect = PATH.backward(chunk)
    assert set(named(effect.writes, EMBEDDING_GRADIENT.name)) == added
    is_read = any(ages(PATH.forward(other)).get(chunk) == 0 for other in range(4))
    assert set(named(effect.reads, EMBEDDING_GRADIENT.name)) == ({chunk} if is_read else set())
