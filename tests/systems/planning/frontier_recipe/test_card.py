"""The Frontier recipe: memory by hand, rates by their definition, a search that counts failures, one fitted constant."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from meshwright.catalog import filler
from meshwright.evidence.claim.recorded import results_of
from meshwright.evidence.claim.system_card import system
from meshwright.specs import SpecError, UnknownNameError
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.workload import Workload
from meshwright.systems.planning.frontier_recipe import mechanism as frontier_recipe
from meshwright.systems.planning.frontier_recipe.mechanism import LayoutTrial, RecipeLayout

SIZES = tuple(frontier_recipe.ROWS)


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("frontier_recipe")
    assert "2312.12705" in card.paper and card.is_simulated and not card.is_executed
    assert sum(claim.kind == "predicted" for claim in card.claims) == 8
    assert all(callable(getattr(frontier_recipe, claim.by.rpartition(":")[2])) for claim in card.claims)
    # The row on which the constant was fitted claims no rate.
    rates = [claim for claim in card.claims if claim.by == "mechanism:teraflops"]
    assert {claim.arguments["size"] for claim in rates} == set(SIZES) - {frontier_recipe.FITTED_ON}


def test_claimed_rates_are_the_abstracts_shares_of_the_peak() -> None:
    shares = {"175B": 0.3614, "1T": 0.3196}
    for claim in system("frontier_recipe").claims:
        if claim.by == "mechanism:teraflops":
            peak = frontier_recipe.frontier(8).devices[0].peak_flops_per_s("bfloat16") / 1e12
            assert peak == frontier_recipe.PEAK_TERAFLOPS
            assert shares[claim.arguments["size"]] * peak == pytest.approx(claim.paper_value, abs=0.05)


def test_a_node_has_wide_links_inside_packages_and_narrow_ones_outside() -> None:
    cluster = frontier_recipe.frontier(16)
    rates = [cluster.bandwidth_bytes_per_s(0, other) for other in (1, 2, 7, 8)]
    assert rates == [200e9, 100e9, 100e9, 12.5e9]
    assert cluster.bandwidth_bytes_per_s(15, 14) == 200e9


@pytest.mark.parametrize("size", ["175B", "1T"])
def test_a_tuned_job_is_two_replicas(size: str) -> None:
    row = frontier_recipe.row(size)
    assert row.layout is not None
    plan, cluster = frontier_recipe.plan(size, row.layout)
    assert plan.num_devices == cluster.num_devices == row.num_gcds
    assert (plan.dp, plan.num_microbatches) == (2, row.global_batch // 2)
    level = cluster.level_between(plan.device_at(), plan.device_at(tp=plan.tp - 1))
    assert level is not None and level.name == "node"


def test_the_batch_of_a_replica_is_kept_on_more_gcds() -> None:
    few, _ = frontier_recipe.plan("175B", RecipeLayout(4, 16))
    many, _ = frontier_recipe.plan("175B", RecipeLayout(4, 16), num_gcds=256)
    assert many.workload.global_batch == 2 * few.workload.global_batch
    assert many.num_microbatches == few.num_microbatches


def test_states_alone_decide_what_cannot_fit_unsharded() -> None:
    # 175e9 parameters with at least 14 bytes each over 32 GCDs are 76 GB, over 64 they are 38 GB.
    assert not any(frontier_recipe.fits_unsharded("175B", tp, 32 // tp) for tp in (1, 2, 4, 8))
    assert frontier_recipe.fits_unsharded("175B", 4, 16)
    assert not frontier_recipe.fits_unsharded("175B", 16, 8)  # would leave the node


def test_sharding_lets_fewer_gcds_hold_a_replica() -> None:
    layout = RecipeLayout(4, 8)
    assert frontier_recipe.failure(*frontier_recipe.plan("175B", layout, sharding="none"))
    assert not frontier_recipe.failure(*frontier_recipe.plan("175B", layout, sharding="zero1"))


def test_a_rate_is_flops_over_gcds_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(plan: Plan, cluster: ClusterSpec, *, extrapolate: bool) -> SimpleNamespace:
        assert extrapolate and plan.num_devices == cluster.num_devices
        return SimpleNamespace(step=Prediction.within(20.0, 0.1, "never seen"))

    monkeypatch.setattr(frontier_recipe, "predict", predict)
    found = frontier_recipe.roofline_teraflops(*frontier_recipe.plan("175B", RecipeLayout(4, 16)))
    # 8 P FLOPs a token (forward, recompute, backward), and 1.8 % for attention and the head
    assert found == pytest.approx(8 * 174.6e9 * 640 * 2048 / 128 / 20 / 1e12, rel=0.03)


def test_rates_fall_with_tensor_parallelism_most_beyond_the_node() -> None:
    inside, edge, outside = (
        frontier_recipe.roofline_teraflops(*frontier_recipe.plan("175B", RecipeLayout(tp, 8)))
        for tp in (4, 8, 16)
    )
    assert inside > edge > outside
    assert edge / outside > 2 * inside / edge


def test_rates_rise_with_the_microbatches_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    for batch in (32, 64, 128):
        few = replace(frontier_recipe.ROWS["175B"], global_batch=batch)
        monkeypatch.setitem(frontier_recipe.ROWS, "175B", few)
        rates.append(frontier_recipe.roofline_teraflops(*frontier_recipe.plan("175B", RecipeLayout(4, 16))))
    assert rates == sorted(rates)
    # One stage of bubble each for all but the own stage: 16 microbatches run in 31 slots, 64 in 79.
    assert rates[2] / rates[0] == pytest.approx((64 / 79) / (16 / 31), rel=0.15)


def test_a_search_tries_every_whole_layout_and_keeps_failures() -> None:
    found = frontier_recipe.search("22B")
    row = frontier_recipe.row("22B")
    for trial in found:
        assert row.num_gcds % (trial.layout.tp * trial.layout.pp) == 0
        assert (trial.roofline_teraflops is None) == bool(trial.failure)
    assert len({trial.layout for trial in found}) == len(found) == 45
    # 22e9 parameters with bfloat16 weights and float32 gradients alone are 132 GB: one GCD holds a half at most.
    small = [trial for trial in found if trial.layout.tp * trial.layout.pp <= 2]
    assert small and all(trial.failure for trial in small)
    assert 0 < sum(bool(trial.failure) for trial in found) < len(found)


def test_the_fastest_is_the_best_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = (
        LayoutTrial(RecipeLayout(1, 1), None, "full"),
        LayoutTrial(RecipeLayout(2, 1), 70.0),
        LayoutTrial(RecipeLayout(4, 1), 90.0),
    )
    monkeypatch.setattr(frontier_recipe, "search", lambda size: trials)
    assert frontier_recipe.fastest("22B").layout == RecipeLayout(4, 1)
    monkeypatch.setattr(frontier_recipe, "search", lambda size: trials[:1])
    with pytest.raises(OutOfMemoryError, match="no layout of 22B fits on 16 GCDs"):
        frontier_recipe.fastest("22B")


def test_the_constant_gives_back_the_row_it_was_fitted_on() -> None:
    assert frontier_recipe.teraflops("22B") == pytest.approx(0.3838 * 191.5)
    assert 0 < frontier_recipe.efficiency() < 1


@pytest.mark.parametrize("call", ["row", "model", "teraflops", "billion_parameters"])
def test_a_model_that_is_not_there_is_refused(call: str) -> None:
    with pytest.raises(UnknownNameError, match=r"Frontier recipe.*30B.*175B"):
        getattr(frontier_recipe, call)("30B")


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError, match=r"tp\(3\) = 96"):
        frontier_recipe.plan("175B", RecipeLayout(3, 16))
    with pytest.raises(SpecError, match="do not fill nodes of 8"):
        frontier_recipe.frontier(12)
    with pytest.raises(UnknownNameError, match="number of a layout"):
        frontier_recipe.of_fastest("colour")


def test_the_fall_from_22b_to_175b_is_that_of_two_rings() -> None:
    """6 % in the abstract; one ring on one link made 19 of it."""
    assert 1 - frontier_recipe.teraflops("175B") / 73.5 == pytest.approx(0.12, abs=0.01)


def test_only_what_the_card_names_does_not_hold() -> None:
    failed = [found["claim"] for found in results_of(system("frontier_recipe").folder) if not found["passed"]]
    assert [claim.split(" from")[0] for claim in failed] == ["strong scaling of 175B"]


def test_as_a_planner_it_gives_layouts_of_the_users_own_model_that_fit() -> None:
    job = (load_model("llama-3.1-8b"), Cluster("2x8xA100-80"), Workload(64, 2048))
    plans = filler("planner", "frontier_recipe")(*job, {"dtype": "bfloat16"})
    assert plans and all(plan.model.name == job[0].name and plan.num_devices == 16 for plan in plans)
    assert all(not frontier_recipe.failure(plan, job[1]) for plan in plans)
    assert {plan.sharding for plan in plans} == {"zero1", "none"} and {plan.recompute for plan in plans} == {
        "full"
    }
    with pytest.raises(PlanError, match="tp is decided here"):
        filler("planner", "frontier_recipe")(*job, {"tp": 2})


def test_the_sweep_tells_its_failures_and_takes_models_that_nobody_executes() -> None:
    job = (load_model("gemma-2-9b"), Cluster("4xMI250X"), Workload(8, 2048))
    found = frontier_recipe.planned(*job, {})
    (note,) = found.notes
    assert note.startswith(f"{len(found)} layouts of the sweep fit; ") and "needs" in note
    failed = note.partition("(")[2].partition(")")[0].split(", ")
    assert "tp1 pp1 micro 1" in failed and len(failed) == int(note.split("; ")[1].split()[0])
    assert not any(f"tp{each.tp} pp{each.pp} micro {each.microbatch_size}" in failed for each in found)
    with pytest.raises(OutOfMemoryError, match=r"none of the sweep's \d+ layouts fits"):
        frontier_recipe.planned(load_model("llama-3.1-70b"), *job[1:], {})


def test_the_sweep_leaves_out_degrees_that_do_not_divide_the_words() -> None:
    found = frontier_recipe.planned(load_model("gpt2"), Cluster("4xMI250X"), Workload(8, 1024), {})
    assert len(found) and {each.tp for each in found} == {1}  # 50257 words
