"""Ladder blocks executed: two processes are one, the last all-reduce is the only wait, byte models learn."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.architecture.ladder_residual import study


@pytest.mark.parametrize("form", ["ladder", "standard"])
def test_two_processes_are_one(form: str, gloo_pool: Pool) -> None:
    assert study.output_difference(form, gloo_pool) < 1e-10


def test_a_ladder_is_another_function() -> None:
    x, weights = study.stream_input(), study.whole_weights(2)
    ladder, standard = (study.one_process(form, x, weights) for form in ("ladder", "standard"))
    assert float((ladder - standard).abs().max() / standard.abs().max()) > 1e-3


def test_both_forms_wait_where_their_programs_say(gloo_pool: Pool) -> None:
    assert study.executed_waits("standard", 2, gloo_pool) == 4
    assert study.executed_waits("ladder", 2, gloo_pool) == 1


def test_byte_models_start_alike_and_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "NUM_HELD_OUT", 16)
    standard, ladder = (study.trained_loss(form, 0, 20) for form in ("standard", "ladder"))
    assert standard != ladder
    assert max(standard, ladder) < 5.0  # from log(256) = 5.5


@pytest.mark.slow
def test_losses_are_alike() -> None:
    assert study.loss_ratio() == pytest.approx(1.0, abs=0.02)
    assert study.mean_loss("ladder") < 3.0  # below the entropy of single bytes
