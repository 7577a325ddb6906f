"""Megatron-LM's Table 1: its arithmetic against ours, its rows as plans, and step times of rows not fitted on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.costs.pricing import pricing_of
from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.table import read_training_table
from meshwright.ir.timing.replay import wire
from meshwright.prediction.step_program import period_s, step_program
from meshwright.specs import SpecError, UnknownNameError
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.workload import Workload
from meshwright.systems import megatron_table
from meshwright.systems.pipeline.megatron_lm import card as megatron_lm
from meshwright.systems.pipeline.megatron_lm.card import SOURCE, message_bytes

SIZES = tuple(megatron_table.TABLE_1)
# The table's columns: TF/s of each GPU, and PF/s of all.
MEASURED = {
    "1.7B": (137, 4.4),
    "7.5B": (142, 18.2),
    "39.1B": (138, 70.8),
    "145.6B": (148, 227.1),
    "529.6B": (163, 410.2),
}


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("megatron_lm")
    assert "2104.04473" in card.paper and card.is_simulated and not card.is_executed
    assert sum(claim.is_evidence for claim in card.claims) == 10
    assert all(callable(getattr(megatron_lm, claim.by)) for claim in card.claims)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_the_tables_and_the_formulas(size: str) -> None:
    ours, row = megatron_table.model(size), megatron_table.row(size)
    formula = megatron_lm.num_parameters(row.num_layers, row.hidden_size, 51_200, 2_048)
    assert f"{megatron_lm.billion_parameters(size)}B" == size == f"{formula / 1e9:.1f}B"
    # The formula leaves out scale and shift of the final norm, and nothing else.
    assert ours.num_parameters - formula == pytest.approx(2 * row.hidden_size, abs=row.num_layers)


@pytest.mark.parametrize("size", SIZES)
def test_flops_differ_from_ours_by_recompute_and_the_later_tokens(size: str) -> None:
    row, s = megatron_table.row(size), 2_048
    ours = megatron_table.model(size).train_flops_per_token(s)
    layers_h = row.num_layers * row.hidden_size
    recompute = 24 * layers_h * row.hidden_size + 4 * layers_h * s
    later_tokens = 12 * layers_h * s - 6 * layers_h * (s + 1)
    wanted = (ours + recompute + later_tokens) * row.global_batch * s
    assert megatron_lm.row_flops(size) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_claimed_seconds_are_the_tables_tf_per_s(size: str) -> None:
    claims = [c for c in system("megatron_lm").claims if c.arguments == {"size": size}]
    (seconds,) = [c.paper_value for c in claims if c.by == "step_s"]
    rate, num_gpus = MEASURED[size][0], megatron_table.row(size).num_gpus
    assert megatron_lm.row_flops(size) / num_gpus / rate / 1e12 == pytest.approx(seconds, rel=1e-3)
    # Half a unit of the printed TF/s, and half of the printed PF/s.
    assert rate * num_gpus / 1e3 == pytest.approx(MEASURED[size][1], abs=num_gpus / 2e3 + 0.05)


@pytest.mark.parametrize("size", SIZES)
def test_a_row_is_a_plan_on_its_own_cluster(size: str) -> None:
    row = megatron_table.row(size)
    plan, cluster = megatron_table.plan(size)
    assert (plan.num_devices, cluster.num_devices) == (row.num_gpus, row.num_gpus)
    assert (plan.tp, plan.pp, plan.dp) == (row.tp, row.pp, row.dp)
    assert plan.num_microbatches == row.num_microbatches
    assert set(plan.layers_per_stage) == {row.num_layers // (row.pp * row.num_chunks)}
    assert plan.recompute == "full" and plan.attention == "unfused_dropout"
    # tensor parallelism stays in the node, which NVLink joins
    level = cluster.level_between(plan.device_at(), plan.device_at(tp=plan.tp - 1))
    assert level is None or level.name == "node"


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_measured_runs_has_the_same_job(size: str, shared_data: Path) -> None:
    plan, cluster = megatron_table.plan(size)
    rows = read_training_table(shared_data / "calibration" / "training" / "megatron_sc21.csv")
    found = [job for job in map(job_of, rows) if job.plan.num_devices == plan.num_devices]
    (job,) = [job for job in found if job.plan.model.num_layers == plan.model.num_layers]
    assert job.cluster.devices == cluster.devices and job.stack == "megatron 2021"
    different = {
        field.name for field in fields(Plan) if getattr(plan, field.name) != getattr(job.plan, field.name)
    }
    # Names of models and sources differ; the rest is number 5 of the differences that the file states.
    known = {"model", "dtype", "reduction_dtype"} | (
        {"overlap"} if megatron_table.row(size).has_torch_ddp else set()
    )
    assert different == known
    ours, theirs = plan.model.to_dict(), job.plan.model.to_dict()
    assert {name for name in ours if ours[name] != theirs[name]} <= {"name", "source"}


def test_microbatches_are_the_papers() -> None:
    counts = [megatron_table.row(size).num_microbatches for size in SIZES]
    assert counts == [1, 1, 12, 48, 280]


def test_one_stage_has_no_bubble_and_two_have_the_papers() -> None:
    assert megatron_lm.bubble_over_ideal("7.5B") == pytest.approx(0.0, abs=1e-12)
    assert megatron_lm.bubble_over_ideal("39.1B") == pytest.approx(1 / 12)
    assert megatron_lm.bubble_over_ideal("145.6B") == pytest.approx(7 / (2 * 48))


def train_days(num_parameters: float, num_tokens: float, num_gpus: int, flops_per_s: float) -> float:
    """Days of a training: 8 T P / (n X), with T tokens, P parameters, n GPUs and X FLOP/s of each."""
    return 8 * num_tokens * num_parameters / (num_gpus * flops_per_s) / 86_400


def test_days_of_a_training() -> None:
    # GPT-3 on 300 billion tokens with 1,024 GPUs at 140 TF/s; a trillion parameters on 450 with 3,072 at 163 TF/s.
    assert train_days(175e9, 300e9, 1024, 140e12) == pytest.approx(33.9, abs=0.05)
    assert train_days(1e12, 450e9, 3072, 163e12) == pytest.approx(83.2, abs=0.05)


@pytest.mark.parametrize("call", ["row", "model", "plan", "bubble_over_ideal", "step_s", "row_flops"])
def test_a_row_that_is_not_there_is_refused(call: str) -> None:
    with pytest.raises(UnknownNameError, match=r"row of Table 1.*39B.*39\.1B"):
        getattr(megatron_lm, call)("39B")


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="num_layers is 0"):
        megatron_lm.num_parameters(0, 2304, 51_200, 2_048)
    with pytest.raises(SpecError, match="hidden_size is 0"):
        megatron_table.iteration_flops(24, 0, 51_200, 2_048, 512)


def teraflops_per_gpu(size: str) -> float:
    """F over GPUs and predicted seconds, in the table's unit: 1e12 FLOP/s, recompute counted."""
    return megatron_lm.row_flops(size) / (megatron_table.row(size).num_gpus * megatron_lm.step_s(size)) / 1e12


