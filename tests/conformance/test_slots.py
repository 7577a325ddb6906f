"""Whatever fills a slot works in every verb: listed, planned, checked, simulated, trained, exported, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.api.plans.request import fixed_of
from meshwright.api.plans.slots import _choices
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.opened_model import runner_of
from meshwright.catalog import listing
from meshwright.evidence.claim.reproduce import recompute
from meshwright.evidence.claim.system_card import read_card
from meshwright.executor.job.pool import Pool
from meshwright.schedules import registered
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.parted.serving_step import WHOLE
from meshwright.serving.weight.expert_place import ExpertPlace
from meshwright.serving.weight.weight_place import RESIDENT, weight_place
from meshwright.specs.error import CountError, ExecutionError, MeshwrightError, PlanError, SpecError
from meshwright.specs.plan.plan import PassOption, Plan
from tests.examples import CARDS, names_of
from tests.executor.serving.paged_case import FAMILIES, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt
from tests.planned_case import DEEPSEEK, LLAMA, Planned, assert_equal_to_one_process

pytestmark = pytest.mark.usefixtures("examples")
GPUS = mw.Cluster("1x8xH100")
OWN = """
from dataclasses import dataclass, replace
from meshwright.specs.plan.sharding import Sharding

mine = Sharding(values=2, gradients=2, state=2)


@dataclass(frozen=True)
class Reversed:
    after = ("optimizer_step",)

    def __call__(self, program):
        return program


def halved(model):
    return model.changed(num_layers=model.num_layers // 2)


def backwards(plan, cluster):
    return range(plan.num_devices - 1, -1, -1)


@dataclass(frozen=True)
class Named:
    word: str = "one"

    def __call__(self, program):
        return program

    @classmethod
    def choices(cls, plan, cluster):
        return (cls("one"), cls("two"))


@dataclass(frozen=True)
class Late:
    by: int

    def __call__(self, p, m):
        return wave(p, m)


def wave(p, m):
    return [[f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)] for _ in range(p)]
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of the user's with something for every slot."""
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return str(path)


def on_gpus(**choices: object) -> Plan:
    """A small plan of eight GPUs."""
    return Plan.of(LLAMA, GPUS, mw.Workload(64, 16), dtype="bfloat16", **choices)


def through_the_verbs(plan: Plan) -> None:
    """Checked and simulated; exported, or refused with the reason; saved and read again."""
    assert mw.span_s(mw.simulate(plan)) > 0
    assert mw.check(plan) is not None
    for target in ("megatron", "torchtitan", "deepspeed"):
        try:
            assert plan.export(target)
        except MeshwrightError as refusal:
            assert target.partition("-")[0] in str(refusal).lower()


# How a filler is asked for that is tried otherwise than by its name, or by the first of its choices.
OTHERWISE = {
    "low_bandwidth_partitioning": "low_bandwidth_partitioning(values=2, gradients=4)",
    "skip_pipe": "skip_pipe(skipped=0)",
}
SCHEDULES = [name for name in names_of("schedule") if name not in registered()]
AS_FAST_AS_1F1B = ("eager_1f1b", "skip_pipe")
# How each pass is asked for: as options, and beside what.
PASSES: Mapping[str, Mapping[str, Any]] = {
    "connect_stages": {"pp": 2},
    "place_receives": {"pp": 2, "schedule": "zb_h1"},
    "clip_gradients": {"pp": 2},
    "post_validation": {"pp": 2},
    "offload_optimizer": {"dp": 2, "sharding": "zero1"},
    "canonical_reduction": {"dp": 2},
    "unshard": {"dp": 2, "sharding": "zero3"},
}
OF_SEQUENCES = "share_choices"  # where sequences are shared; what it is for: tests/executor/training/test_expert_capacity.py
OF_ROUTERS = "correct_routers"  # of a model with routers; what it trains: tests/executor/routing/test_router_correction.py


