"""The search: its winner is the winner of simulating everything, it keeps what is asked, and it says why nothing fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import always

from meshwright.costs.pricing import pricing_of
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.place import place
from meshwright.planner.search.plans import NUM_SHOWN, Plans
from meshwright.planner.search.search import MOST_COMPUTES, reasons, search, simulable
from meshwright.planner.space.axis import AXES
from meshwright.planner.space.space import space_of
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import checked_memory, estimated_rejection
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_part import is_beside
from meshwright.prediction.step_program import StepProgram, period_s, step_program
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, Workload, load_model
from meshwright.specs.error import OutOfMemoryError, PlanError, UnknownNameError
from meshwright.stage.mesh import device_order

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MODEL = ModelSpec.decoder(
    8, 4096, 32, num_kv_heads=8, intermediate_size=14336, max_sequence_length=16384, vocabulary_size=32000
)


def found(
    cluster: str = "8xH100", batch: int = 16, sequence: int = 4096, model: ModelSpec = MODEL, **choices: Any
) -> Plans:
    fix = {**MIXED, **choices.pop("fix", {})}
    return search(model, Cluster(cluster), Workload(batch, sequence), fix=fix, **choices)


# small jobs: (model, cluster, global batch, sequence, fixed); what stays free is small enough to simulate all of it
JOBS: dict[str, tuple[ModelSpec, str, int, int, dict[str, Any]]] = {
    "a 70b": (
        load_model("llama-3.1-70b"), "8x8xH100", 64, 4096,
        {"tp": 8, "microbatch_size": 1, "recompute": ("none", "selective_op", "full"),
         "recompute_blocks": 0, "mesh_order": "pp-dp-cp-tp", "sharding_degree": 0, "cp": 1,
         "sharding": "zero1"},
    ),
    "experts": (
        load_model("mixtral-8x7b"), "4x8xH100", 32, 4096,
        {"recompute": "selective", "microbatch_size": 1, "pp": 4, "tp": 1, "sharding": "zero1", "cp": (1, 2),
         "context": ("ring", "ulysses"),
         "mesh_order": "pp-dp-cp-tp", "sharding_degree": 0},
    ),
    "heads divided": (
        MODEL.changed(num_kv_heads=32), "2x8xA100-80 nic=10GB/s", 8, 4096,
        {"cp": 16, "recompute": "none", "sharding": "zero1", "mesh_order": "pp-dp-cp-tp", "sharding_degree": 0},
    ),
    "a ring": (
        MODEL.changed(num_kv_heads=32), "2x8xH100 nic=10GB/s", 8, 16384,
        {"cp": (2, 16), "context": ("ring", "all_gather"), "mesh_order": "pp-dp-cp-tp", "tp": 1, "pp": 1,
         "recompute": "none", "sharding": ("none", "zero1"), "sharding_degree": 0},
    ),
    "every second product": (
        MODEL.changed(num_layers=32), "8xA100-40", 16, 8192,
        {"tp": 1, "cp": 1, "pp": 1, "recompute_blocks": 0, "sharding": ("zero2", "zero3")},
    ),
    "sharded": (
        MODEL, "2x8xA100-80", 32, 4096,
        {"sharding": "zero3", "recompute": "none", "pp": (1, 2), "tp": (1, 2), "cp": 1, "sharding_degree": 0},
    ),
    "gpt2": (load_model("gpt2"), "4xH100", 32, 1024, {"recompute": "none", "cp": 1, "sharding": "zero1"}),
}  # fmt: skip
# what wins the jobs that are about an axis
WON_BY: dict[str, dict[str, Any]] = {
    "heads divided": {"context": "ulysses"}, "a ring": {"context": "ring", "cp": 2},
    "every second product": {"recompute": "selective_op"},
}  # fmt: skip
MOST_CANDIDATES = 270  # of a job of which all are simulated

# By how much the search is behind the best of all, by seed. 11: of v_half with one microbatch the closed form is 8 % off, and
# of two such plans that differ in sequence_parallel it tries the slower one. 5: of chunks with zero3 over two nodes the
# closed form is 28 % too slow (gathers that hide are counted), and of breadth first 5 %, so it tries these alone.
# 7: simulated in full a plan with Ulysses takes 1.5 % less than composed, and so it is first, which it is not composed.
BEHIND = {5: 0.007, 7: 0.008, 11: 0.004}


def check_winner(
    model: ModelSpec,
    cluster: str,
    batch: int,
    sequence: int,
    fix: dict[str, Any],
    least: int,
    behind: float = 0.0,
) -> Predicted:
    """The search's winner is as fast as the fastest of all candidates, and the bounds hold for every one of them. Where the
    best are simulated in full it is no slower than the composed winner, and composed among the best."""
    where = Cluster(cluster)
    space = space_of(model, where, Workload(batch, sequence), fix={**MIXED, **fix})
    assert least <= len(space) <= MOST_CANDIDATES
    composed = []
    for plan in map(space.plan, range(len(space))):
        memory = estimate_memory(plan, where, registered()[plan.schedule])
        if estimated_rejection(plan, memory, where.memory_bytes) is None:
            composed.append(predict(plan, where))
    steps = [each.step.value for each in composed]
    best = search(
        model,
        where,
        Workload(batch, sequence),
        fix={**MIXED, **fix},
        layer_wise=False,
        forbid=("token_parts", "vocabulary"),  # tried behind the ranking, of no candidate of the space
    )
    assert best.num_candidates == len(space)
    full = min(composed, key=lambda each: each.step.value).refined().step.value
    assert best[0].step.value <= full * (1 + 1e-9 + behind)
    assert composed_s(best[0]) == pytest.approx(
        min(steps), rel=behind or (1e-9 if best[0].level != "segments" else 0.005)
    )
    assert best.optimality_gap is not None and 0 <= best.optimality_gap < 1
    num_slower = sum(step > min(steps) * (1 + 1e-9) for step in steps)
    assert best.num_excluded_by_bound <= len(space) - len(steps) + num_slower
    if best[0].plan.num_devices <= 8:
        assert expanded_s(best[0].plan, where) == pytest.approx(composed_s(best[0]), rel=1e-9)
    return best[0]


def composed_s(each: Predicted) -> float:
    """Seconds by composed prices, where a layer sends anything; else of the step itself."""
    return each.composed_s if each.level == "segments" else each.step.value


def expanded_s(plan: Plan, cluster: ClusterSpec) -> float:
    """The step of the plan's program with a list for every device."""
    program = step_program(plan, cluster).wiring.program
    for axis in program.axes[1:]:
        program = program.expand(axis.name)
    wiring, pricing = wire(program), pricing_of(plan, cluster)
    made = StepProgram(plan, cluster, wiring, place(program, cluster, device_order(plan)))
    return period_s(wiring, made.priced(pricing.costs)) + pricing.step_s