def test_a_rate_is_flops_over_gpus_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_lm, "step_s", lambda size: 3.528)
    assert teraflops_per_gpu("1.7B") == pytest.approx(137, rel=1e-3)


def test_seconds_are_predicted_without_the_papers_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, str]] = []

    def predict(plan: Plan, cluster: ClusterSpec, *, left_out: str) -> SimpleNamespace:
        asked.append((plan.model.name, cluster.num_devices, left_out))
        return SimpleNamespace(step=Prediction.within(3.5, 0.1, "interpolated"))

    monkeypatch.setattr(megatron_lm, "predict", predict)
    assert megatron_lm.step_s.__wrapped__("1.7B") == 3.5
    assert asked == [("gpt-1.7B", 32, "megatron_sc21")]


def test_every_claim_holds() -> None:
    claims = reproduce("megatron_lm")["claims"]
    assert len(claims) == 16
    assert not [claim["claim"] for claim in claims if not claim["passed"]]


def ablation(global_batch: int, num_chunks: int) -> tuple[Plan, ClusterSpec]:
    """The 175B model on 96 GPUs in 12 stages, of the paper's figures about interleaving, scatter and gather.

    Source: NVIDIA/Megatron-LM, examples/academic_paper_scripts/sc21, figures 12 and 18: two layers a chunk, so 4 chunks.
    """
    cluster = Cluster("12x8xA100-80")
    built = ModelSpec.gpt(
        96, 12288, 96, vocabulary_size=megatron_table.VOCABULARY_SIZE,
        max_sequence_length=megatron_table.SEQUENCE_LENGTH, name="gpt-175B", source="arXiv 2104.04473, figure 18",
    )  # fmt: skip
    made = Plan.of(
        built, cluster, Workload(global_batch, megatron_table.SEQUENCE_LENGTH),
        schedule="1f1b" if num_chunks == 1 else "interleaved_1f1b", pp=12, tp=8, num_chunks=num_chunks,
        recompute="full", dtype="float16", reduction_dtype="float16", master_dtype="float32", overlap=(),
        attention="unfused_dropout", software="fused",
    )  # fmt: skip
    return made, cluster


