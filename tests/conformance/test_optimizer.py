"""An optimizer of one's own in every verb: counted by the state it declares, priced by its bytes, run as published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.api.trainings.job import with_recipe
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.job.pool import Pool
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules import registered
from meshwright.specs.error import MeshwrightError, PlanError, SpecError
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import Recipe
from tests.planned_case import LLAMA, Planned, assert_equal_to_one_process

pytestmark = pytest.mark.usefixtures("examples")
LION = f"{Path(__file__).resolve().parents[1]}/examples/memory/lion/mechanism.py:Lion"
GPUS = mw.Cluster("1x8xH100")
WHOLE = """
from dataclasses import dataclass
from meshwright.specs.plan.optimizer import UpdateRule

@dataclass(frozen=True)
class Normalised(UpdateRule):
    '''Steps of one length a parameter: the norm is of all of it.'''
    is_elementwise = False
    counts_steps = True
    flops = 3

    def update(self, value, gradient, state, rate, decay):
        assert value.shape == gradient.shape and state["step"] >= 1
        value.sub_(gradient, alpha=rate / float(gradient.norm()))
"""


def on_gpus(**choices: object) -> Plan:
    """A small plan of eight GPUs with formats as usual."""
    formats = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
    return Plan.of(LLAMA, GPUS, mw.Workload(64, 16), **{**formats, **choices})


def step_bytes(plan: Plan) -> float:
    """That its STEPs move."""
    works = mw.simulate(plan).program.tables.works
    return sum(operator.bytes for work in works if work.name == "STEP" for operator in work.operators)


def test_optimizers_are_listed_with_their_options() -> None:
    assert {"adamw", "lion", "sgd"} <= set(catalog.names("optimizers"))
    assert [each["name"] for each in catalog.described("optimizer", "adamw")["options"]] == [
        "betas",
        "epsilon",
    ]
    assert [each["name"] for each in catalog.described("optimizer", "lion")["options"]] == ["betas"]


@pytest.mark.parametrize(
    ("optimizer", "num_bytes"),
    [("adamw", 12), ("lion", 8), (LION, 8), ("sgd", 4), ("sgd(momentum=0.9)", 8)],
)
def test_state_and_step_are_what_is_declared(optimizer: str, num_bytes: int) -> None:
    """Bytes of a parameter: of the state with the master copy, and of a step."""
    usual, plan = on_gpus(), on_gpus(optimizer=optimizer)
    held = [
        dict(estimate_memory(each, GPUS, registered()["1f1b"]).devices[0].holders)["optimizer state"]
        for each in (plan, usual)
    ]
    assert held[0] / held[1] == pytest.approx(num_bytes / 12)
    moved = 3 + 2 * (num_bytes // 4 - 1)
    assert step_bytes(plan) / step_bytes(usual) == pytest.approx(moved / 7)


def test_a_plan_is_searched_checked_simulated_and_not_exported() -> None:
    plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"optimizer": "lion", "tp": 2})
    plan = plans[0].plan
    assert plan.optimizer == "lion" and mw.check(plan).error is None
    assert mw.span_s(mw.simulate(plan)) < mw.span_s(mw.simulate(plan.changed(optimizer="adamw")))
    for target in ("megatron", "torchtitan", "deepspeed"):
        with pytest.raises(MeshwrightError, match='optimizer = "lion"'):
            plan.export(target)


@pytest.mark.parametrize("choices", [
    {"dp": 2}, {"dp": 2, "sharding": "zero1"}, {"dp": 2, "sharding": "zero2"}, {"dp": 2, "sharding": "zero3"}, {"tp": 2},
    {"pp": 2, "passes": ("offload_optimizer",)},
], ids=str)  # fmt: skip
def test_it_equals_one_process(choices: dict[str, object], gloo_pool: Pool) -> None:
    case = Planned(choices={"microbatch_size": 1, "optimizer": LION, **choices})
    assert_equal_to_one_process(case, case.run(gloo_pool, 2), 2)


@pytest.mark.slow
def test_a_recipe_names_it_and_a_checkpoint_goes_on_in_another_layout(
    gloo_pool: Pool, tmp_path: Path
) -> None:
    model = LLAMA.changed(vocabulary_size=256)  # of bytes

    def losses(iterations: int, folder: str, resumes: bool = False, **choices: object) -> list[float]:
        plan = Plan.of(model, mw.Cluster.detect(2), mw.Workload(8, 16), dtype="float64", **choices)
        recipe = Recipe(0.01, warmup=0, final_share=1.0, optimizer=f"{LION}(betas=(0.8, 0.9))")
        done = mw.run_training(
            plan, iterations=iterations, recipe=recipe,
            checkpoints=Checkpoints(tmp_path / folder, resumes=resumes), pool=gloo_pool,
        )  # fmt: skip
        assert done.plan.optimizer.startswith(LION)
        return [it.loss for it in done.iterations]

    whole = losses(4, "whole", dp=2, sharding="zero1")
    losses(2, "parts", dp=2, sharding="zero3")
    assert losses(4, "parts", resumes=True, tp=2) == pytest.approx(whole[2:], rel=1e-8)
    assert "exp_avg/head.weight" in read_index(tmp_path / "parts" / "step-4").tensors
    with pytest.raises(SpecError, match="has the optimizer mechanism.py:Lion"):
        mw.run_training(
            Plan.of(model, mw.Cluster.detect(1), mw.Workload(8, 16), dtype="float64"), iterations=6,
            checkpoints=Checkpoints(tmp_path / "parts", resumes=True), pool=gloo_pool,
        )  # fmt: skip


def test_betas_of_adamw_are_not_given_to_another() -> None:
    assert Recipe(betas=(0.8, 0.9)).rule("adamw") == "adamw(betas=(0.8, 0.9), epsilon=1e-08)"
    assert Recipe().rule("adamw(betas=(0.5, 0.5))") == "adamw(betas=(0.5, 0.5))"
    with pytest.raises(SpecError, match="behind its name"):
        Recipe(betas=(0.8, 0.9)).rule("sgd")


@pytest.mark.parametrize(
    "cut",
    [{"sharding": "zero1"}, {"sharding": "mics(group=2)"}, {"tp": 2}, {"pp": 2, "vocabulary": "one_barrier"}],
    ids=str,
)
def test_one_that_is_not_elementwise_is_refused_where_parameters_are_cut(
    cut: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "whole.py"
    path.write_text(WHOLE)
    with pytest.raises(PlanError, match=f"not elementwise, and {list(cut)[-1]}"):
        mw.simulate(on_gpus(optimizer=f"{path}:Normalised", **cut))


def test_a_search_with_one_that_is_not_elementwise_cuts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "whole.py"
    path.write_text(WHOLE)
    plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"optimizer": f"{path}:Normalised"})
    assert {(each.plan.sharding, each.plan.tp) for each in plans} == {("none", 1)}


def test_one_that_is_not_elementwise_sees_whole_parameters(tmp_path: Path, gloo_pool: Pool) -> None:
    path = tmp_path / "whole.py"
    path.write_text(WHOLE)
    chosen = {"optimizer": f"{path}:Normalised", "microbatch_size": 1}
    alone = Planned(choices=chosen).run(gloo_pool, 2)
    for other in ({"dp": 2}, {"pp": 2, "dtype": "float32", "master_dtype": "float64"}):
        found = Planned(choices={**chosen, **other}).run(gloo_pool, 2)
        assert found.losses == pytest.approx(alone.losses, rel=1e-10 if "dp" in other else 1e-5)


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text("def half(model): return model\n")
    with pytest.raises(PlanError, match="UpdateRule"):
        mw.simulate(on_gpus(optimizer=f"{path}:half"))
    with pytest.raises(PlanError, match="adamw, sgd, .*lion"):
        on_gpus(optimizer="adafactor")
    with pytest.raises(PlanError, match="0 or more"):
        on_gpus(optimizer="sgd(momentum=-1.0)")
    saved = tmp_path / "plan.toml"
    on_gpus(optimizer=f"{path}:half").save(saved)
    path.write_text("raise SystemExit\n")
    with pytest.raises(PlanError, match="--trust"):
        mw.simulate(Plan.load(saved))
    path.write_text(WHOLE)
    named = with_recipe(Plan.load(saved), Recipe(optimizer=f"{path}:Normalised"))
    assert mw.check(named).error is None  # who names it in a call trusts it


def test_a_clip_and_an_offload_work_with_it() -> None:
    plan = on_gpus(
        pp=2, optimizer="lion", passes=(PassOption("offload_optimizer"), PassOption("clip_gradients"))
    )
    assert mw.check(plan).error is None
    costs = replace(GPUS, costs="roofline")
    assert mw.span_s(mw.simulate(plan, cluster=costs)) > 0