# "a 70b" is the largest of them: as long as the others together; a shard of everything has "every second product", too
@pytest.mark.parametrize(
    "name", always([*JOBS], {n for n, name in enumerate(JOBS) if name not in ("a 70b", "sharded", "experts")})
)
def test_the_winner_is_the_winner_of_simulating_everything(name: str) -> None:
    best = check_winner(*JOBS[name], least=8)
    for axis, value in WON_BY.get(name, {}).items():
        assert getattr(best.plan, axis) == value


@pytest.mark.parametrize(
    "seed",
    always(range(20), {0}),
)
def test_the_winner_of_a_random_small_job_is_the_winner_of_simulating_everything(seed: int) -> None:
    random = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    heads = one_of(8, 16, 32)
    model = ModelSpec.decoder(
        one_of(4, 6, 8, 10, 14), heads * 128, heads, num_kv_heads=one_of(4, 8), max_sequence_length=16384,
        intermediate_size=heads * 128 * one_of(3, 4), vocabulary_size=one_of(32000, 128000),
    )  # fmt: skip
    cluster, batch, sequence = (
        one_of("4xH100", "8xA100-80", "2x8xH100", "8xB200"),
        one_of(8, 16, 32),
        one_of(2048, 8192),
    )
    fix: dict[str, Any] = {}
    free = space_of(model, Cluster(cluster), Workload(batch, sequence), fix=MIXED)
    axes = random.permutation([axis for axis in AXES if axis not in ("ep", "float8", "vocabulary")]).tolist()
    while len(free) > MOST_CANDIDATES:
        axis = axes.pop()
        number = int(random.integers(len(free)))
        value = int(getattr(free, axis)[number])
        fix[axis] = free.names[axis][value] if axis in free.names else value
        free = space_of(model, Cluster(cluster), Workload(batch, sequence), fix={**MIXED, **fix})
    check_winner(model, cluster, batch, sequence, fix, least=1, behind=BEHIND.get(seed, 0.0))


