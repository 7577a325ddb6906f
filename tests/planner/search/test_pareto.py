"""Pareto: the frontier is the brute-force one, its members are simulated, and none beats another in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.search.pareto import frontier, undominated
from meshwright.planner.search.search import search
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ModelSpec, Workload, load_model
from meshwright.specs.error import OutOfMemoryError

MODEL = ModelSpec.decoder(8, 2048, 16, max_sequence_length=4096, vocabulary_size=32000)
JOB = MODEL, Cluster("4xH100"), Workload(16, 4096)
FIX = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
WITHIN: dict[str, Any] = {
    "fix": {**FIX, "microbatch_size": (1, 2)},
    "forbid": ("cp", "zero2", "interleaved_1f1b"),
}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40))
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    step, peak = (np.array([float(pair[axis]) for pair in pairs]) for axis in (0, 1))
    found = undominated(step, peak).tolist()
    expected = {
        pair for pair in pairs if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in pairs)
    }
    assert [pairs[number] for number in found] == sorted(expected)


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), max_size=40), st.floats(0, 0.5))
def test_a_least_gain_only_thins_the_frontier(pairs: list[tuple[float, float]], gain: float) -> None:
    step, peak = (np.array([pair[axis] for pair in pairs]) for axis in (0, 1))
    whole, thin = undominated(step, peak).tolist(), undominated(step, peak, gain).tolist()
    assert set(thin) <= set(whole) and thin[:1] == whole[:1]
    assert all(
        peak[after] <= (1 - gain) * peak[before] for before, after in zip(thin, thin[1:], strict=False)
    )


def test_members_are_simulated_plans_from_the_fastest_to_the_smallest() -> None:
    found = frontier(*JOB, **WITHIN, num_simulated=6)
    steps, peaks = [each.step.value for each in found], [each.peak_bytes for each in found]
    assert 2 <= len(found) <= 6 < found.num_on_frontier
    assert steps == sorted(steps) and peaks == sorted(peaks, reverse=True)
    assert found[0].step == predict(found[0].plan, JOB[1]).step
    assert found[0].step.value <= 1.02 * search(*JOB, **WITHIN, num_simulated=8)[0].step.value


def test_a_limit_of_memory_cuts_the_frontier() -> None:
    whole = frontier(*JOB, **WITHIN, num_simulated=6)
    limit = int((whole[0].peak_bytes + whole[-1].peak_bytes) / 2) + 3 * 10**9
    cut = frontier(*JOB, **WITHIN, num_simulated=6, max_memory_bytes=limit)
    assert all(each.peak_bytes <= limit for each in cut)
    assert cut[0].step.value >= whole[0].step.value * (1 - 1e-9)


def test_nothing_fits_is_said_as_the_search_says_it() -> None:
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        frontier(load_model("llama-3.1-70b"), Cluster("2xH100"), Workload(2, 4096), fix=FIX)