def divided_message_speed_up(plan: Plan, cluster: ClusterSpec, left_out: str = "") -> float:
    """Predicted step where every tensor-parallel rank sends all of a message, over that where it sends 1 / tp of it.

    In both the receivers gather what they got within the node. `left_out`: as of `predict`.
    """
    pricing = pricing_of(plan, cluster, left_out=left_out)
    divided = step_program(plan, cluster)
    program = divided.wiring.program
    sizes = tuple(
        each._replace(by_index=tuple(plan.tp * size for size in each.by_index))
        if each.kind in ("activation", "gradient")  # what crosses a boundary between stages
        else each
        for each in program.tables.value_bytes
    )
    whole = replace(divided, wiring=wire(program.with_tables(value_bytes=sizes)))
    slow_s, fast_s = (
        period_s(made.wiring, made.priced(pricing.costs)) + pricing.step_s for made in (whole, divided)
    )
    return slow_s / fast_s


def test_scatter_and_gather_gain_most_where_messages_weigh_most() -> None:
    """More chunks are more messages, more microbatches hide them; the figures that the card quotes."""
    gains = {
        (batch, chunks): divided_message_speed_up(*ablation(batch, chunks), left_out=SOURCE) - 1
        for batch in (12, 60)
        for chunks in (1, 4)
    }
    assert gains[12, 4] == pytest.approx(0.048, abs=0.0005) and gains[60, 4] == pytest.approx(
        0.011, abs=0.0005
    )
    assert gains[12, 4] > gains[12, 1] > gains[60, 1] > 0


CLUSTER = Cluster("2x8xA100-80")
MODEL = ModelSpec.decoder(8, 4096, 32, vocabulary_size=32_000, max_sequence_length=2048)


def plan(tp: int, pp: int = 2) -> Plan:
    return Plan.of(MODEL, CLUSTER, Workload(8, 2048), pp=pp, tp=tp, dp=16 // (pp * tp), dtype="bfloat16")


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_device_sends_its_share(tp: int) -> None:
    assert message_bytes(plan(tp), CLUSTER) == 2048 * 4096 * 2 / tp


def test_dividing_gains_where_there_is_something_to_divide() -> None:
    assert divided_message_speed_up(plan(1), CLUSTER) == 1.0
    assert divided_message_speed_up(plan(8), CLUSTER) > 1.0


def test_one_stage_sends_nothing() -> None:
    with pytest.raises(PlanError, match="sends nothing"):
        message_bytes(plan(8, pp=1), CLUSTER)
