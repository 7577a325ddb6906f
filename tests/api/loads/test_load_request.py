"""What `plan --requests` is asked for is read into SI units, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.api.loads.load_request import LoadRequest, arrivals_of, objective_of
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.arrival import Constant, Gamma, Poisson
from meshwright.specs.error import MeshwrightError, SpecError


def test_objectives_are_read_in_seconds() -> None:
    """What is not named is not asked for."""
    assert objective_of("ttft=2s,tpot=100ms") == LatencyObjective(2.0, 0.1)
    assert objective_of("e2e=1min") == LatencyObjective(e2e_s=60.0)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=2s,ttft=3s", "itl=1s", "ttft=0s", "ttft=x"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    """With what is allowed."""
    with pytest.raises(SpecError, match="ttft|allowed"):
        objective_of(text)


def test_arrival_processes_are_read_with_their_options() -> None:
    """A name, and numbers."""
    assert arrivals_of("poisson(rate_per_s=4)") == Poisson(4.0)
    assert arrivals_of("gamma(rate_per_s=0.5, variation=3, seed=7)") == Gamma(0.5, 3.0, 7)
    assert arrivals_of("constant") == Constant()


@pytest.mark.parametrize(
    "text", ["", "poison(rate_per_s=4)", "poisson(4)", "poisson(rate_per_s=0)", "poisson(rate=4)", "gamma("]
)
def test_an_arrival_process_that_is_none_is_refused(text: str) -> None:
    """A name nobody knows, an option it does not have, a value that cannot be."""
    with pytest.raises(MeshwrightError):
        arrivals_of(text)


def test_a_load_needs_requests() -> None:
    """What is said of a load without one, or twice, is refused."""
    with pytest.raises(SpecError, match="with --requests"):
        LoadRequest(first=5)
    with pytest.raises(SpecError, match="one of them"):
        LoadRequest(Path("a.csv"), arrivals=Poisson(1.0), rate_factor=2.0)
