"""A slowed compute takes the factor of its own processor time, and never less."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from meshwright.executor.rank import slowed_compute
from meshwright.executor.rank.rank_list import RankList
from meshwright.executor.rank.slowed_compute import slow_computes, stretch
from meshwright.ir.table import Kind


class Ticks:
    """A clock that advances by a tick whenever it is read, as if reading were the work."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_time_is_added_in_proportion(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticks(10.5)
    monkeypatch.setattr(slowed_compute, "compute_seconds", clock)
    stretch(factor, 10.0)
    assert clock.now_s - 10.0 == pytest.approx(factor * 0.501, abs=2e-3)


def test_without_a_factor_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticks(10.5)
    monkeypatch.setattr(slowed_compute, "compute_seconds", clock)
    stretch(1.0, 10.0)
    assert clock.now_s == 10.5


@pytest.mark.parametrize(("factor", "stretched"), [(1.0, []), (3.0, [3.0, 3.0])])
def test_only_computes_of_a_list_are_slowed(
    factor: float, stretched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(slowed_compute, "stretch", lambda factor, begin_s: seen.append(factor))
    kinds = (Kind.COMPUTE, Kind.SEND, Kind.COMPUTE)
    steps = [SimpleNamespace(row=SimpleNamespace(kind=kind), handler=lambda *given: given) for kind in kinds]
    slow_computes(cast(RankList, SimpleNamespace(steps=steps)), factor)
    assert [step.handler(1, 2, 3) for step in steps] == [(1, 2, 3)] * 3
    assert seen == stretched
