"""Four processes with copies drawn in every step are one process, in every number; a copy without tokens joins the sum."""

from __future__ import annotations

import pytest

from meshwright.executor.job.pool import Pool
from meshwright.systems.moe.hecate import study
from meshwright.systems.moe.hecate.mechanism import Move
from meshwright.systems.moe.hecate.ops import batch_of


def test_random_copies_over_five_steps(gloo_pool: Pool) -> None:
    moves = study.random_moves(0)
    found, alone = study.on_processes(moves, gloo_pool), study.alone()
    assert study.difference(found, alone) < 1e-10 and len(found.losses) == study.STEPS
    num_moves = sum(map(len, moves))
    expert_bytes = 8 * 3 * study.SHAPE.hidden * study.SHAPE.inner
    assert found.gathered_bytes == found.reduced_bytes == num_moves * expert_bytes > 0
    assert alone.losses[0] != alone.losses[-1]


@pytest.mark.slow
def test_no_copies_is_expert_parallelism_and_all_copies_send_no_rows(gloo_pool: Pool) -> None:
    every = [Move(x, int(study.OWNERS[x]), d) for x in range(8) for d in range(4) if d != study.OWNERS[x]]
    alone = study.alone(2)
    for moves in ([[], []], [every, every], [every, []]):
        found = study.on_processes(moves, gloo_pool)
        assert study.difference(found, alone) < 1e-10
        assert found.gathered_bytes == sum(map(len, moves)) * study.SHAPE.expert_numbers * 8


def test_there_are_copies_without_tokens_and_experts_without(gloo_pool: Pool) -> None:
    """Of the random copies of a test above: their gradient of zeros is sent all the same."""
    moves = study.random_moves(0)
    idle = [
        (step, move)
        for step, own in enumerate(moves)
        for move in own
        if not (batch_of(study.SHAPE, step, move.target).experts_TK == move.expert).any()
    ]
    assert idle
