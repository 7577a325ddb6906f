"""The space of plans is complete, ranked, the same every time, and honest where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.planner.space_case import MODEL, WORKLOAD, cluster, search
from tests.specs.configs import MIXTRAL

from meshwright.planner import choices, every_plan
from meshwright.planner import search as planned
from meshwright.planner.search.objective import Objective
from meshwright.planner.search.pareto import frontier
from meshwright.planner.search.solve import largest_microbatch, longest_sequence
from meshwright.schedules import registered
from meshwright.specs import ModelSpec, OutOfMemoryError, Plan, PlanError, Workload, load_model


def test_two_devices_allow_data_parallel_and_every_schedule() -> None:
    plans = list(choices(MODEL, cluster(), WORKLOAD, registered(), {}))
    pipelines = {plan.schedule for plan in plans if plan.pp == 2}
    assert pipelines == set(registered())
    assert {plan.dp for plan in plans} == {1, 2}
    assert {plan.recompute for plan in plans} == {"none", "full"}
    assert {plan.microbatch_size for plan in plans if plan.dp == 2} == {
        1,
        2,
        4,
    }  # 8 do not divide a share of 4
    assert all(not plan.split_backward for plan in plans if plan.schedule == "zb_h1" or plan.pp == 1)
    assert any(plan.split_backward for plan in plans)


def test_a_schedule_is_tried_on_as_many_devices_as_it_takes() -> None:
    plans = list(choices(MODEL, cluster(3), WORKLOAD, registered(), {"pp": 3}))
    tried = {name for name, one in registered().items() if one.takes_devices(3) and one.num_chunks == 1}
    assert {plan.schedule for plan in plans} == tried and "dualpipe" not in tried


@pytest.mark.parametrize("vocabulary", ["one_barrier", "interlaced"])
def test_a_split_vocabulary_is_tried_with_the_orders_that_take_it(
    vocabulary: str,
) -> None:
    """Stages on one device each: not dualpipe's, nor those of an example that other tests register."""
    fix = {"pp": 2, "vocabulary": vocabulary, "recompute": "none"}
    tried = {plan.schedule for plan in choices(MODEL, cluster(), WORKLOAD, registered(), fix)}
    of_one_copy = {name for name, order in registered().items() if order.num_copies == 1}
    assert tried == ({"1f1b"} if vocabulary == "interlaced" else of_one_copy)
    assert search(fix=fix, microbatch_sizes=(2,))[0].plan.vocabulary == vocabulary
    assert search(fix={"pp": 2, "schedule": "1f1b", "vocabulary": vocabulary}, microbatch_sizes=(4,))


def test_stages_never_outnumber_layers() -> None:
    plans = list(choices(MODEL, cluster(8), WORKLOAD, registered(), {}))
    assert max(plan.num_stages for plan in plans) == MODEL.num_layers


def test_what_is_fixed_stays() -> None:
    fix = {"pp": 2, "recompute": "full", "dtype": "bfloat16"}
    plans = list(choices(MODEL, cluster(), WORKLOAD, registered(), fix))
    assert plans and all((plan.pp, plan.recompute, plan.dtype) == (2, "full", "bfloat16") for plan in plans)


def test_candidates_are_ranked_and_no_program_comes_twice() -> None:
    ranking = search(microbatch_sizes=(1, 8))
    steps = [candidate.step.value for candidate in ranking]
    assert steps == pytest.approx(sorted(steps), rel=1e-8)
    digests = [candidate.program.digest() for candidate in ranking]
    assert len(set(digests)) == len(digests)


@pytest.mark.slow
def test_the_same_search_gives_the_same_ranking() -> None:
    first, second = (search(microbatch_sizes=(2,)) for _ in range(2))
    assert [c.plan for c in first] == [c.plan for c in second]
    assert [c.step for c in first] == [c.step for c in second]


