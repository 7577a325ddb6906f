"""The learning rate: its corners, that it never leaves its range, and torch's own schedule beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training_case import Case, program_of, training_of

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.specs.error import SpecError
from meshwright.specs.training.learning_rate import LearningRate


def test_the_corners() -> None:
    rate = LearningRate(0.8, num_warmup=4, num_steps=21, final_share=0.25)
    assert [rate.at(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rate.at(4) == 0.8 and rate.at(20) == pytest.approx(0.2) and rate.at(1000) == pytest.approx(0.2)
    assert rate.at(12) == pytest.approx(0.5)  # the middle of the cosine is the mean of its ends
    assert [LearningRate(0.1).at(step) for step in (0, 10, 10_000)] == [0.1] * 3
    assert LearningRate(0.1, num_warmup=2).at(1_000_000) == 0.1


def test_it_is_torchs_cosine() -> None:
    ours = LearningRate(0.3, num_steps=11, final_share=0.1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.03)
    for step in range(11):
        assert ours.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        theirs.step()


@given(st.integers(0, 50), st.integers(1, 200), st.floats(0, 1), st.integers(0, 400))
def test_it_stays_between_nothing_and_the_peak(warmup: int, length: int, share: float, step: int) -> None:
    rate = LearningRate(2.0, warmup, length, share)
    assert 0 <= rate.at(step) <= 2.0 + 1e-12
    assert step < warmup or rate.at(step) >= 2.0 * share - 1e-12
    assert step < warmup or rate.at(step + 1) <= rate.at(step) + 1e-12


@pytest.mark.parametrize("given_", [(-1.0,), (math.nan,), (0.1, -1), (0.1, 0, 0), (0.1, 0, 10, 1.5)], ids=str)
def test_what_cannot_be_is_refused(given_: tuple[float, ...]) -> None:
    with pytest.raises(SpecError):
        LearningRate(*given_)  # type: ignore[arg-type]


def test_every_step_has_its_own_rate(gloo_pool: Pool) -> None:
    """SGD without decay moves a parameter by rate times gradient: with a rate of 0 at the end it stands still."""
    case = Case("1f1b", 2, 2, optimizer=OptimizerConfig("sgd", 0.1, weight_decay=0.0, clip_norm=None))
    stops = LearningRate(0.1, num_steps=3, final_share=0.0)
    runs = [
        run_training(program_of(case), training_of(case, learning_rate=stops), num, pool=gloo_pool)
        for num in (2, 3, 5)
    ]
    after_2, after_3, after_5 = (one.parameters for one in runs)
    assert all(
        torch.equal(after_2[name], after_3[name]) for name in after_2
    )  # step 2 is the end of the cosine
    assert all(torch.equal(after_3[name], after_5[name]) for name in after_3)
    constant = run_training(program_of(case), training_of(case), 2, pool=gloo_pool).parameters
    assert any(not torch.equal(after_2[name], constant[name]) for name in after_2)
