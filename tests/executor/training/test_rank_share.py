"""What a tensor-parallel rank holds is its share of the matrices: the closed form of its layout, not the whole model."""

from __future__ import annotations

import pytest
import torch
from tests.executor.test_layouts import planned
from torch import Tensor

from meshwright.executor.training.rank_training import TrainingState

TP = 2


def parameters(rank: int, **choices: object) -> dict[str, Tensor]:
    """Parameters of a rank by name, without any process."""
    job, _ = planned(**choices).job(1)
    assert job.training is not None
    state = TrainingState(job.training, job.program, rank, torch.float64, torch.device("cpu"))
    return {n: p for stage in state.stages.values() for n, p in stage.global_parameters().items()}


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize("rank", range(TP))
def test_a_rank_holds_its_share(rank: int, is_divided: bool) -> None:
    own, whole = parameters(rank, tp=TP, sequence_parallel=is_divided), parameters(0)
    assert own.keys() == whole.keys()
    expected = sum(each.nbytes / (1 if "norm" in name else TP) for name, each in whole.items())
    held = sum(each.nbytes for each in own.values())
    assert held == pytest.approx(expected, rel=0.01)
    assert sum(each.nbytes for each in whole.values()) > 1.5 * held, (
        "a rank with whole matrices would be seen"
    )
