"""Solve: the number found does, the next does not, and trying everything finds no other."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.search.search import search
from meshwright.planner.search.solve import largest_count, largest_microbatch, longest_sequence
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Workload, load_model
from meshwright.specs.error import OutOfMemoryError, PlanError

MODEL = ModelSpec.decoder(8, 4096, 32, max_sequence_length=8192, vocabulary_size=32000)
FIX: dict[str, Any] = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
TWO = Cluster("2xH100")


def fits(cluster: ClusterSpec, batch: int, length: int, **fix: Any) -> bool:
    try:
        search(MODEL, cluster, Workload(batch, length), fix={**FIX, **fix}, num_simulated=1)
    except OutOfMemoryError:
        return False
    return True


def test_the_longest_sequence_fits_and_no_longer_one_does() -> None:
    solution = longest_sequence(MODEL, TWO, 4, unit=4096, fix={**FIX, "tp": 2}, num_simulated=2)
    assert solution.what == "seq" and solution.value % 4096 == 0
    assert solution.found[0].plan.workload.sequence_length == solution.value
    assert solution.found[0].bound_bytes > 0 and fits(TWO, 4, solution.value, tp=2)
    assert not any(fits(TWO, 4, solution.value + 4096 * k, tp=2) for k in (1, 2, 5))
    by_value = {each.value: each.does for each in solution.attempts}
    assert by_value[solution.value] and not by_value[solution.value + 4096]
    assert any("made for 8192" in note for note in solution.notes)


def test_less_memory_and_fewer_choices_allow_less() -> None:
    whole = longest_sequence(MODEL, TWO, 4, unit=8192, fix=FIX, num_simulated=1)
    less = longest_sequence(MODEL, TWO, 4, unit=8192, fix=FIX, num_simulated=1, max_memory_bytes=60 * 10**9)
    plain = longest_sequence(MODEL, TWO, 4, unit=8192, fix={**FIX, "recompute": "none"}, num_simulated=1)
    assert less.value < whole.value and plain.value < whole.value


def test_the_largest_microbatch_is_the_largest_of_all_that_fit() -> None:
    fix = {**FIX, "recompute": "none", "tp": 1, "pp": 1}
    solution = largest_microbatch(MODEL, TWO, Workload(96, 4096), fix=fix, num_simulated=1)
    sizes = [size for size in range(1, 49) if 48 % size == 0]
    alone = [
        size for size in sizes if fits(TWO, 96, 4096, recompute="none", tp=1, pp=1, microbatch_size=size)
    ]
    assert solution.value == max(alone) < 48
    assert solution.found[0].plan.microbatch_size == solution.value
    assert [each.does for each in solution.attempts] == [True] + [False] * (len(solution.attempts) - 1)


def test_what_never_fits_names_the_nearest_misses() -> None:
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        longest_sequence(load_model("llama-3.1-70b"), TWO, 2, fix=FIX)
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        largest_microbatch(load_model("llama-3.1-70b"), TWO, Workload(2, 4096), fix=FIX)


def test_mistakes_are_refused() -> None:
    with pytest.raises(PlanError, match="unit"):
        longest_sequence(MODEL, TWO, 4, unit=0)
    with pytest.raises(PlanError, match="solved for"):
        largest_microbatch(MODEL, TWO, Workload(4, 4096), fix={"microbatch_size": 2})


@pytest.mark.parametrize("most", [1, 2, 7, 100, 128])
def test_counts_are_found_by_doubling_and_bisecting(most: int) -> None:
    for limit in range(most + 3):
        assert largest_count(range(limit + 1).__contains__, most) == (min(limit, most), True)


def test_a_count_behind_the_first_failure_is_found_and_said() -> None:
    assert largest_count(lambda n: n <= 9 or n == 11, 100) == (11, False)
