"""Megatron-LM's Table 1: its arithmetic against ours, its rows as plans, and step times of rows not fitted on."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.evidence.claim.recorded import results_of
from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.table import read_training_table
from meshwright.specs import SpecError, UnknownNameError
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.workload import Workload
from meshwright.systems import megatron_table
from meshwright.systems.pipeline.megatron_lm import mechanism as megatron_lm
from meshwright.systems.pipeline.megatron_lm.mechanism import SOURCE, divided_message_speed_up, message_bytes

SIZES = tuple(megatron_table.TABLE_1)
# The table's last columns: percent of the peak, and PF/s of all GPUs.
PRINTED = {
    "1.7B": (44, 4.4), "3.6B": (44, 8.8), "7.5B": (46, 18.2), "18.4B": (43, 34.6), "39.1B": (44, 70.8),
    "76.1B": (45, 143.8), "145.6B": (47, 227.1), "310.1B": (50, 297.4), "529.6B": (52, 410.2), "1008.0B": (52, 502.0),
}  # fmt: skip
MEASURED = ("1.7B", "7.5B", "39.1B", "145.6B", "529.6B")  # rows of the shared table of measured runs


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("megatron_lm")
    assert "2104.04473" in card.paper and card.is_simulated and not card.is_executed
    assert sum(claim.kind == "predicted" for claim in card.claims) == 19
    assert all(callable(getattr(megatron_lm, claim.by.rpartition(":")[2])) for claim in card.claims)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_the_tables_and_the_formulas(size: str) -> None:
    ours, row = megatron_table.model(size), megatron_table.row(size)
    formula = row.num_parameters
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
def test_columns_of_the_table_agree(size: str) -> None:
    row, (percent, petaflops) = megatron_table.row(size), PRINTED[size]
    # Half a unit of the printed TF/s, and half of the printed percent and PF/s (18.4B: 43.3 is printed as 43).
    assert row.teraflops / 3.12 == pytest.approx(percent, abs=0.7)
    assert row.teraflops * row.num_gpus / 1e3 == pytest.approx(petaflops, abs=row.num_gpus / 2e3 + 0.05)


@pytest.mark.parametrize("size", tuple(megatron_table.ROWS))
def test_every_row_of_both_tables_is_claimed_as_printed(size: str) -> None:
    rates = [c for c in system("megatron_lm").claims if c.by == "mechanism:teraflops"]
    (claim,) = [claim for claim in rates if claim.arguments == {"size": size}]
    assert claim.paper_value == megatron_table.row(size).teraflops


def test_the_nearest_row_is_another_one() -> None:
    """By parameters, then by GPUs: 7.5B is nearer to 3.6B than to 18.4B; Table 2 has a model of Table 1 again."""
    assert megatron_table.nearest("7.5B") is megatron_table.ROWS["3.6B"]
    assert megatron_table.nearest("529.6B on 2240") is megatron_table.ROWS["529.6B"]
    assert megatron_table.nearest("174.6B on 1536") is megatron_table.ROWS["174.6B on 768"]
    assert all(megatron_table.nearest(size) is not row for size, row in megatron_table.ROWS.items())


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


@pytest.mark.parametrize("size", MEASURED)
def test_the_table_of_measured_runs_has_the_same_job(size: str, shared_data: Path) -> None:
    plan, cluster = megatron_table.plan(size)
    rows = read_training_table(shared_data / "calibration" / "training" / "megatron_sc21.csv")
    found = [job for job in map(job_of, rows) if job.plan.num_devices == plan.num_devices]
    (job,) = [job for job in found if job.plan.model.num_layers == plan.model.num_layers]
    assert job.cluster.devices == cluster.devices and job.stack == "Megatron-LM, early"
    different = {
        field.name for field in fields(Plan) if getattr(plan, field.name) != getattr(job.plan, field.name)
    }
    # Names of models and sources differ; the rest is number 5 of the differences that the file states.
    known = {"model", "dtype", "reduction_dtype", "software"} | (
        {"overlap"} if megatron_table.row(size).has_torch_ddp else set()
    )
    assert different == known
    ours, theirs = plan.model.to_dict(), job.plan.model.to_dict()
    assert {name for name in ours if ours[name] != theirs[name]} <= {"name", "source"}


def test_microbatches_are_the_papers() -> None:
    counts = [megatron_table.row(size).num_microbatches for size in MEASURED]
    assert counts == [1, 1, 12, 48, 280]
    assert megatron_table.row("1008.0B").num_microbatches == 512 and megatron_table.row("1008.0B").dp == 6


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
    with pytest.raises(UnknownNameError, match=r"row of Tables 1 and 2.*39B.*39\.1B"):
        getattr(megatron_lm, call)("39B")


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="num_layers is 0"):
        megatron_table.parameters(0, 2304, 51_200, 2_048)
    with pytest.raises(SpecError, match="hidden_size is 0"):
        megatron_table.iteration_flops(24, 0, 51_200, 2_048, 512)


def test_a_rate_is_flops_over_gpus_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_lm, "step_s", lambda size: 3.528)
    assert megatron_lm.teraflops("1.7B") == pytest.approx(137, rel=1e-3)


def test_seconds_are_predicted_without_the_papers_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, str]] = []

    def predict(plan: Plan, cluster: ClusterSpec, *, left_out: str) -> SimpleNamespace:
        asked.append((plan.model.name, cluster.num_devices, left_out))
        return SimpleNamespace(step=Prediction.within(3.5, 0.1, "interpolated"))

    monkeypatch.setattr(megatron_lm, "predict", predict)
    assert megatron_lm.step_s.__wrapped__("1.7B") == 3.5
    assert asked == [("gpt-1.7B", 32, "megatron_sc21")]


def test_what_does_not_hold_is_said() -> None:
    """1.7B is the row that is predicted worst, and messages that run beside computes leave little to divide."""
    found = reproduce("megatron_lm", only="TF/s of each GPU that trains 1.7B")["claims"]
    assert [claim["ratio"] for claim in found] == [pytest.approx(1.136, abs=0.002)]
    kept = results_of(system("megatron_lm").folder)
    assert max(kept, key=lambda one: abs(math.log(one["ratio"])))["claim"] == found[0]["claim"]
    assert [one["claim"].partition(" make ")[0] for one in kept if not one["passed"]] == [
        "scatter and gather"
    ]


def test_the_abstracts_trillion() -> None:
    """The row that the paper is cited for: 163 TF/s, 502 PF/s, 52 % of the peak."""
    assert megatron_lm.teraflops("1008.0B") == pytest.approx(162.0, abs=0.1)
    assert megatron_lm.petaflops(3072) == pytest.approx(502.0, rel=0.011)
    assert round(megatron_lm.teraflops("1008.0B") / 3.12) == 52


def test_chunks_gain_most_at_small_batches() -> None:
    gains = [megatron_lm.interleaving_gain("174.6B", batch) for batch in (12, 60)]
    assert gains == [pytest.approx(1.372, abs=0.002), pytest.approx(1.075, abs=0.002)]


def test_scatter_and_gather_gain_most_where_messages_weigh_most() -> None:
    """More chunks are more messages, more microbatches hide them; the figures that the card quotes."""
    gains = {
        (batch, chunks): divided_message_speed_up(
            *megatron_lm.figure("174.6B", batch, chunks), left_out=SOURCE
        )
        - 1
        for batch in (12, 60)
        for chunks in (1, 4)
    }
    assert gains[12, 4] == pytest.approx(0.044, abs=0.0005) and gains[60, 4] == pytest.approx(
        0.010, abs=0.0005
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
