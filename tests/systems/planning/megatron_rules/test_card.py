"""Megatron-LM's rules of thumb: the ladder's order, the microbatch of the closed form, chunks, experts, what fits."""

from __future__ import annotations

import pytest

from meshwright.catalog import filler
from meshwright.evidence.claim.recorded import results_of
from meshwright.evidence.claim.system_card import system
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import checked_memory
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems import megatron_table
from meshwright.systems.planning.megatron_rules import card as megatron_rules
from meshwright.systems.planning.megatron_rules import mechanism
from meshwright.systems.planning.megatron_rules.mechanism import ladder, num_chunks, plan_of

FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def ruled(model: str, cluster: str, batch: int, length: int = 4096, **choices: object) -> Plan:
    return plan_of(load_model(model), Cluster(cluster), Workload(batch, length), **{**FORMATS, **choices})


def fits(plan: Plan) -> bool:
    """At the upper end of the estimate."""
    cluster = Cluster(plan.cluster)
    devices = estimate_memory(plan, cluster, registered()[plan.schedule]).devices
    return max(each.upper_bytes + each.context_bytes for each in devices) <= cluster.memory_bytes


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("megatron_rules")
    assert "2104.04473" in card.paper and card.is_simulated and not card.is_executed
    assert any(claim.is_evidence for claim in card.claims)
    places = [claim.by.rpartition(":") for claim in card.claims]
    assert all(callable(getattr(mechanism if file else megatron_rules, name)) for file, _, name in places)


def test_only_what_the_card_names_does_not_hold() -> None:
    failed = {found["claim"] for found in results_of(system("megatron_rules").folder) if not found["passed"]}
    assert failed == {"chunks of a device of 1008.0B"}


def test_without_the_copies_of_gradients_a_replica_is_half_the_papers() -> None:
    """What the audit found: a state of 16 bytes instead of 20 ends the ladder one rung lower."""
    published, cluster = megatron_table.plan("7.5B")
    formats = {
        name: getattr(published, name) for name in ("dtype", "master_dtype", "reduction_dtype", "attention")
    }
    made = [
        plan_of(
            published.model, cluster, published.workload, beside=beside, **formats, **megatron_rules.PAPER
        )
        for beside in (mechanism.nothing_beside, megatron_rules.copies_of_gradients(True))
    ]
    assert [plan.tp * plan.pp for plan in made] == [2, 4]


def test_states_alone_are_the_null_by_hand() -> None:
    # 16 bytes of 7.5e9 parameters are 120 GB: two memories of 86 GB; of 1008e9, 188 of them
    assert [megatron_rules.states_alone(size) for size in ("1.7B", "7.5B", "1008.0B")] == [1, 2, 256]


def test_tensor_parallelism_fills_the_node_before_there_are_stages() -> None:
    rungs = list(ladder(load_model("llama-3.1-70b"), Cluster("8x8xH100"), Workload(128, 8192)))
    degrees = [(rung["tp"], rung["pp"]) for rung in rungs]
    assert degrees == [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8)]
    assert all(rung["tp"] * rung["pp"] * rung["cp"] * rung["dp"] == 64 for rung in rungs)