def test_every_filler_is_listed_with_its_options() -> None:
    for slot, one in catalog.SLOTS.items():
        for name in catalog.slot_names(slot):
            row = catalog.described(slot, name)
            assert row["name"] == name and row["summary"], (slot, name)
        assert one.protocol and one.field
    assert {"mics", "low_bandwidth_partitioning"} <= set(catalog.names("shardings"))
    assert "eager_1f1b" in catalog.slot_names("schedule")
    for slot in catalog.SLOTS:
        assert set(names_of(slot)) == set(catalog.slot_names(slot)), "the examples stand beside the others"
    assert {*PASSES, OF_ROUTERS, OF_SEQUENCES} == set(catalog.slot_names("passes"))


def asked_for(slot: str, name: str, plan: Plan) -> str:
    """A filler with options that fit a plan."""
    if name in OTHERWISE:
        return OTHERWISE[name]
    return _choices(slot, plan, GPUS, name)[0]


@pytest.mark.parametrize("name", names_of("sharding"))
def test_a_sharding_goes_through_the_verbs(name: str, gloo_pool: Pool) -> None:
    sharding = asked_for("sharding", name, on_gpus(dp=2, tp=2, pp=2))
    through_the_verbs(on_gpus(sharding=sharding))
    one = Planned(choices={"dp": 4, "microbatch_size": 1, "sharding": sharding})
    assert_equal_to_one_process(one, one.run(gloo_pool, 2), 2)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.parent.name)
def test_what_an_example_claims_holds(card: Path) -> None:
    """Its claims are found and computed as those of the package."""
    read = read_card(card)
    found = [recompute(claim, read.module) for claim in read.claims]
    assert found and [each.to_dict() for each in found if not each.passed] == []


def trained(pool: Pool, clip: float = 0.0, **choices: Any) -> None:
    """Two processes, float64, equal to one."""
    case = Planned(choices={"microbatch_size": 1, **choices}, clip=clip)
    assert case.num_devices == 2
    assert_equal_to_one_process(case, case.run(pool, 2), 2)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_goes_through_the_verbs(name: str, gloo_pool: Pool) -> None:
    clip = 0.5 if name in ("clip_gradients", "post_validation") else 0.0
    beside = (PassOption("clip_gradients"),) if name == "post_validation" else ()
    plan = on_gpus(
        **{**PASSES[name], "dp": 8 // PASSES[name].get("pp", 1), "passes": (*beside, PassOption(name))}
    )
    through_the_verbs(plan)
    found = mw.plan(
        LLAMA, GPUS, global_batch=64, seq=16,
        fix={"passes": tuple(each.name for each in plan.passes), "pp": plan.pp, "tp": 1, "sharding": plan.sharding},
    )  # fmt: skip
    assert found[0].plan.passes == plan.passes
    passes = () if name == "clip_gradients" else (name,)  # `clip` names it
    trained(gloo_pool, clip, **PASSES[name], passes=passes)


def test_what_corrects_routers_goes_through_the_verbs() -> None:
    corrected = PassOption(OF_ROUTERS, {"rate": 0.01})
    plan = Plan.of(DEEPSEEK, GPUS, mw.Workload(64, 16), dtype="bfloat16", pp=2, ep=2, passes=(corrected,))
    through_the_verbs(plan)
    found = mw.plan(DEEPSEEK, GPUS, global_batch=64, seq=16, fix={"passes": (OF_ROUTERS,), "pp": 2, "tp": 1})
    assert [each.name for each in found[0].plan.passes] == [OF_ROUTERS]
    with pytest.raises(PlanError, match="has none"):
        mw.simulate(on_gpus(pp=2, passes=(corrected,)))


def test_what_is_told_along_cp_goes_through_the_verbs() -> None:
    told = PassOption(OF_SEQUENCES, {"gates": True})
    plan = Plan.of(DEEPSEEK, GPUS, mw.Workload(64, 16), dtype="bfloat16", cp=2, ep=2, passes=(told,))
    through_the_verbs(plan)
    found = mw.plan(
        DEEPSEEK, GPUS, global_batch=64, seq=16, fix={"passes": (OF_SEQUENCES,), "cp": 2, "tp": 1}
    )
    assert [each.name for each in found[0].plan.passes] == [OF_SEQUENCES]
    with pytest.raises(PlanError, match="share sequences"):
        mw.simulate(on_gpus(pp=2, passes=(told,)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_a_system_goes_through_the_verbs(name: str, gloo_pool: Pool) -> None:
    schedule = OTHERWISE.get(name, name)
    plan = on_gpus(pp=2, schedule=schedule)
    through_the_verbs(plan)
    most = (
        1.3 if name in AS_FAST_AS_1F1B else plan.pp
    )  # that devices take turns is the slowest that is of use
    assert mw.span_s(mw.simulate(plan)) <= mw.span_s(mw.simulate(plan.changed(schedule="1f1b"))) * most
    trained(gloo_pool, pp=2, schedule=schedule)


def test_a_schedule_of_a_system_that_holds_stages_twice_goes_through_the_verbs(gloo_pool: Pool) -> None:
    through_the_verbs(on_gpus(pp=4, schedule="gems"))
    one = Planned(choices={"pp": 4, "microbatch_size": 1, "schedule": "gems"})
    assert_equal_to_one_process(one, one.run(gloo_pool, 2), 2)


def test_plan_fixes_a_schedule_that_its_form_does_not_know(own: str) -> None:
    """Simulated in the best plans of 1F1B with as many stages, of pipelines that it has orders for."""
    for schedule, degrees in (("skip_pipe", {4}), (f"{own}:Late(by=1)", {2, 4})):
        plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"schedule": schedule, "tp": 1})
        assert {each.plan.schedule for each in plans} == {schedule}
        assert {each.plan.pp for each in plans} <= degrees and "1f1b is ranked" in plans.assumptions[0]
        assert mw.check(plans[0].plan).error is None
    with pytest.raises(CountError, match="leave out 1 of 2"):
        mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"schedule": "skip_pipe", "pp": 2})


