"""Pieces without a training: tensors cut into boxes at random, saved and loaded by one process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from meshwright.executor.checkpoint.checkpoint import RankCheckpoints, load_pieces
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.index import CheckpointInfo, read_index
from meshwright.executor.checkpoint.planner import RankFacts
from meshwright.executor.checkpoint.storage import DTYPES
from meshwright.executor.layout.piece import Piece
from meshwright.specs.training.checkpoints import Checkpoints

LEAST_CUT = 2  # a box of one element along a dimension is not cut there


def tensors(scale: float = 1.0) -> dict[str, Tensor]:
    """Of several shapes and dtypes, one a number."""
    generator = torch.Generator().manual_seed(1)
    return {
        "matrix": scale * torch.randn(7, 5, generator=generator),
        "cube": (scale * torch.randn(3, 4, 6, generator=generator)).to(torch.bfloat16),
        "vector": scale * torch.randn(11, generator=generator, dtype=torch.float64),
        "exp_avg/vector": scale * torch.randn(11, generator=generator),
        "step_count": torch.tensor(3.0 * scale),
    }


def whole(values: dict[str, Tensor]) -> list[Piece]:
    """Every tensor as one piece."""
    return [Piece(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in values.items()]


def cut(values: dict[str, Tensor], seed: int) -> list[Piece]:
    """Every tensor in boxes, by a few random cuts."""
    draw = random.Random(seed)
    return [piece for one in whole(values) for piece in _cut(one, draw, depth=3)]


def _cut(piece: Piece, draw: random.Random, depth: int) -> list[Piece]:
    dims = [dim for dim, size in enumerate(piece.sizes) if size >= LEAST_CUT]
    if not dims or not depth:
        return [piece]
    dim = draw.choice(dims)
    at = draw.randrange(1, piece.sizes[dim])
    found = []
    for first, length in ((0, at), (at, piece.sizes[dim] - at)):
        offsets = (*piece.offsets[:dim], piece.offsets[dim] + first, *piece.offsets[dim + 1 :])
        part = Piece(piece.name, piece.whole, offsets, piece.tensor.narrow(dim, first, length))
        found += _cut(part, draw, depth - 1)
    return found


def save(folder: Path, step: int, pieces: Sequence[Piece], **config: int) -> Path:
    """Save by one process, and wait."""
    checkpoints = RankCheckpoints(CheckpointConfig(Checkpoints(str(folder), **config)), lambda: pieces)  # type: ignore[arg-type]
    checkpoints.save(CheckpointInfo(step), RankFacts())
    checkpoints.close()
    return folder / f"step-{step}"


def stored(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, whole."""
    index = read_index(checkpoint)
    found = {name: torch.zeros(t.shape, dtype=DTYPES[t.dtype]) for name, t in index.tensors.items()}
    load_pieces(checkpoint, index, whole(found))
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Bitwise."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name
