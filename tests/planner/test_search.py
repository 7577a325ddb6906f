"""The search: its winner is the winner of simulating everything, it keeps what is asked, and it says why nothing fits."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.memory_estimate import estimate_memory
from meshwright.planner.memory_limit import estimated_rejection
from meshwright.planner.search import SearchResult, reasons, search
from meshwright.planner.space import space_of
from meshwright.planner.step_prediction import predict_step
from meshwright.planner.step_trait import BESIDE
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Workload, load_model
from meshwright.specs.error import OutOfMemoryError, PlanError, UnknownNameError

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MODEL = ModelSpec.decoder(
    8, 4096, 32, num_kv_heads=8, intermediate_size=14336, max_sequence_length=16384, vocabulary_size=32000
)


def found(
    cluster: str = "8xH100", batch: int = 16, sequence: int = 4096, model: ModelSpec = MODEL, **choices: Any
) -> SearchResult:
    fix = {**MIXED, **choices.pop("fix", {})}
    return search(model, Cluster(cluster), Workload(batch, sequence), fix=fix, **choices)


# small jobs: (model, cluster, global batch, sequence, fixed)
JOBS: dict[str, tuple[ModelSpec, str, int, int, dict[str, Any]]] = {
    "no recompute": (MODEL, "8xH100", 16, 4096, {"recompute": "none", "microbatch_size": 1}),
    "a small batch": (MODEL, "8xH100", 8, 8192, {"sharding": "zero1", "recompute": "none"}),
    "pipelines": (MODEL, "2x8xH100", 32, 4096, {"sharding": "none", "tp": 2, "recompute": "none"}),
    "sharded": (MODEL, "2x8xA100-80", 32, 4096, {"sharding": "zero3"}),
    "long": (MODEL, "8xH100", 8, 16384, {"recompute": "selective", "microbatch_size": 1}),
    "full recompute": (load_model("llama-3.1-8b"), "8xA100-80", 16, 8192, {"recompute": "full", "microbatch_size": 1}),
    "a 70b": (load_model("llama-3.1-70b"), "8x8xH100", 64, 4096, {"tp": 8, "microbatch_size": 1}),
    "experts": (load_model("mixtral-8x7b"), "4x8xH100", 32, 4096, {"recompute": "selective", "microbatch_size": 1, "pp": 4}),
    "a new chip": (MODEL, "8xB200", 16, 4096, {"recompute": "none", "microbatch_size": 2}),
    "gpt2": (load_model("gpt2"), "4xH100", 32, 1024, {"recompute": "none", "microbatch_size": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_the_winner_is_the_winner_of_simulating_everything(name: str) -> None:
    model, cluster, batch, sequence, fix = JOBS[name]
    where = Cluster(cluster)
    space = space_of(model, where, Workload(batch, sequence), fix={**MIXED, **fix})
    assert len(space) <= 200
    steps = []
    for plan in map(space.plan, range(len(space))):
        memory = estimate_memory(plan, where, registered()[plan.schedule])
        if estimated_rejection(plan, memory, where.memory_bytes) is None:
            steps.append(predict_step(plan, where).step.value)
    best = found(cluster, batch, sequence, model, fix=fix, num_simulated=8)
    assert best.num_candidates == len(space) and len(best) <= 8
    assert best[0].step.value == pytest.approx(min(steps), rel=1e-9)


def test_a_result_is_the_prediction_of_its_plan_and_the_same_again() -> None:
    once, again = found(num_simulated=4), found(num_simulated=4)
    assert [each.plan for each in once] == [each.plan for each in again]
    assert [each.step.value for each in once] == sorted(each.step.value for each in once)
    for each in once:
        predicted = predict_step(each.plan, Cluster("8xH100"))
        assert each.step == predicted.step and each.parts == predicted.parts
        assert each.step.low < each.step.value < each.step.high
        assert 0 <= each.bubble < 1 and 0 < each.mfu < 1
        assert each.peak_bytes <= Cluster("8xH100").memory_bytes


def test_what_is_fixed_and_forbidden_holds_and_a_freer_search_is_no_slower() -> None:
    free = found(num_simulated=8)
    tied = found(num_simulated=8, fix={"tp": 4, "sharding": "zero1"}, forbid=("selective", "full"))
    assert {(each.plan.tp, each.plan.sharding, each.plan.recompute) for each in tied} == {
        (4, "zero1", "none")
    }
    assert free[0].step.value <= tied[0].step.value * (1 + 1e-9)
    assert free.num_candidates > tied.num_candidates


def test_less_memory_excludes_more_and_is_kept() -> None:
    wide = found(num_simulated=4, forbid=("pp",))
    narrow = found(num_simulated=4, forbid=("pp",), max_memory_bytes=40_000_000_000)
    assert narrow.num_excluded_by_bound > wide.num_excluded_by_bound
    assert narrow.num_candidates == wide.num_candidates
    assert all(each.peak_bytes + each.memory.context_bytes <= 40e9 for each in narrow)


def test_nothing_fits_names_the_nearest_misses_and_who_holds_the_most() -> None:
    with pytest.raises(OutOfMemoryError, match="nearest misses") as caught:
        found("8xH100", 16, 4096, load_model("llama-3.1-405b"))
    assert caught.value.exit_code == 3
    assert "needs" in str(caught.value) and "80 GB" in str(caught.value)


def test_a_time_limit_still_gives_a_plan_and_says_that_it_ended_early() -> None:
    limited = found(time_limit_s=1e-6)
    assert len(limited) == 1 and not limited.is_complete
    assert found(num_simulated=2).is_complete


def test_ctrl_c_gives_what_was_reached() -> None:
    def stop(what: str, share: float) -> None:
        if share > 0:
            raise KeyboardInterrupt

    stopped = found(num_simulated=8, progress=stop)
    assert len(stopped) == 1 and not stopped.is_complete
    with pytest.raises(KeyboardInterrupt):
        found(progress=lambda what, share: (_ for _ in ()).throw(KeyboardInterrupt))


def test_progress_goes_from_nothing_on() -> None:
    said: list[float] = []
    found(num_simulated=4, progress=lambda what, share: said.append(share))
    assert said == sorted(said) and said[0] == 0 and len(said) >= 4


def test_reasons_are_the_largest_differences_of_parts() -> None:
    first, second, *_ = found(num_simulated=4)
    told = reasons(first, second)
    assert told and [abs(seconds) for _, seconds in told] == sorted((abs(s) for _, s in told), reverse=True)
    assert not {kind for kind, _ in told} & set(BESIDE)
    for kind, seconds in told:
        assert seconds == pytest.approx(second.parts.get(kind, 0.0) - first.parts.get(kind, 0.0))


@pytest.mark.parametrize(
    "choices",
    [{"max_memory_bytes": 10**12}, {"num_simulated": 0}, {"time_limit_s": 0.0}, {"max_memory_bytes": 0}],
)
def test_limits_that_are_none_are_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        found(**choices)


def test_unknown_and_unmeasured_chips() -> None:
    with pytest.raises(UnknownNameError):
        found("8xH1000")
    with pytest.raises(PlanError, match="--extrapolate"):
        found("8xMI300X")
    assert found("8xMI300X", extrapolate=True, num_simulated=1)[0].step.basis == "never seen"