def test_a_users_schedule_with_options_is_read_once(own: str) -> None:
    path = Path(own)
    path.write_text(
        path.read_text() + "\nwith open(__file__ + '.times', 'a') as file:\n    file.write('.')\n"
    )
    assert catalog.find_schedule(f"{own}:Late(by=1)").orders(2, 2)
    catalog.find_schedule(f"{own}:Late(by=1)")
    assert Path(own + ".times").read_text() == "."


def test_plan_searches_the_choices_of_a_pass(own: str) -> None:
    plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"passes": f"{own}:Named", "pp": 2, "tp": 1})
    assert {dict(each.plan.passes[0].options)["word"] for each in plans} == {"one", "two"}
    with pytest.raises(PlanError, match="offload_optimizer"):
        mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"passes": "nobody"})
    with pytest.raises(PlanError, match="each ask|clip_gradients"):
        mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"passes": "post_validation"})
    assert fixed_of(["pp=2,passes=a(x=1,y=1e+2)+b"]) == {"pp": 2, "passes": ("a(x=1,y=1e+2)", "b")}


@pytest.mark.parametrize(
    "choices",
    [
        {"dp": 2, "sharding": "mine"}, {"pp": 2, "schedule": "wave"}, {"pp": 2, "placement": "backwards"},
        {"pp": 2, "passes": "Reversed"}, {"pp": 2, "variant": "halved"},
    ],
    ids=str,
)  # fmt: skip
def test_a_users_file_fills_every_slot(choices: dict[str, Any], own: str, gloo_pool: Pool) -> None:
    ((slot, name),) = ((slot, name) for slot, name in choices.items() if isinstance(name, str))
    filled = {slot: (PassOption(f"{own}:{name}"),) if slot == "passes" else f"{own}:{name}"}
    plan = on_gpus(**{**choices, "dp": 8 // choices.get("pp", 1), **filled})
    through_the_verbs(plan)
    if slot == "variant":
        assert plan.model.num_layers == LLAMA.num_layers // 2
    if slot == "placement":
        assert plan.placed(GPUS).device_order == tuple(range(7, -1, -1))
    trained(gloo_pool, **{**choices, slot: (f"{own}:{name}",) if slot == "passes" else f"{own}:{name}"})


@pytest.mark.parametrize("planner", [name for name in catalog.slot_names("planner") if name != "search"])
def test_a_planner_goes_through_the_verbs(planner: str) -> None:
    """What it gives is a plan as any other."""
    plans = mw.plan("llama-3.2-1b", GPUS, global_batch=64, seq=2048, planner=planner)
    through_the_verbs(plans[0].plan)


def test_costs_and_routings_of_the_core_price_every_prediction() -> None:
    for cluster in (replace(GPUS, costs="roofline"), replace(GPUS, routing="levels")):
        plans = mw.plan(LLAMA, cluster, global_batch=64, seq=16, fix={"pp": 2, "tp": 2})
        trace = mw.simulate(plans[0].plan, cluster=cluster)
        assert mw.span_s(trace) > 0 and mw.check(plans[0].plan).error is None


def test_code_that_a_file_names_runs_only_where_the_user_says_so(own: str, tmp_path: Path) -> None:
    marked = tmp_path / "marked.py"
    marked.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n" + OWN)
    path = tmp_path / "plan.toml"
    Plan.of(LLAMA, GPUS, mw.Workload(64, 16), dtype="bfloat16", pp=2, num_chunks=1).save(path)
    path.write_text(path.read_text().replace("pp = 2", f'schedule = "{marked}:wave"\npp = 2'))
    plan = Plan.load(path)
    assert plan.schedule == f"{marked}:wave"
    for verb in (mw.simulate, mw.check):
        with pytest.raises(PlanError, match="--trust"):
            verb(plan)
    assert not (tmp_path / "ran").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.specs.slot.TRUST.is_given", True)
        assert mw.span_s(mw.simulate(plan)) > 0
    assert (tmp_path / "ran").exists()


def test_plan_searches_a_systems_sharding() -> None:
    """All its choices, as plans that are simulated; beside the step of ZeRO that divides the same."""
    plans = mw.plan(
        "llama-3.2-1b",
        "2x8xH100",
        global_batch=64,
        seq=2048,
        fix={"sharding": "low_bandwidth_partitioning", "tp": 1},
    )
    named = {each.plan.sharding for each in plans}
    assert len(named) > 1 and all(one.startswith("low_bandwidth_partitioning(values=") for one in named)
    assert "zero3" in plans.assumptions[0]
    fixed = {"sharding": "low_bandwidth_partitioning(values=2, gradients=8)", "tp": 1}
    (one,) = {
        each.plan.sharding
        for each in mw.plan("llama-3.2-1b", "2x8xH100", global_batch=64, seq=2048, fix=fixed)
    }
    assert one == fixed["sharding"]


def test_plan_fills_placement_and_variant(own: str) -> None:
    fix = {"placement": f"{own}:backwards", "variant": f"{own}:halved", "tp": 2, "pp": 1}
    plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix=fix)
    best = plans[0].plan
    assert best.device_order == tuple(range(7, -1, -1)) and best.model.num_layers == LLAMA.num_layers // 2
    assert mw.Plan.of(LLAMA, GPUS, best.workload, variant=best.variant).model == best.model
    alone = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, fix={"variant": f"{own}:halved", "tp": 2, "pp": 1})
    assert alone[0].plan.variant == best.variant and alone[0].plan.model == best.model


