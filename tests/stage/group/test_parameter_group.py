"""Parameter groups: the devices of a mesh hold every parameter, gradient and optimizer state as often as ZeRO says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lowering.plans import DENSE, EXPERTS, TIED, lowered, plan, rows_named
from tests.specs.configs import DEEPSEEK_V2, GPT2

from meshwright.ir.table import Exchange
from meshwright.specs import model_from_config
from meshwright.stage.group.parameter_group import (
    TIED as TIED_GROUP,
)
from meshwright.stage.group.parameter_group import (
    group_bytes,
    held_groups,
    reduction_algorithms,
)
from meshwright.stage.group.value_size import gradient_bytes, optimizer_bytes, parameter_bytes
from meshwright.stage.piece import num_pieces, piece_layers
from meshwright.stage.saved.saved import num_stage_expert_parameters

MODELS = {
    "dense": DENSE,
    "tied": TIED,
    "experts": EXPERTS,
    "gpt2": model_from_config({**GPT2, "n_layer": 4}),
    "deepseek": model_from_config(DEEPSEEK_V2),
}


def groups_of(chosen):
    return held_groups(chosen, piece_layers(chosen.stages(), num_pieces(chosen)))


def num_held(chosen):
    """Parameters of the whole model, from what one device of each stage holds."""
    total = 0
    for held in groups_of(chosen):
        copies = chosen.ep if held.group.name.endswith("experts") else 1
        total += held.num_parameters * chosen.tp * copies
    return total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"pp": 2},
        {"pp": 4, "dp": 2, "sharding": "zero1"},
        {"dp": 4, "sharding": "zero3"},
        {"pp": 2, "schedule": "interleaved_1f1b"},
        {"pp": 2, "dp": 2, "cp": 2, "sharding": "zero3", "sharding_degree": 2},
    ],
    ids=str,
)
def test_every_parameter_is_held_once(name, choices):
    assert num_held(plan(MODELS[name], **choices)) == MODELS[name].num_parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("refine", [False, True])
def test_a_split_vocabulary_is_held_once(name, refine):
    choices = {"dp": 2, "sharding": "zero3"} if refine else {}
    for pp in (2, 3):
        chosen = plan(MODELS[name], pp=pp, vocabulary="one_barrier", **choices)
        tables = 1 if MODELS[name].has_tied_embeddings else 2
        padding = -MODELS[name].vocabulary_size % pp * tables * MODELS[name].hidden_size
        assert num_held(chosen) == MODELS[name].num_parameters + padding, "as many rows on every device"


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_experts_are_divided_and_the_rest_is_not(ep):
    chosen = plan(EXPERTS, dp=8, ep=ep)
    dense, experts = groups_of(chosen.changed(overlap=()))
    (layers,) = chosen.stages()
    whole = num_stage_expert_parameters(EXPERTS, layers)
    assert experts.num_parameters * ep == whole
    assert dense.num_parameters == EXPERTS.num_parameters - whole
    replicated = {2: ("dp",), 4: ("dp",), 8: ()}[ep]
    assert experts.group.replicated == replicated and "dp" in dense.group.replicated
    program = lowered(chosen, None)
    reduced = {
        program.tables.groups[program.tables.groups_of_stage[view.stage][view.part]].name
        for view in rows_named(program, "REDUCE_GRAD")
    }
    assert reduced == ({"stage0"} if ep == 8 else {"stage0", "stage0.experts"})


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_divides_all_but_norms_and_routers(tp):
    norms = (2 * DENSE.num_layers + 1) * DENSE.hidden_size
    assert num_held(plan(DENSE, tp=tp, pp=2)) == DENSE.num_parameters + (tp - 1) * norms
    whole = norms + EXPERTS.num_layers * (2 * EXPERTS.head_dim + EXPERTS.num_experts * EXPERTS.hidden_size)
    assert num_held(plan(EXPERTS, tp=tp, pp=2)) == EXPERTS.num_parameters + (tp - 1) * whole


def of_device(chosen, device, by_group):
    """Sum over the groups that a rank of the pipeline holds, of a plan whose stages go round the ranks."""
    pieces = num_pieces(chosen)
    stage_of_piece = [stage for stage, count in enumerate(pieces) for _ in range(count)]
    return sum(
        num_bytes
        for held, num_bytes in zip(groups_of(chosen), by_group, strict=True)
        if device in {stage_of_piece[piece] % chosen.pp for piece in held.group.stages}
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "choices",
    [
        {"dp": 2, "sharding": "zero2"},
        {"pp": 2, "dp": 2, "sharding": "zero3"},
        {"pp": 2, "vocabulary": "one_barrier"},
        {"pp": 2, "num_chunks": 2, "schedule": "interleaved_1f1b", "vocabulary": "two_barriers"},
        {"pp": 2, "num_chunks": 2, "schedule": "interleaved_1f1b", "dp": 4, "sharding": "zero1"},
        {"dp": 4, "cp": 2, "sharding": "zero1", "sharding_degree": 4, "reduction_dtype": "bfloat16"},
    ],
    ids=str,
)
def test_groups_hold_what_the_estimate_of_memory_counts(name, choices):
    agree_with_the_estimate(plan(MODELS[name], **choices))


@pytest.mark.parametrize("model", [DENSE, EXPERTS, TIED], ids=["dense", "experts", "tied"])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize(
    "degrees", [{"tp": 2, "pp": 2}, {"tp": 2, "dp": 4, "sequence_parallel": True}], ids=str
)
def test_groups_of_tensor_parallel_devices_agree_too(model, sharding, degrees):
    agree_with_the_estimate(plan(model, sharding=sharding, **degrees))


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
@pytest.mark.parametrize("degree", [0, 2, 4])
def test_groups_of_experts_agree_too(ep, sharding, degree):
    given = {"sharding_degree": degree} if sharding != "none" else {}
    agree_with_the_estimate(plan(EXPERTS, dp=8, ep=ep, sharding=sharding, **given))


def agree_with_the_estimate(chosen):
    kinds = {
        "parameter": parameter_bytes,
        "weight_gradient": gradient_bytes,
        "optimizer_state": optimizer_bytes,
    }
    sizes = {value.kind: value.by_index for value in group_bytes(chosen, groups_of(chosen))}
    for device in range(chosen.pp):
        own = [layers for stage, layers in enumerate(chosen.stages()) if stage % chosen.pp == device]
        for kind, estimate in kinds.items():
            expected = sum(estimate(chosen, layers) for layers in own)
            assert of_device(chosen, device, sizes[kind]) == pytest.approx(expected, rel=1e-12), kind


def test_a_tied_table_is_one_group_of_its_two_ends():
    (table,) = [held.group for held in groups_of(plan(TIED, pp=2, dp=2)) if held.group.name == TIED_GROUP]
    assert table.stages == (0, len(groups_of(plan(TIED, pp=2, dp=2))) - 2)
    assert table.bytes == 2 * TIED.vocabulary_size * TIED.hidden_size
    whole = plan(TIED).changed(overlap=())
    assert [held.group.name for held in groups_of(whole)] == ["stage0"]


FLOAT32, HALF = 4, 2


@pytest.mark.parametrize(
    ("sharding", "parameter", "gradient", "state"),
    [("none", 1, 1, 1), ("zero1", 1, 1, 4), ("zero2", 1, 4, 4)],
)
@pytest.mark.parametrize(
    ("master", "reduction", "state_bytes", "gradient_bytes"),
    [("float32", "float32", 12, 4), ("float32", "", 12, 2), ("", "", 4, 2)],
)
def test_bytes_of_a_device_are_those_of_zero(
    sharding, parameter, gradient, state, master, reduction, state_bytes, gradient_bytes
):
    """Rajbhandari et al. 2020, figure 1: 2 + 2 + K bytes a parameter, K = 12 with a copy and two moments in float32."""
    chosen = plan(dp=4, sharding=sharding, overlap=(), master_dtype=master, reduction_dtype=reduction)
    held = groups_of(chosen)
    sizes = {value.kind: sum(value.by_index) for value in group_bytes(chosen, held)}
    n = DENSE.num_parameters
    assert sizes["parameter"] == pytest.approx(HALF * n / parameter)
    assert sizes["gathered_parameter"] == HALF * n
    assert sizes["weight_gradient"] == pytest.approx(gradient_bytes * n / gradient)
    assert sizes["optimizer_state"] == pytest.approx(state_bytes * n / state)


@pytest.mark.parametrize("master", ["float32", ""])
def test_a_part_of_fully_sharded_parameters_is_the_master_copy(master):
    """PyTorch's FSDP2: 4 + 4 + 8 bytes a parameter, or 2 + 2 + 4 without a wider format; a gathered one has 2."""
    chosen = plan(dp=4, sharding="zero3", overlap=(), master_dtype=master, reduction_dtype="")
    sizes = {value.kind: sum(value.by_index) for value in group_bytes(chosen, groups_of(chosen))}
    each, n = FLOAT32 if master else HALF, DENSE.num_parameters
    assert sizes["gathered_parameter"] == HALF * n
    assert sizes["parameter"] == sizes["weight_gradient"] == pytest.approx(each * n / 4)
    assert sizes["optimizer_state"] == pytest.approx(2 * each * n / 4)