def test_the_first_rung_that_fits_is_taken() -> None:
    small, large = ruled("llama-3.2-1b", "8xH100", 64), ruled("llama-3.1-70b", "8x8xH100", 128)
    assert (small.tp, small.pp, small.dp) == (1, 1, 8)
    assert fits(large) and large.tp * large.pp > 1
    # One rung lower, with what the rules make of it, does not fit.
    lower = {"tp": large.tp, "pp": large.pp // 2} if large.pp > 1 else {"tp": large.tp // 2, "pp": 1}
    stages = (large.model.num_layers // lower["pp"],) * lower["pp"]
    dp = large.num_devices // (lower["tp"] * lower["pp"])
    under = large.changed(
        **lower, dp=dp, layers_per_stage=stages, schedule="1f1b", num_chunks=1, microbatch_size=1,
        sequence_parallel=lower["tp"] > 1,
    )  # fmt: skip
    assert not fits(under)


def test_the_microbatch_is_the_best_by_the_closed_form() -> None:
    plan, cluster = ruled("llama-3.2-1b", "8xH100", 256), Cluster("8xH100")
    sizes = [size for size in mechanism.MICROBATCH_SIZES if fits(plan.changed(microbatch_size=size))]
    seconds = {size: mechanism.closed_form_s(plan.changed(microbatch_size=size), cluster) for size in sizes}
    assert len(sizes) > 1 and plan.microbatch_size == min(seconds, key=seconds.__getitem__)


def test_more_stages_want_smaller_microbatches() -> None:
    """B'/b + p - 1 by hand: with as many microbatches as stages, doubling b saves a quarter of the slots, not a half."""
    published, cluster = megatron_table.plan("39.1B")
    whole, halved = published.changed(microbatch_size=1), published.changed(microbatch_size=2)
    slots = [each.num_microbatches + each.pp - 1 for each in (whole, halved)]
    assert slots == [1536 // 32 + 1, 1536 // 64 + 1]
    ratio = mechanism.closed_form_s(whole, cluster) / mechanism.closed_form_s(halved, cluster)
    per_microbatch = ratio * slots[1] / slots[0]
    assert 0.5 < per_microbatch < 1  # two sequences take longer than one, and less than twice as long


def test_chunks_shorten_the_idle_time_that_large_microbatches_cost() -> None:
    """48 microbatches of two in 8 stages: B'/b + (p - 1)/v by hand."""
    published, cluster = megatron_table.plan("145.6B")
    whole = published.changed(schedule="1f1b", num_chunks=1, layers_per_stage=(10,) * 8)
    seconds = [mechanism.closed_form_s(whole, cluster, chunks) for chunks in (1, 2)]
    assert seconds[0] / seconds[1] == pytest.approx((48 + 7) / (48 + 3.5))


def test_two_stages_are_cut_today_and_were_not_in_2021() -> None:
    published, _ = megatron_table.plan("39.1B")
    cut, whole = (mechanism.interleaved(published, lambda plan: None, least) for least in (2, 3))
    assert (cut.num_chunks, whole.num_chunks) == (4, 1)


@pytest.mark.parametrize(
    ("num_layers", "chunks"),
    [(1, 1), (2, 2), (3, 3), (4, 2), (6, 2), (7, 7), (8, 2), (12, 3), (15, 3), (24, 4)],
)
def test_chunks_are_the_middle_divisor(num_layers: int, chunks: int) -> None:
    assert num_chunks(num_layers) == chunks


def test_chunks_need_microbatches_that_stages_divide() -> None:
    made = ruled("llama-3.1-405b", "32x8xH100", 256)
    assert made.pp > 1
    even = made.changed(schedule="1f1b", num_chunks=1, layers_per_stage=Plan.of(
        made.model, Cluster(made.cluster), made.workload, pp=made.pp, tp=made.tp, **FORMATS
    ).layers_per_stage)  # fmt: skip
    few = even.changed(workload=Workload(made.dp * (made.pp + 1) * made.microbatch_size, 4096))
    assert few.num_microbatches % few.pp and mechanism.interleaved(few, lambda plan: None) == few


def test_experts_stay_in_a_node_and_replace_tensor_parallelism() -> None:
    plan = ruled("mixtral-8x7b", "8x8xH100", 256)
    assert (plan.tp, plan.ep) == (1, 8) and fits(plan)
    assert mechanism.expert_degree(load_model("llama-3.1-8b"), 64, 8) == 1
    assert mechanism.expert_degree(load_model("mixtral-8x7b"), 4, 8) == 4


@pytest.mark.parametrize(("length", "degree"), [(2048, 1), (8192, 1), (16384, 2), (65536, 8), (131072, 8)])
def test_long_sequences_are_split_to_8192_tokens_within_a_node(length: int, degree: int) -> None:
    assert mechanism.context_degree(length, 8) == degree


def test_recompute_goes_from_the_core_of_attention_to_all_blocks() -> None:
    roomy = ruled("llama-3.1-8b", "8xH100", 64, 8192)
    assert roomy.recompute == "selective" and roomy.sharding == "zero1"
    long = ruled("llama-3.1-8b", "4xH100", 16, 16384)
    assert long.recompute == "full" and fits(long)


def test_where_nothing_fits_at_worst_what_is_expected_to_fit_is_taken() -> None:
    tight = ruled("llama-3.1-8b", "2xH100", 16, 8192)
    assert not fits(tight)
    assert checked_memory(tight, Cluster("2xH100"), Cluster("2xH100").memory_bytes)[1] is None


def test_what_is_decided_cannot_be_chosen() -> None:
    with pytest.raises(PlanError, match="tp is decided here"):
        ruled("llama-3.1-8b", "8xH100", 64, tp=2)


def test_nothing_fits() -> None:
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        ruled("llama-3.1-405b", "8xH100", 64)


def test_no_rung_divides() -> None:
    with pytest.raises(PlanError, match="no rung of the ladder"):
        ruled("gemma-2-9b", "5xH100", 7)


def test_as_a_planner_it_gives_the_plan_of_the_rules_with_what_is_fixed() -> None:
    job = (load_model("llama-3.1-8b"), Cluster("2x8xA100-80"), Workload(64, 2048))
    (plan,) = filler("planner", "megatron_rules")(*job, {"recompute": "full"})
    assert plan == plan_of(*job, recompute="full")