def test_another_planner_names_the_plans_that_serve_a_load(tmp_path: Path) -> None:
    """One in a file of the user's; what gives no serving plans is refused by its file, a name that nobody knows by name."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from meshwright.serving.fleet.serving_plan import ServingPlan\n"
        "from meshwright.serving.simulated.replica_layout import ReplicaLayout\n"
        "def most(search):\n"
        "    return [ServingPlan(ReplicaLayout(), search.cluster.num_devices, max_batch_tokens=128, max_sequences=8)]\n"
        "def nothing_of_serving(search):\n"
        "    return ['tp8']\n",
        encoding="utf-8",
    )
    load = [Request(str(i), 100, 5, i / 10, num_output_tokens=5) for i in range(9)]
    (found,) = mw.plan_load("llama-3.2-1b", "4xH100", load, planner=f"{path}:most", step_table=False)
    assert found.plan.replicas == 4 and found.report.num_finished == 9
    with pytest.raises(SpecError, match="mine.py"):
        mw.plan_load("llama-3.2-1b", "4xH100", load, planner=f"{path}:nothing_of_serving")
    with pytest.raises(PlanError, match="serving_planner"):
        mw.plan_load("llama-3.2-1b", "4xH100", load, planner="nobody")


def test_another_planner_fills_the_verb(tmp_path: Path) -> None:
    path = tmp_path / "planner.py"
    path.write_text(
        "from meshwright import Plan\n"
        "def most_data_parallel(model, cluster, workload, fix):\n"
        "    return [Plan.of(model, cluster, workload, sharding='zero1', **fix), Plan.of(model, cluster, workload, **fix)]\n"
    )
    plans = mw.plan(LLAMA, GPUS, global_batch=64, seq=16, planner=f"{path}:most_data_parallel")
    assert {each.plan.dp for each in plans} == {8} and len(plans) == 2
    assert "most_data_parallel" in plans.assumptions[0]
    with pytest.raises(PlanError, match="planner"):
        mw.plan(LLAMA, GPUS, global_batch=64, seq=16, planner="nobody")


def fetches_experts(name: str) -> bool:
    return isinstance(weight_place(name), ExpertPlace)


WEIGHTS = """
from dataclasses import dataclass
from meshwright.serving.weight.weight_place import WeightSource


