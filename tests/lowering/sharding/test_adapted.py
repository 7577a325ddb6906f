"""Plans of models of which a part trains: memory, work and reductions count that part only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, Plan, PlanError, Workload
from meshwright.specs.model.adaptation import LORA_TARGETS
from meshwright.specs.operator import total_flops
from meshwright.stage.group.value_size import (
    gradient_bytes,
    num_local_parameters,
    num_partial_parameters,
    num_trained_parameters,
    optimizer_bytes,
    parameter_bytes,
)
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.operator.stage import stage_operators
from meshwright.stage.saved.saved import pending_gradient_bytes_per_token, saved_bytes_per_token

MODEL = ModelSpec.decoder(6, 32, 4, num_kv_heads=2, vocabulary_size=64, max_sequence_length=16)
LORA = replace(MODEL, lora_rank=4, lora_targets=LORA_TARGETS)
UPPER = replace(MODEL, trained=("layers.4.*", "layers.5.*", "final_norm.*", "head.*"))
NORMS = replace(MODEL, has_tied_embeddings=True, trained=("*norm.*",))
GPT2 = ModelSpec.gpt(6, 32, 4, vocabulary_size=64, max_sequence_length=16, name="gpt", source="made up")
BIASES = replace(GPT2, trained=("*.bias",))
MODELS = {"lora": LORA, "upper": UPPER, "norms": NORMS, "biases": BIASES}


def _plan(model: ModelSpec, **choices: Any) -> Plan:
    num_devices = choices.get("pp", 1) * choices.get("dp", 1) * choices.get("tp", 1)
    return Plan.of(model, Cluster(f"{num_devices}xcpu"), Workload(8, 16), **{"dtype": "float64", **choices})


def _program(plan: Plan) -> Program:
    return lower(plan, registered()[plan.schedule])


def _flops(model: ModelSpec, name: str) -> float:
    layers = _plan(model).stages()[0]
    return total_flops(stage_operators(model, layers, name, MicrobatchShape(1, 16)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pp", [1, 2, 3])
def test_state_is_that_of_what_trains(name: str, pp: int) -> None:
    plan = _plan(MODELS[name], pp=pp)
    model, stages = plan.model, plan.stages()
    trained = sum(num_trained_parameters(plan, layers).dense for layers in stages)
    assert trained == model.num_trained_parameters < model.num_parameters
    assert sum(gradient_bytes(plan, layers) for layers in stages) == 8 * trained
    assert sum(optimizer_bytes(plan, layers) for layers in stages) == 16 * trained
    held = sum(parameter_bytes(plan, layers) for layers in stages) / 8
    again = model.num_head_parameters * (model.has_tied_embeddings and pp > 1)  # a copy of the tied table
    additions = trained if name == "lora" else 0
    assert held == model.num_parameters + again + additions
    assert sum(num_local_parameters(plan, layers).dense for layers in stages) == held


def test_additions_by_hand() -> None:
    shapes = [(32, 64), (32, 32), (32, 2 * MODEL.intermediate_size), (MODEL.intermediate_size, 32)]
    assert LORA.num_trained_parameters == 6 * sum(4 * (num_in + num_out) for num_in, num_out in shapes)
    assert LORA.base == MODEL and LORA.digest != MODEL.digest


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_whole(name: str) -> None:
    for choices in (
        {"pp": 3, "dp": 2},
        {"pp": 2, "dp": 2, "split_backward": True, "recompute": "full"},
        {"pp": 2, "dp": 2, "sharding": "zero1"},
        {"pp": 2, "dp": 2, "tp": 2, "sharding": "zero2", "sequence_parallel": True},
        {"pp": 2, "dp": 2, "sharding": "zero3"},
    ):
        verify(_program(_plan(MODELS[name], **choices)))


def test_shards_have_the_format_of_what_they_hold() -> None:
    mixed = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}
    plan = _plan(LORA, dp=2, sharding="zero3", **mixed)
    layers, trained, frozen = plan.stages()[0], LORA.num_trained_parameters, MODEL.num_parameters
    assert parameter_bytes(plan, layers) == (4 * trained + 2 * frozen) / 2
    assert gradient_bytes(plan, layers) == 4 * trained / 2
    assert optimizer_bytes(plan, layers) == 8 * trained / 2  # the shard is the master copy
    sizes = {each.kind: sum(each.by_index) for each in _program(plan).tables.value_bytes}
    assert sizes["parameter"] == (4 * trained + 2 * frozen) / 2
    assert sizes["gathered_parameter"] == 2 * (trained + frozen)
    assert sizes["weight_gradient"] == 4 * trained / 2


def test_a_stage_that_is_frozen_is_gathered_and_not_scattered() -> None:
    program = _program(_plan(UPPER, pp=3, dp=2, sharding="zero3"))
    names = [program.tables.effects[e].name for e in program.columns.effect]
    stages = {
        name: {int(program.columns.stage[i]) for i, each in enumerate(names) if each == name}
        for name in ("UNSHARD", "SCATTER_GRAD")
    }
    assert stages == {"UNSHARD": {0, 1, 2}, "SCATTER_GRAD": {2}}


@pytest.mark.parametrize("choices", [{}, {"split_backward": True}, {"dp": 2, "sharding": "zero1"}], ids=str)
def test_a_stage_that_is_frozen_is_lowered_in_segments(choices: dict[str, Any]) -> None:
    plan = _plan(UPPER, pp=2, tp=2, **choices)
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    verify(program)
    names = {each.name for each in program.tables.effects}
    assert "STEP" in names and len(program) > 10 * len(_program(plan))


@pytest.mark.parametrize("sharding", ["zero1", "zero2"])
def test_behind_a_step_what_was_stepped_is_gathered(sharding: str) -> None:
    tables = _program(_plan(LORA, dp=2, sharding=sharding)).tables
    (gather,) = (each for each in tables.exchanges if each.algorithm == "all_gather")
    expected = {size.name: size.expected for size in tables.sizes}
    assert expected[gather.size] == 8 * LORA.num_trained_parameters
    (whole,) = (
        each for each in _program(_plan(MODEL, dp=2, sharding=sharding)).tables.exchanges
        if each.algorithm == "all_gather"
    )  # fmt: skip
    assert whole.size == ""


def test_tensor_parallelism_divides_one_factor() -> None:
    plan = _plan(LORA, tp=2)
    inner, layers = MODEL.intermediate_size, plan.stages()[0]
    whole = 32 + 32 + 32 + 32  # inputs of qkv and gate_up, outputs of attention_output and down
    divided = (64 + 32 + 2 * inner + inner) // 2
    assert num_trained_parameters(plan, layers).dense == 6 * 4 * (whole + divided)
    assert num_partial_parameters(plan, layers) == 6 * 4 * whole
    norms = replace(LORA, trained=("*.attention_norm.*",))
    assert num_partial_parameters(_plan(norms, tp=2), layers) == 6 * 4 * whole
    assert num_partial_parameters(_plan(norms, tp=2, sequence_parallel=True), layers) == 6 * (4 * whole + 32)


def test_work_of_additions_is_divided_along_tp() -> None:
    layers = _plan(MODEL).stages()[0]

    def added(tp: int) -> float:
        shape, kinds = MicrobatchShape(1, 16, tp=tp), ("matmul",)
        flops = [
            sum(o.flops * o.count for o in stage_operators(model, layers, "F", shape) if o.kind in kinds)
            for model in (LORA, MODEL)
        ]
        return flops[0] - flops[1]

    shapes = [(32, 64), (32, 32), (32, 192), (96, 32)]
    assert added(1) == 6 * 2 * 16 * 4 * sum(num_in + num_out for num_in, num_out in shapes)
    halves = [(32, 32), (16, 32), (32, 96), (48, 32)]
    assert added(2) == 6 * 2 * 16 * 4 * sum(num_in + num_out for num_in, num_out in halves)


def test_what_is_frozen_is_not_reduced_nor_stepped() -> None:
    program = _program(_plan(UPPER, pp=3, dp=2))
    reduced = [
        int(program.columns.stage[i])
        for i in range(program.num_rows)
        if program.tables.effects[program.columns.effect[i]].name == "REDUCE_GRAD"
    ]
    assert reduced == [2]
    sizes = {each.kind: each.by_index for each in program.tables.value_bytes}
    assert sizes["optimizer_state"][:2] == (0.0, 0.0) and sizes["optimizer_state"][2] > 0
    steps = {work.shape for work in program.tables.works if work.name == "STEP"}
    assert steps == {(0,), (UPPER.num_trained_parameters,)}


def test_weight_gradients_of_what_is_frozen_are_not_computed() -> None:
    whole = _flops(MODEL, "W")
    products = 2 * 16 * sum(4 * (i + o) for i, o in [(32, 64), (32, 32), (32, 192), (96, 32)])
    assert _flops(LORA, "W") == 6 * products < whole / 4
    assert _flops(LORA, "F") > _flops(MODEL, "F") and _flops(LORA, "I") > _flops(MODEL, "I")
    upper = _flops(UPPER, "W") / whole
    assert 0.3 < upper < 0.5  # two of six blocks, and the head
    assert _flops(UPPER, "I") < 0.5 * _flops(MODEL, "I")  # no gradient passes the lower four
    assert _flops(NORMS, "W") < 0.01 * _flops(replace(MODEL, has_tied_embeddings=True), "W")
    assert _flops(BIASES, "W") < 0.02 * _flops(GPT2, "W")


def test_inputs_of_frozen_matrices_are_not_kept() -> None:
    layers = _plan(MODEL).stages()[0]
    whole = saved_bytes_per_token(MODEL, layers)
    inputs = 6 * 4 * (32 + 32 + 32 + 96)  # of both norms' outputs, attention's and the activation's
    frozen = saved_bytes_per_token(replace(MODEL, trained=("*norm.*", "embedding.*", "head.*")), layers)
    assert frozen == whole - inputs
    assert saved_bytes_per_token(LORA, layers) == whole - 8 - 4 * 32 + 6 * 4 * 4 * 4
    assert saved_bytes_per_token(UPPER, layers) < 0.5 * whole
    pending = pending_gradient_bytes_per_token(LORA, layers)
    assert pending == 6 * 4 * (4 * 4 + 64 + 32 + 192 + 32)


@pytest.mark.parametrize(
    ("model", "choices", "message"),
    [
        (
            UPPER,
            {"pp": 2, "dp": 1, "vocabulary": "one_barrier"},
            "first 4 blocks .* vocabulary = one_barrier",
        ),
        (UPPER, {"pp": 2, "dp": 1, "schedule": "dualpipe"}, "2 copies of a stage"),
    ],
)
def test_what_is_not_lowered_is_refused(model: ModelSpec, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _program(_plan(model, **choices))


def test_a_plan_file_keeps_it(tmp_path: Any) -> None:
    model = replace(LORA, trained=("head.*",), lora_alpha=8.0)
    plan = _plan(model, pp=2)
    plan.save(tmp_path / "plan.toml")
    again = Plan.load(tmp_path / "plan.toml")
    assert again.model == model and again.model.digest == model.digest


def test_flops_of_a_token() -> None:
    matrices = MODEL.num_matmul_parameters
    assert MODEL.train_flops_per_token() == 6 * matrices
    assert LORA.train_flops_per_token() == 4 * matrices + 6 * LORA.num_trained_parameters
    head = replace(MODEL, trained=("head.*",))
    assert head.train_flops_per_token() == 4 * matrices + 2 * MODEL.num_head_parameters
