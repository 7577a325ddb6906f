"""`check --run`: every gradient of a schedule beside one process, on processes; and what is said where they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Runner

from meshwright.api.subjects import schedule_execution
from meshwright.api.subjects.schedule_execution import TOLERANCE, Execution, execute_schedule
from meshwright.cli.look import schedule_run
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import SpecError


@pytest.mark.parametrize(("name", "choices"), [("1f1b", {"recompute": True}), ("zbv", {})])
def test_gradients_are_those_of_one_process(name: str, choices: dict[str, bool], gloo_pool: Pool) -> None:
    ran = execute_schedule(name, stages=2, microbatches=3, pool=gloo_pool, **choices)
    assert ran.difference < TOLERANCE and ran.is_equal and ran.num_gradients > 10
    assert ran.losses == pytest.approx(ran.expected_losses, rel=1e-12)
    assert ran.losses[0] != ran.losses[1]


def test_orders_of_a_file_say_their_own_counts(gloo_pool: Pool, tmp_path: Path) -> None:
    from meshwright import api
    from meshwright.ir.text import to_torch_csv

    path = tmp_path / "orders.csv"
    path.write_text(to_torch_csv(api.subject("v_half", stages=2, microbatches=3).program))
    assert execute_schedule(str(path), pool=gloo_pool).is_equal


def test_another_batch_has_other_gradients(gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = schedule_execution._trained
    seeds = iter((0, 1))
    monkeypatch.setattr(
        schedule_execution,
        "_trained",
        lambda program, stages, layers, seed, pool: trained(program, stages, layers, next(seeds), pool),
    )
    ran = execute_schedule("1f1b", stages=2, microbatches=2, pool=gloo_pool)
    assert not ran.is_equal and ran.difference > 1e-3


@pytest.mark.parametrize(("difference", "code", "word"), [(1e-15, 0, "yes"), (1e-3, 3, "no")])
def test_a_difference_is_the_honest_no(
    run: Runner, schedule_file: Path, monkeypatch: pytest.MonkeyPatch, difference: float, code: int, word: str
) -> None:
    made = Execution("wave", (1.0,), (1.0,), 5, difference, None)
    monkeypatch.setattr(schedule_run, "execute_schedule", lambda schedule, **choices: made)
    arguments = ("check", "--schedule", f"{schedule_file}:wave", "--run", "-p", 2, "-m", 2)
    ran = run(*arguments)
    assert ran.code == code and f"executed          {word}, 5 gradients" in ran.stdout
    assert run(*arguments, "--json").data["executed"]["gradients_equal"] is (code == 0)


def test_what_is_refused_is_not_run(
    run: Runner, schedule_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_run, "execute_schedule", lambda *given, **choices: pytest.fail("it ran"))
    assert run("check", "--schedule", f"{schedule_file}:backwards", "--run", "-p", 2, "-m", 2).code == 3


def test_too_many_processes_are_refused() -> None:
    with pytest.raises(SpecError, match="17 devices"):
        execute_schedule("1f1b", stages=17)