@dataclass(frozen=True)
class Inner:
    bytes_per_s: float
    window: int = 2

    @property
    def source(self):
        return WeightSource("disk", self.bytes_per_s)

    def fetched(self, blocks):
        return [block for block in blocks if block.endswith("feed_forward")]


nothing = 1
"""


@pytest.mark.parametrize("name", [name for name in catalog.slot_names("weights") if fetches_experts(name)])
def test_experts_that_are_fetched_are_served_and_not_planned(name: str, tmp_path: Path) -> None:
    """Executed: the same logits, and less is held. A plan of a load has no routing, a dense model no experts: they say so."""
    load = [Request("a", 20, 3, num_output_tokens=3)]
    with pytest.raises(PlanError, match="routing"):
        mw.plan_load("mixtral-8x7b", "4xH100", load, fix={"tp": 4, "pp": 1, "replicas": 1, "weights": name})
    their_model({**FAMILIES["mixtral"], "num_local_experts": 16}, tmp_path / "experts")
    their_model(FAMILIES["llama"], tmp_path / "dense")
    small = EngineChoice(engine="torch", dtype="float32", device="cpu", num_blocks=8, num_threads=1)
    runners = [runner_of(tmp_path / "experts", replace(small, weights=each)) for each in (RESIDENT, name)]
    logits = [ScatteredBlocks(runner).step(("a", prompt(9, 1))) for runner in runners]
    assert (logits[0] == logits[1]).all()
    assert runners[1].peak_weight_bytes < runners[0].peak_weight_bytes
    for runner in runners:
        runner.close()
    with pytest.raises(ExecutionError, match="none"):
        runner_of(tmp_path / "dense", replace(small, weights=name))


@pytest.mark.parametrize(
    "name",
    [name for name in catalog.slot_names("weights") if name != RESIDENT and not fetches_experts(name)]
    + ["own"],
)
def test_weights_that_are_fetched_go_through_the_verbs(name: str, tmp_path: Path) -> None:
    """Planned for a load: a device holds less, a step takes longer. Executed: the same logits, and less is held."""
    (tmp_path / "mine.py").write_text(WEIGHTS)
    weights = f"{tmp_path / 'mine.py'}:Inner(bytes_per_s=1e9)" if name == "own" else name
    load = [Request("a", 20, 3, num_output_tokens=3)]
    fix = {"tp": 2, "pp": 1, "replicas": 1}
    (stays,) = mw.plan_load("llama-3.2-1b", "4xH100", load, fix=fix)
    (comes,) = mw.plan_load("llama-3.2-1b", "4xH100", load, fix={**fix, "weights": weights})
    assert comes.num_blocks > stays.num_blocks and weights in comes.plan.name
    # What is quick to come is hidden behind computes.
    least = 1.0 if weight_place(weights).source.bytes_per_s > 100e9 else 2.0
    assert comes.report.e2e_s["p50"] >= least * stays.report.e2e_s["p50"]
    their_model({**FAMILIES["llama"], "num_hidden_layers": 4}, tmp_path)
    small = EngineChoice(engine="torch", dtype="float32", device="cpu", num_blocks=8, num_threads=1)
    runners = [runner_of(tmp_path, replace(small, weights=each)) for each in (RESIDENT, weights)]
    logits = [ScatteredBlocks(runner).step(("a", prompt(9, 1))) for runner in runners]
    assert (logits[0] == logits[1]).all()
    assert runners[1].peak_weight_bytes < runners[0].peak_weight_bytes
    for runner in runners:
        runner.close()


DECODER = """
from dataclasses import dataclass
from meshwright.serving.engine.proposer import Continuation