def test_a_result_is_the_prediction_of_its_plan_and_the_same_again() -> None:
    once, again = found(num_simulated=4), found(num_simulated=4)
    assert [each.plan for each in once] == [each.plan for each in again]
    assert [each.step.value for each in once] == sorted(each.step.value for each in once)
    for each in once:
        predicted = predict(each.plan, Cluster("8xH100")).refined()
        assert each.step == predicted.step and each.parts == predicted.parts
        assert each.step.low < each.step.value < each.step.high
        assert 0 <= each.bubble < 1 and 0 < each.mfu < 1
        assert each.peak_bytes <= Cluster("8xH100").memory_bytes


def test_the_plans_that_are_shown_are_simulated_in_full_and_ranked_by_that() -> None:
    ranked = found(
        num_simulated=12, fix={"tp": (2, 4), "cp": 1}, forbid=("selective", "full", "zero2", "zero3")
    )
    shown = ranked[:NUM_SHOWN]
    assert {each.level for each in shown} == {"segments"}
    assert [each.step.value for each in shown] == sorted(each.step.value for each in shown)
    whole = [each for each in shown if not each.plan.has_parts]  # in parts a step has no composed price
    assert (
        all(each.composed_s == pytest.approx(each.step.value, rel=0.01) for each in whole) and len(whole) > 1
    )
    assert all(each.level == "composed" for each in ranked[NUM_SHOWN:])
    rings = found(num_simulated=2, fix={"cp": 2, "tp": 2, "context": "ring"})
    assert all(each.level == "composed" and each.not_composable for each in rings)


def test_what_is_fixed_and_forbidden_holds_and_a_freer_search_is_no_slower() -> None:
    free = found(num_simulated=8)
    tied = found(num_simulated=8, fix={"tp": 4, "sharding": "zero1"}, forbid=("selective", "full"))
    assert {(each.plan.tp, each.plan.sharding, each.plan.recompute) for each in tied} == {
        (4, "zero1", "none")
    }
    assert free[0].step.value <= tied[0].step.value * (1 + 1e-9)
    assert free.num_candidates > tied.num_candidates


@pytest.mark.slow
def test_a_safe_plan_of_a_freer_search_is_no_slower() -> None:
    """Whole experts bring many plans of a schedule whose closed form is a third too quick: one that fits for sure is
    no reason to look no further."""
    job = ("256x8xH800", 15360, 4096, load_model("deepseek-v3"))
    free, tied = found(*job, risk=0.0), found(*job, risk=0.0, fix={"etp": 0})
    assert free[0].step.value <= tied[0].step.value * 1.01


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
    assert "needs" in str(caught.value) and "85.5 GB" in str(caught.value)


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


def test_ctrl_c_at_any_time_keeps_what_is_there_and_no_more_is_simulated_than_was_asked() -> None:
    said: list[float] = []
    assert len(found(num_simulated=8, progress=lambda what, share: said.append(share))) <= 8

    def stop_at(last: int) -> Callable[[str, float], None]:
        calls = itertools.count()

        def stop(what: str, share: float) -> None:
            if next(calls) == last:
                raise KeyboardInterrupt

        return stop

    first = said.index(next(share for share in said if share > 0))
    for last in range(first, len(said), 3):
        stopped = found(num_simulated=8, progress=stop_at(last))
        assert 1 <= len(stopped) <= 8


def test_progress_goes_from_nothing_on() -> None:
    said: list[float] = []
    found(num_simulated=4, progress=lambda what, share: said.append(share))
    assert said == sorted(said) and said[0] == 0 and len(said) >= 4


def test_reasons_are_the_largest_differences_of_parts() -> None:
    first, *_, second = found(num_simulated=8, fix={"mesh_order": "pp-dp-cp-tp", "pp": 2})
    told = reasons(first, second)
    assert told and [abs(seconds) for _, seconds in told] == sorted((abs(s) for _, s in told), reverse=True)
    assert not any(is_beside(kind) for kind, _ in told)
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
        found("8xMI250X")
    assert found("8xMI250X", extrapolate=True, num_simulated=1)[0].step.basis == "never seen"


def test_stages_that_differ_are_tried_where_asked_and_are_no_slower() -> None:
    job: dict[str, Any] = {
        "fix": {"pp": 4, "tp": 4, "schedule": "1f1b", "microbatch_size": 1, "sharding": "zero1"},
        "num_simulated": 4,
    }
    model = load_model("llama-3.1-70b")
    plain = found("4x8xH100", 64, 4096, model, layer_wise=False, **job)
    wise = found("4x8xH100", 64, 4096, model, layer_wise=True, **job)
    assert wise[0].step.value < plain[0].step.value
    assert len(set(wise[0].plan.num_recomputed_blocks)) > 1 or len(set(wise[0].plan.layers_per_stage)) > 1
    assert {each.plan for each in plain} <= {each.plan for each in wise}
    kept = found(
        "4x8xH100", 64, 4096, model, layer_wise=True, **{**job, "fix": {**job["fix"], "recompute_blocks": 7}}
    )
    assert {each.plan.num_recomputed_blocks for each in kept} <= {(7, 7, 7, 7), (0, 0, 0, 0)}