def test_what_does_not_fit_is_kept_with_its_reason() -> None:
    peaks = sorted(candidate.bound_bytes for candidate in search(microbatch_sizes=(4,)))
    limit = int(peaks[len(peaks) // 2])
    ranking = search(cluster(memory_bytes=limit), microbatch_sizes=(4,))
    every = {candidate.plan for candidate in search(microbatch_sizes=(4,))}
    assert {c.plan for c in ranking} | {miss.plan for miss in ranking.rejected} >= every
    assert all(candidate.bound_bytes <= limit for candidate in ranking)
    for miss in ranking.rejected:
        assert miss.needed_bytes > limit == miss.available_bytes
        assert sum(size for _, size in miss.holders) == pytest.approx(miss.needed_bytes, abs=1)
        assert "device" in miss.reason


def _plans(size: int) -> Iterator[Plan]:
    return choices(MODEL, cluster(), WORKLOAD, registered(), {}, (size,))


def test_nothing_fits() -> None:
    with pytest.raises(OutOfMemoryError) as error:
        search(cluster(memory_bytes=100_000), microbatch_sizes=(1,))
    assert "nearest misses" in str(error.value) and "optimizer state" in str(error.value)
    assert error.value.holders[0][1] >= error.value.holders[-1][1]
    assert error.value.exit_code == 3


def test_a_batch_that_no_degree_divides() -> None:
    with pytest.raises(PlanError, match="batch of 7"):
        every_plan(MODEL, cluster(), Workload(7, 64), microbatch_sizes=(2,))


def test_progress_names_every_plan() -> None:
    seen: list[tuple[str, float]] = []
    search(microbatch_sizes=(8,), progress=lambda what, share: seen.append((what, share)))
    assert len(seen) == len(list(_plans(8)))
    assert seen[0][1] == 0.0 and all(share < 1 for _, share in seen)


@pytest.mark.parametrize(
    "fix", [{"microbatch_size": 3}, {"num_chunks": 4, "schedule": "interleaved_1f1b", "pp": 2}]
)
def test_what_is_fixed_may_lie_outside_of_what_is_tried(fix: dict[str, object]) -> None:
    model = ModelSpec.decoder(8, 64, 4, max_sequence_length=64)
    plans = list(choices(model, cluster(), Workload(12, 64), registered(), fix))
    assert plans and all(getattr(plan, name) == value for plan in plans for name, value in fix.items())


@pytest.mark.parametrize("fix", [{"microbatch_size": 0}, {"microbatch_size": "4"}, {"num_chunks": 0}])
def test_counts_that_are_fixed_are_counts(fix: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="a whole number from 1"):
        list(choices(MODEL, cluster(), WORKLOAD, registered(), fix))


def test_what_is_forbidden_is_in_no_plan() -> None:
    found = search(microbatch_sizes=(4,), forbid=("full", "gpipe", "dp"))
    assert {plan.plan.dp for plan in found} == {1}
    assert not {"full", "gpipe"} & {
        name for each in found for name in (each.plan.recompute, each.plan.schedule)
    }
    with pytest.raises(PlanError, match="no 'nonsense' to forbid"):
        search(forbid=("nonsense",))


def test_several_values_may_be_fixed() -> None:
    plans = list(choices(MODEL, cluster(), WORKLOAD, registered(), {"microbatch_size": (1, 4), "pp": 1}))
    assert {plan.microbatch_size for plan in plans} == {1, 4} and {plan.pp for plan in plans} == {1}


def test_a_fixed_expert_degree_leaves_the_degrees_that_it_divides() -> None:
    experts = load_model({**MIXTRAL, "num_local_experts": 4})
    plans = list(choices(experts, cluster(), WORKLOAD, registered(), {"ep": 2}))
    assert {(plan.pp, plan.dp, plan.ep) for plan in plans} == {(1, 2, 2)}
    with pytest.raises(PlanError, match=r"ep\(2\) = 2 does not divide dp\(1\)"):
        list(choices(experts, cluster(), WORKLOAD, registered(), {"ep": 2, "pp": 2}))


def test_less_memory_and_less_time_leave_fewer_plans() -> None:
    whole = search(microbatch_sizes=(4,))
    limit = int(sorted(each.bound_bytes for each in whole)[len(whole) // 2])
    tight = search(microbatch_sizes=(4,), max_memory_bytes=limit)
    assert 0 < len(tight) < len(whole) and all(each.bound_bytes <= limit for each in tight)
    assert whole.is_complete and whole.optimality_gap == 0.0
    early = search(microbatch_sizes=(4,), time_limit_s=1e-9)
    assert len(early) == 1 and not early.is_complete and early.optimality_gap is None


def test_memory_may_be_what_is_least() -> None:
    found = search(microbatch_sizes=(1, 4), objective=Objective.MEMORY)
    assert [each.peak_bytes for each in found] == sorted(each.peak_bytes for each in found)


@pytest.mark.slow
def test_processes_have_a_frontier_and_a_longest_sequence() -> None:
    whole = planned(MODEL, cluster(), WORKLOAD, microbatch_sizes=(2,), fix={"recompute": ("none", "full")})
    front = frontier(MODEL, cluster(), WORKLOAD, microbatch_sizes=(2,))
    assert front[0].step.value == whole[0].step.value and front.num_on_frontier == len(front) < len(whole)
    peaks = [each.peak_bytes for each in front]
    assert peaks == sorted(peaks, reverse=True)
    small = cluster(memory_bytes=40_000_000)
    longest = longest_sequence(MODEL, small, 8, unit=64, fix={"pp": 2, "microbatch_size": 4})
    assert longest.value % 64 == 0 and {each.does for each in longest.attempts} == {True, False}
    largest = largest_microbatch(MODEL, small, Workload(8, longest.value), fix={"pp": 2})
    assert largest.value >= 4


def test_what_needs_a_closed_form_is_refused_with_a_reason() -> None:
    with pytest.raises(PlanError, match="no closed form"):
        planned(MODEL, cluster(), WORKLOAD, layer_wise=True)


def test_without_sizes_every_divisor_of_a_pipelines_batch_is_tried() -> None:
    on, work = cluster(2), Workload(18, 64)
    plans = list(choices(MODEL, on, work, registered(), {"pp": 1}))
    assert {plan.microbatch_size for plan in plans if plan.dp == 2} == {1, 3, 9}
    assert {plan.microbatch_size for plan in choices(MODEL, on, work, registered(), {"pp": 2})} == {
        1,
        2,
        3,
        6,
        9,
        18,
    }