class Same:
    def propose(self, asked):
        more = [5, 999_999]  # more than there is room for, and what no model knows
        return [Continuation([int(each.tokens[-1])] * each.most + more, [None] * (each.most + 2)) for each in asked]

    def forget(self, sequence):
        pass

    def close(self):
        pass


@dataclass(frozen=True)
class Again:
    tokens: int = 2
    acceptance: float = 0.0
    draft: str = ""

    def proposer(self, opened, vocabulary_size):
        return Same()
"""


@pytest.mark.parametrize("name", [*catalog.slot_names("decoder"), "own"])
def test_decoders_change_no_greedy_token(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DECODER)
    their_model({**FAMILIES["llama"], "vocab_size": 256}, tmp_path)
    named = {"own": f"{tmp_path / 'mine.py'}:Again(tokens=3)", "draft": f"draft(model={str(tmp_path)!r})"}
    said = []
    for decoder in ("one_token", named.get(name, name)):
        with mw.LLM(
            tmp_path, engine="torch", dtype="float32", device="cpu", num_blocks=32, decoder=decoder
        ) as model:
            answers = model.generate([[1, 2, 3, 1, 2], [7, 7, 7]], max_tokens=9, temperature=0.0)
            said.append([each.token_ids for each in answers])
    assert said[0] == said[1]


def test_weights_that_are_no_place_for_them_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WEIGHTS)
    load, fix = [Request("a", 20, 3, num_output_tokens=3)], {"tp": 1, "replicas": 1}
    for weights in (f"{tmp_path / 'mine.py'}:nothing", "moon"):
        with pytest.raises(PlanError, match="weights"):
            mw.plan_load("llama-3.2-1b", "1xH100", load, fix={**fix, "weights": weights})
    with pytest.raises(SpecError, match="with OpenVINO"):
        runner_of(tmp_path, EngineChoice(engine="openvino", weights="moon"))


SLOWER = """
from dataclasses import dataclass
from meshwright.serving.simulated.forward_program import StepTime


@dataclass(frozen=True)
class Slower:
    times: float = 2.0

    def of(self, program, limits):
        self_times, most = self.times, limits.max_batch_tokens

        class Steps:
            def step(self, batch):
                assert batch.num_tokens <= most
                return StepTime(*(self_times * seconds for seconds in program.step(batch)))

        return Steps()