def test_stages_that_differ_recompute_what_is_fixed() -> None:
    """Where memory is plentiful the fewest recomputed blocks are none: nobody who asks for recompute wants that."""
    for kind in ("full", "selective"):
        tied = found(layer_wise=True, num_simulated=2, fix={"recompute": kind, "pp": 2, "schedule": "1f1b"})
        assert {each.plan.recompute for each in tied} == {kind}
    assert found(fix={"recompute": ("none", "full")}, num_simulated=2)[0].plan.recompute == "none"


def test_a_vocabulary_is_named_only_where_it_is_what_forbids_tensor_parallelism() -> None:
    gpt2 = load_model("gpt2")

    def said(cluster: str, **choices: Any) -> str:
        return " ".join(found(cluster, 8, 1024, gpt2, num_simulated=1, **choices).assumptions)

    assert "50257 does not divide" in said("2xH100")
    for quiet in (said("1xH100"), said("2xH100", fix={"tp": 1}), said("2xH100", forbid=("tp",))):
        assert "50257" not in quiet


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "sequence", "size"),
    [("llama-3.2-1b", "8xH100", 24, 2048, 3), ("gpt2", "8xH100", 56, 1024, 7), ("gpt2", "1xH100", 15, 1024, 15),
     ("gpt2", "8xH100", 512, 1024, 64)],
)  # fmt: skip
def test_microbatches_that_are_no_powers_of_two_or_large_win_where_they_are_faster(
    model: str, cluster: str, batch: int, sequence: int, size: int
) -> None:
    best = found(cluster, batch, sequence, load_model(model), fix=MIXED)
    assert best[0].plan.microbatch_size == size
    same = {"tp": 1, "pp": 1, "dp": best[0].plan.dp, "sharding": best[0].plan.sharding, "recompute": "none"}
    usual = found(
        cluster, batch, sequence, load_model(model), fix={**MIXED, **same}, microbatch_sizes=(1, 2, 4, 8, 16)
    )
    assert best[0].step.value < 0.95 * usual[0].step.value


@settings(max_examples=6, deadline=None)
@given(
    hidden=st.sampled_from((1024, 2048)), layers=st.integers(2, 9), dp=st.sampled_from((1, 2, 3, 6)),
    share=st.sampled_from((9, 15, 18, 21, 30, 35, 45)), sequence=st.sampled_from((512, 1024)),
    recompute=st.sampled_from(("none", "full")),
)  # fmt: skip
def test_the_microbatch_is_the_fastest_of_all_divisors(
    hidden: int, layers: int, dp: int, share: int, sequence: int, recompute: str
) -> None:
    model = ModelSpec.decoder(
        layers, hidden, 16, intermediate_size=4 * hidden, vocabulary_size=32000, max_sequence_length=4096
    )
    where, work = Cluster(f"1x{dp}xH100"), Workload(dp * share, sequence)
    fix = {
        **MIXED,
        "tp": 1,
        "pp": 1,
        "dp": dp,
        "sharding": "none",
        "recompute": recompute,
        "recompute_blocks": 0,
    }
    steps = {}
    for size in (size for size in range(1, share + 1) if share % size == 0):
        plan = Plan.of(model, where, work, **{**fix, "recompute_blocks": (), "microbatch_size": size})
        if checked_memory(plan, where, where.memory_bytes)[1] is None:
            steps[size] = predict(plan, where).step.value
    best = search(model, where, work, fix=fix, layer_wise=False)
    assert best[0].step.value == pytest.approx(min(steps.values()), rel=1e-9)
    assert best[0].step.value == pytest.approx(steps[best[0].plan.microbatch_size], rel=1e-9)


def test_steps_of_millions_of_microbatches_are_refused_before_they_are_made() -> None:
    job = (load_model("llama-3.1-8b"), Cluster("8xH100"))
    with pytest.raises(
        PlanError, match="20,000,000 sequences has .* microbatches or more in every plan"
    ) as caught:
        search(*job, Workload(20_000_000, 8192), fix=MIXED)
    assert "up to about" in str(caught.value)
    short, num_long = simulable(space_of(*job, Workload(40_000, 8192), fix=MIXED))
    assert num_long > 0 and (2 * short.num_microbatches * short.pp * short.num_chunks).max() <= MOST_COMPUTES
