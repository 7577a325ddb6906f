"""Remapped tokens on four processes: even in the layer, and behind it bitwise what every rank makes of its own tokens."""

from __future__ import annotations

from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.systems.sequence.zeppelin import study
from meshwright.systems.sequence.zeppelin.remap import remapped
from meshwright.systems.sequence.zeppelin.remapped_rows import remapped_linear


def test_a_linear_layer_on_even_shares_gives_every_rank_its_own_outputs(gloo_pool: Pool) -> None:
    even, error = study.run(pool=gloo_pool)
    assert sum(even) == sum(study.TOKENS) and max(even) - min(even) <= 1
    assert error == 0.0


def test_who_sends_to_several_gets_its_outputs_back_in_order(gloo_pool: Pool) -> None:
    tokens = (41, 2, 1, 4)
    assert len({move.target for move in remapped(tokens, study.NODE) if move.source == 0}) == 3
    even, error = study.run(tokens, gloo_pool)
    assert even == [12, 12, 12, 12] and error == 0.0


def test_its_program_is_legal() -> None:
    verify(remapped_linear(4, remapped(study.TOKENS, study.NODE)))
    verify(remapped_linear(3, []))
