"""Bytes that a device holds all the time, against published tables and the model's own parameter list."""

import pytest
from tests.specs.configs import DEEPSEEK_V3, LLAMA, NEW_FAMILIES, QWEN2, QWEN2_MOE

from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model, model_from_config
from meshwright.stage.group.value_size import (
    expert_sharing_degree,
    gradient_bytes,
    num_local_parameters,
    optimizer_bytes,
    parameter_bytes,
)
from meshwright.stage.saved.saved import num_stage_parameters

DENSE = ModelSpec.decoder(4, 64, 8, num_kv_heads=4, vocabulary_size=512)


def plan_of(model=DENSE, num_devices=1, **choices):
    cluster = Cluster(f"{num_devices}xH100" if num_devices < 9 else f"{num_devices // 8}x8xH100")
    return Plan.of(model, cluster, Workload(choices.pop("batch", 64), 32), **choices)


def total(plan):
    layers = plan.stages()[0]
    return [size(plan, layers) for size in (parameter_bytes, gradient_bytes, optimizer_bytes)]


@pytest.mark.parametrize("config", [LLAMA, QWEN2, *NEW_FAMILIES], ids=lambda config: config["model_type"])
def test_one_device_holds_the_stage(config):
    model = model_from_config(config)
    plan = plan_of(model)
    assert sum(num_local_parameters(plan, plan.stages()[0])) == num_stage_parameters(model, plan.stages()[0])


@pytest.mark.parametrize(
    ("sharding", "per_parameter"),
    [("none", 16), ("zero1", 4 + 12 / 64), ("zero2", 2 + 14 / 64), ("zero3", 16 / 64)],
)
def test_the_paper_of_zero(sharding, per_parameter):
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 16-bit parameters and gradients, 12 bytes of state, 64 devices."""
    plan = plan_of(num_devices=64, sharding=sharding, dtype="float16", master_dtype="float32")
    if sharding == "zero3":  # the part of the parameters is the master copy, its gradient as wide: 4 + 4 + 8
        assert total(plan) == [4 * DENSE.num_parameters / 64] * 2 + [8 * DENSE.num_parameters / 64]
    assert sum(total(plan)) == pytest.approx(per_parameter * DENSE.num_parameters)


def test_formats_of_gradients_and_of_a_state_without_a_copy():
    n = DENSE.num_parameters
    assert total(plan_of(dtype="bfloat16", master_dtype="float32", reduction_dtype="float32")) == [
        2 * n,
        4 * n,
        12 * n,
    ]
    assert total(plan_of()) == [4 * n, 4 * n, 8 * n]


def test_a_sharding_group_smaller_than_all():
    plan = plan_of(
        num_devices=64, sharding="zero1", sharding_degree=8, dtype="bfloat16", master_dtype="float32"
    )
    assert total(plan)[2] == 12 * DENSE.num_parameters / 8


def test_tensor_parallelism_leaves_norms_whole_and_divides_the_rest():
    """hidden 64, 8 heads and 4 key-value heads of 8, inner 176, vocabulary 512, by hand for 4 devices."""
    plan = plan_of(num_devices=4, tp=4)
    block = (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 176) // 4 + 2 * 64
    assert num_local_parameters(plan, plan.stages()[0]) == (4 * block + 2 * 512 * 64 // 4 + 64, 0)


def test_biases_of_columns_are_divided_and_routers_are_not():
    model = model_from_config(QWEN2)
    one, two = (plan_of(model, t, tp=t) for t in (1, 2))
    counts = [num_local_parameters(p, p.stages()[0]).dense for p in (one, two)]
    norms = (2 * model.num_layers + 1) * model.hidden_size
    assert 2 * counts[1] - counts[0] == norms  # with an even number of everything else
    experts = model_from_config(QWEN2_MOE)
    one, two = (plan_of(experts, t, tp=t) for t in (1, 2))
    counts = [num_local_parameters(p, p.stages()[0]).dense for p in (one, two)]
    routers = experts.num_layers * (experts.num_experts + experts.has_shared_gate) * experts.hidden_size
    norms = (2 * experts.num_layers + 1) * experts.hidden_size
    assert 2 * counts[1] - counts[0] == norms + routers


def test_experts_are_divided_and_shared_by_their_own_groups():
    model = model_from_config(DEEPSEEK_V3)
    whole = plan_of(model, 8)
    experts = num_local_parameters(whole, whole.stages()[0]).expert
    plan = plan_of(model, 8, ep=2, sharding="zero1", dtype="bfloat16", master_dtype="float32")
    dense, local = num_local_parameters(plan, plan.stages()[0])
    assert local == experts / 2
    assert expert_sharing_degree(plan, plan.sharing_degree) == 4
    assert total(plan)[2] == 12 * (dense / 8 + local / 4)


def test_experts_over_a_tensor_parallel_group():
    model = load_model("mixtral-8x7b")
    divided = plan_of(model, 8, tp=2, ep=4, sharding="zero1")  # 4 divides dp 4: experts have tp, too
    assert (divided.expert_tp, expert_sharing_degree(divided, divided.sharing_degree)) == (2, 1)
    whole = plan_of(model, 8, tp=2, ep=8, sharding="zero1")
    assert (whole.expert_tp, expert_sharing_degree(whole, whole.sharing_degree)) == (1, 1)
    counts = [num_local_parameters(p, p.stages()[0]).expert for p in (divided, whole)]
    assert counts[0] == counts[1] == sum(num_local_parameters(plan_of(model), whole.stages()[0])[1:]) / 8


@pytest.mark.parametrize("vocabulary", ["one_barrier", "two_barriers", "interlaced"])
def test_a_split_vocabulary_is_on_all_stages_alike(vocabulary):
    plan = plan_of(num_devices=4, pp=4, vocabulary=vocabulary)
    counts = [num_local_parameters(plan, layers).dense for layers in plan.stages()]
    table = 512 * 64 // 4
    assert counts[1] == DENSE.num_block_parameters() + 2 * table
    assert counts == [counts[1]] * 3 + [counts[1] + 64]
    assert sum(counts) == DENSE.num_parameters


def test_a_split_vocabulary_is_on_the_first_stage_of_every_device():
    plan = plan_of(num_devices=2, pp=2, num_chunks=2, schedule="interleaved_1f1b", vocabulary="one_barrier")
    counts = [num_local_parameters(plan, layers).dense for layers in plan.stages()]
    block, table = DENSE.num_block_parameters(), 512 * 64 // 2
    assert counts == [block + 2 * table] * 2 + [block, block + 64]


def test_a_tied_table_is_on_both_ends_and_once_where_they_meet():
    tied = ModelSpec.decoder(4, 64, 8, vocabulary_size=512, has_tied_embeddings=True)
    apart = plan_of(tied, 2, pp=2)
    counts = [num_local_parameters(apart, layers).dense for layers in apart.stages()]
    assert sum(counts) == tied.num_parameters + 512 * 64
    assert num_local_parameters(plan_of(tied), plan_of(tied).stages()[0]).dense == tied.num_parameters
