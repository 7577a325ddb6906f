"""A rank's share of an iteration as numbers, and back."""

from __future__ import annotations

from tests.training_case import ADAMW, MODEL, SEQUENCE, Case, program_of

from meshwright.executor.job.group_reports import ShareFormat
from meshwright.executor.job.job import Job
from meshwright.executor.training.training_job import RANDOM, TrainingConfig


def test_a_share_comes_back_with_its_names() -> None:
    case = Case("1f1b", 2, 2)
    training = TrainingConfig(MODEL, (5, 4), SEQUENCE, ADAMW, source=RANDOM)
    share = ShareFormat(Job.of(program_of(case), 1, training=training))
    given = {
        "time": 12.5, "loss": 3.25, "squared_norm": 2.0, "computes": {"F": 0.5, "B": 1e-9}, "waits": {"RECV_F": 0.125},
    }  # fmt: skip
    numbers = share.numbers(given)
    assert numbers.shape == (share.num_numbers,)
    unsaid = dict.fromkeys(("router_loss", "num_dropped", "num_undone", "held_out_loss"), 0.0)
    assert share.fields(numbers) == {**given, **unsaid}
    evaluated = share.fields(share.numbers({"time": 13.0, "held_out_loss": 4.0}))
    assert evaluated["held_out_loss"] == 4.0 and evaluated["computes"] == {} == evaluated["waits"]