def test_experts_share_state_among_those_that_have_the_same():
    chosen = plan(EXPERTS, dp=8, ep=2, sharding="zero1")
    dense, experts = groups_of(chosen.changed(overlap=()))
    assert dense.num_shards == 8 and experts.num_shards == 4
    assert experts.shards == ("dp",)


@pytest.mark.parametrize(
    ("choices", "algorithm"),
    [
        ({"sharding": "none"}, "ring"),
        ({"sharding": "zero1"}, "reduce_scatter"),
        ({"sharding": "zero1", "sharding_degree": 2}, "all_reduce.two_level"),
        ({"sharding": "zero3", "sharding_degree": 1}, "ring"),
    ],
    ids=str,
)
def test_gradients_are_scattered_where_all_copies_share_state(choices, algorithm):
    chosen = plan(dp=4, **choices)
    assert set(reduction_algorithms(groups_of(chosen), chosen).values()) == {algorithm}
    program = lowered(chosen)
    axes = tuple(axis.name for axis in program.axes[1:])
    found = {replace_size(view.exchange) for view in rows_named(program, "REDUCE_GRAD")}
    assert found == {Exchange(axes, algorithm=algorithm)}


def replace_size(exchange: Exchange) -> Exchange:
    return exchange._replace(size="")


def test_a_plan_without_master_copy_has_moments_in_its_own_format():
    chosen = replace(plan(), dtype="float32", master_dtype="", reduction_dtype="")
    sizes = {value.kind: sum(value.by_index) for value in group_bytes(chosen, groups_of(chosen))}
    assert sizes["optimizer_state"] == 2 * FLOAT32 * DENSE.num_parameters
