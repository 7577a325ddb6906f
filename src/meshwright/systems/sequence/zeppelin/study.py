"""Remapped tokens here: a linear layer on four processes with even shares, beside each on its own tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.systems.sequence.zeppelin.ops import attended, linear
from meshwright.systems.sequence.zeppelin.remap import remapped
from meshwright.systems.sequence.zeppelin.remapped_rows import EVEN, OWN, remapped_linear

TOKENS, NODE = (29, 3, 16, 2), 2


def run(tokens: Sequence[int] = TOKENS, pool: Pool | None = None) -> tuple[list[int], float]:
    """Tokens of every rank in the layer, and the largest difference of its outputs to those of its own tokens alone."""
    moves = remapped(tokens, NODE)
    options = {"tokens": list(tokens), "moves": [list(move) for move in moves]}
    result = run_program(
        remapped_linear(len(tokens), moves),
        keep=(EVEN.name, OWN.name),
        options=options,
        dtype="float64",
        pool=pool,
    )
    even = [len(rank[ValueName(EVEN.name)]) for rank in result.values]
    errors = [
        float((rank[ValueName(OWN.name)] - linear(attended(number, count))).abs().max())
        for number, (rank, count) in enumerate(zip(result.values, tokens, strict=True))
    ]
    return even, max(errors)


def restored_difference(pool: Pool | None = None) -> float:
    """Of outputs behind the way back."""
    return run(pool=pool)[1]
