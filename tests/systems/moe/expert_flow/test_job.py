"""Caches on a routing file of one's own, through the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import runner

from meshwright.specs.error import SpecError
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing
from meshwright.systems.moe.expert_flow.job import CacheComparison, compare_caches


def test_a_routing_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_routing(markov_trace(120, 4, 16, 0.2, 0), tmp_path / "own.npz")
    run = runner(capsys)
    found = run("run", f'expert_flow(routing="{tmp_path / "own.npz"}", slots=20, tokens=100)')
    assert found.code == 0 and "100 tokens (drawn)" in found.stdout, found.stderr
    assert "least recently used" in found.stdout and "least frequently used" in found.stdout


def test_the_bound_is_the_most_and_uses_are_the_same(tmp_path: Path) -> None:
    save_routing(markov_trace(80, 4, 16, 0.2, 0), tmp_path / "own.npz")
    data = compare_caches(CacheComparison(str(tmp_path / "own.npz"), slots=20), 0, None).data
    hits = [each["hits"] for each in data["caches"]]
    assert max(hits) == hits[-1] and len({each["hits"] + each["misses"] for each in data["caches"]}) == 1
    assert data["active_experts"]["by_path"] <= data["active_experts"]["by_arrival"]


def test_what_is_no_routing_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", np.zeros((2, 2)))
    with pytest.raises(SpecError, match="own.npy"):
        compare_caches(CacheComparison(str(tmp_path / "own.npy")), 0, None)
