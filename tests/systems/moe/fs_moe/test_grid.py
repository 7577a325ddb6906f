"""The grid of 1,458 layers: closed form beside the simulated list schedule, and who is how much faster."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.specs.error import UnknownNameError
from meshwright.systems.moe.fs_moe.card import form_over_schedule, sampled
from meshwright.systems.moe.fs_moe.chunk_program import chunk_program, simulated_seconds
from meshwright.systems.moe.fs_moe.grid import SCHEDULES, fitted, mean_speed_up, priced, settings
from meshwright.systems.moe.fs_moe.mechanism import MOST_CHUNKS, best_chunks


def test_the_grid_has_all_settings() -> None:
    assert len(set(settings("A"))) == len(set(settings("B"))) == 1458
    with pytest.raises(UnknownNameError, match="cluster of FSMoE"):
        fitted("C")


@pytest.mark.parametrize("cluster", ["A", "B"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_closed_form_is_the_schedule_on_some_of_the_grid(cluster: str, direction: str) -> None:
    assert form_over_schedule(cluster, direction, every=131) == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["A", "B"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_closed_form_is_the_schedule_on_all_of_the_grid(cluster: str, direction: str) -> None:
    assert form_over_schedule(cluster, direction, every=1) == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["A", "B"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_form_finds_the_chunks_that_simulation_finds(cluster: str, direction: str) -> None:
    """Within 1 % of the time of the best by brute force over simulated schedules."""
    for layer, chunks, gradients_s in sampled(cluster, direction, every=11):
        times = [simulated_seconds(layer, each, gradients_s) for each in range(1, MOST_CHUNKS + 1)]
        assert times[chunks - 1] <= 1.01 * min(times)


def test_programs_are_legal() -> None:
    layer = priced("B", next(settings("B"))).experts
    verify(chunk_program(layer, best_chunks(layer), reduces=True))


def test_schedules_stand_in_their_order() -> None:
    for cluster in ("A", "B"):
        ours, improved, tutel = (
            mean_speed_up(cluster, name) for name in ("FSMoE", "Tutel-Improved", "Tutel")
        )
        assert ours > improved > tutel == 1.0 > mean_speed_up(cluster, "DeepSpeed-MoE")
    with pytest.raises(UnknownNameError, match=next(iter(SCHEDULES))):
        mean_speed_up("A", "nobody")