"""


@pytest.mark.parametrize("name", [*catalog.slot_names("step"), "own"])
def test_a_step_goes_through_the_verbs(name: str, tmp_path: Path) -> None:
    """Planned for a load, under its name; a step of the user's own as it says."""
    (tmp_path / "mine.py").write_text(SLOWER)
    step = f"{tmp_path / 'mine.py'}:Slower(times=3)" if name == "own" else name
    load = [Request(str(i), 300, 5, num_output_tokens=5) for i in range(3)]
    fix = {"tp": 2, "replicas": 1}
    (whole,) = mw.plan_load("llama-3.2-1b", "2xH100", load, fix=fix)
    (found,) = mw.plan_load("llama-3.2-1b", "2xH100", load, fix={**fix, "step": step})
    assert found.report.num_finished == 3 and found.plan.to_dict()["step"] == step
    assert (step in found.plan.name) == (name != WHOLE)
    ratio = found.report.duration_s / whole.report.duration_s
    assert ratio == pytest.approx(3.0, rel=0.1) if name == "own" else ratio < 1.05
    with pytest.raises(PlanError, match="moon"):
        mw.plan_load("llama-3.2-1b", "2xH100", load, fix={**fix, "step": "moon"})


def test_a_clusters_costs_are_those_it_names(tmp_path: Path) -> None:
    """A cost model of the user's prices every verb that predicts: one that is twice as slow doubles computes."""
    path = tmp_path / "prices.py"
    path.write_text(
        "from meshwright.costs.roofline import Roofline\n"
        "class Slow(Roofline):\n"
        "    def cost(self, work, device=None):\n"
        "        return super().cost(work, device).scaled(2.0)\n"
    )
    seconds = {}
    for costs in ("roofline", f"{path}:Slow"):
        cluster = replace(GPUS, costs=costs)
        plan = Plan.of(LLAMA, cluster, mw.Workload(64, 16), dtype="bfloat16", dp=8)
        trace = mw.simulate(plan, cluster=cluster)
        seconds[costs] = float((trace.end_s - trace.start_s)[0][trace.program.kinds == 0].sum())
    assert seconds[f"{path}:Slow"] == pytest.approx(2 * seconds["roofline"])
    with pytest.raises(PlanError, match="roofline"):
        mw.simulate(plan, cluster=replace(GPUS, costs="nobody"))


def test_what_nobody_knows_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(PlanError, match="zero1") as refused:
        on_gpus(sharding="zero4")
    assert "zero4" in str(refused.value)
    with pytest.raises(PlanError, match="values"):
        on_gpus(sharding="low_bandwidth_partitioning(weights=2)")
    with pytest.raises(PlanError, match="1 or more"):
        on_gpus(sharding="low_bandwidth_partitioning(values=0)")
    with pytest.raises(PlanError, match="divide each other"):
        on_gpus(sharding="low_bandwidth_partitioning(values=3)")
    with pytest.raises(SpecError, match="no file"):
        mw.simulate(on_gpus(sharding="./nowhere.py:mine"))


def test_passes_that_contradict_each_other_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "class First:\n    before = ('SECOND',)\n    def __call__(self, p): return p\n"
        "class Second:\n    def __call__(self, p): return p\n"
    )
    first, second = f"{path}:First", f"{path}:Second"
    path.write_text(
        "from dataclasses import dataclass\n"
        f"@dataclass(frozen=True)\nclass First:\n    before = ({second!r},)\n    after = ({second!r},)\n"
        "    def __call__(self, p): return p\n"
        "@dataclass(frozen=True)\nclass Second:\n    def __call__(self, p): return p\n"
    )
    with pytest.raises(PlanError, match="stand before the other"):
        mw.simulate(on_gpus(passes=(PassOption(first), PassOption(second))))


def test_a_listed_schedule_is_one_that_is_found() -> None:
    for name in listing.names("schedules"):
        assert catalog.find_schedule(name).name == name
