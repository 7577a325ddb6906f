"""Plans: derived numbers, contradictions, devices on the mesh."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import Cluster, ModelSpec, Plan, PlanError, Workload, load_model
from meshwright.specs.plan.plan import PassOption
from meshwright.stage.saved.saved import num_stage_parameters

MODEL = ModelSpec.decoder(6, 64, 4)
CLUSTER = Cluster("8xcpu")


def plan(**choices):
    return Plan.of(MODEL, CLUSTER, Workload(32, 128), **{"pp": 4, **choices})


def test_what_is_left_open_is_filled_in():
    found = plan()
    assert (found.dp, found.layers_per_stage, found.num_microbatches) == (2, (2, 2, 1, 1), 16)
    assert found.model_digest == MODEL.digest and found.num_devices == 8
    assert found.tokens_per_microbatch == 128


def test_interleaved_gets_two_chunks():
    found = plan(schedule="interleaved_1f1b", pp=2)
    assert found.num_stages == 4 and found.layers_per_stage == (2, 2, 1, 1)
    assert [stage.num_blocks for stage in found.stages()] == [2, 2, 1, 1]


def test_a_pass_may_be_its_name_with_options():
    option = PassOption("clip_gradients", {"max_norm": 0.5})
    for said in ("clip_gradients(max_norm=0.5)", ("clip_gradients(max_norm=0.5)",), (option,)):
        assert plan(passes=said).passes == (option,)
    with pytest.raises(PlanError, match="cannot be read"):
        plan(passes=("clip_gradients(0.5)",))


def test_uneven_stages_are_accepted_split_or_given():
    """Llama 3.1 405B: 126 blocks on 8 devices of 8 chunks; Megatron counts embedding and head as two more."""
    model, cluster = load_model("llama-3.1-405b"), Cluster("64xH100")
    choices = {"pp": 8, "tp": 8, "num_chunks": 8, "schedule": "interleaved_1f1b"}
    split = Plan.of(model, cluster, Workload(64, 8192), **choices)
    assert split.num_stages == 64 and sorted(split.layers_per_stage) == [1, 1, *[2] * 62]
    given_counts = (1, *[2] * 62, 1)
    given_plan = Plan.of(model, cluster, Workload(64, 8192), layers_per_stage=given_counts, **choices)
    assert given_plan.layers_per_stage == given_counts
    held = sum(num_stage_parameters(model, stage) for stage in given_plan.stages())
    assert held == model.num_parameters


def test_world_size_message_prints_the_whole_product():
    with pytest.raises(PlanError, match=r"pp\(4\) x dp\(3\) x cp\(1\) x tp\(1\) = 12, but .* 8 devices"):
        plan(dp=3)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"layers_per_stage": (2, 2, 1)}, "4 counts"),
        ({"layers_per_stage": (2, 2, 1, 0)}, "no layer is dropped"),
        ({"microbatch_size": 5}, "global_batch 32 is not a multiple"),
        ({"ep": 3}, "expert degree"),
        ({"pp": 0}, "whole number from 1"),
        ({"recompute": "some"}, "none or selective or selective_op or full"),
        ({"recompute": "full", "recompute_blocks": (1, 1, 1)}, "4 counts from 0"),
        ({"recompute": "full", "recompute_blocks": (1, 1, 2, 1)}, "to the blocks of each stage"),
        ({"recompute": "full", "recompute_blocks": (-1, 1, 1, 1)}, "from 0 to the blocks"),
        ({"recompute": "full", "recompute_blocks": (1.0, 1, 1, 1)}, "from 0 to the blocks"),
        ({"recompute": "full", "recompute_blocks": (0, 0, 0, 0)}, "leave recompute_blocks out"),
        ({"recompute_blocks": (1, 1, 1, 1)}, 'with recompute = "none"'),
        ({"sharding": "zero9"}, "none"),
        ({"dtype": "float12"}, "float32"),
        ({"mesh_order": ("pp", "dp")}, "each of pp, dp, cp, tp once"),
        ({"device_order": (0, 0, 1, 2, 3, 4, 5, 6)}, "permutation"),
        ({"stages": 4}, "no field 'stages'"),
        ({"sharding": "zero3", "sharding_degree": 3}, "dp x cp is 2"),
        ({"sharding_degree": -1}, "sharding_degree is -1"),
        ({"sharding": "zero3", "sharding_degree": 2.0}, "sharding_degree is 2.0"),
        ({"sequence_parallel": True}, "turn it off"),
        ({"float8": "e4m3"}, "tensorwise or rowwise or blockwise or mxfp8"),
        ({"vocabulary": "start"}, "one_barrier or two_barriers or interlaced"),
        ({"attention": "fast"}, "flash or unfused"),
        ({"gathered": "never"}, "again or kept"),
        ({"context": "spiral"}, "ring or all_gather or ulysses"),
        ({"token_layout": "spiral"}, "'' or contiguous or zigzag or stripe"),
        ({"ulysses": 2}, "a number below cp that divides it"),
        ({"ulysses": 0}, "a whole number from 1"),
        ({"ulysses": 2, "context": "all_gather"}, "or context ring"),
        ({"reduction_dtype": "fp32"}, "reduction_dtype is 'fp32'"),
        ({"master_dtype": "fp32"}, "master_dtype is 'fp32'"),
        ({"pp": 1, "dp": 4, "tp": 2, "etp": 3}, "expert degrees whose product divides 8"),
        ({"pp": 1, "dp": 4, "tp": 2, "ep": 8, "etp": 2}, "expert degrees whose product divides 8"),
        ({"pp": 1, "dp": 4, "tp": 2, "etp": -1}, "a whole number from 1, or 0"),
        ({"overlap": ("everything",)}, "each of reduce, gather, tp, ep at most once"),
        ({"overlap": ("reduce", "reduce")}, "at most once"),
    ],
)
def test_contradictions_are_refused(choices, said):
    with pytest.raises(PlanError) as caught:
        plan(**choices)
    assert said in str(caught.value)


def test_blocks_that_are_recomputed_are_those_said_or_all():
    assert plan().num_recomputed_blocks == (0, 0, 0, 0)
    assert plan(recompute="selective").num_recomputed_blocks == (2, 2, 1, 1)
    assert plan(recompute="full", recompute_blocks=(1, 2, 0, 1)).num_recomputed_blocks == (1, 2, 0, 1)


@given(st.permutations(["pp", "dp", "cp", "tp"]), st.sampled_from([(2, 2, 2), (4, 2, 1), (1, 2, 4)]))
def test_the_mesh_covers_every_device_once(order, degrees):
    pp, dp, tp = degrees
    found = plan(pp=pp, dp=dp, tp=tp, mesh_order=tuple(order))
    coordinates = [(p, d, t) for p in range(pp) for d in range(dp) for t in range(tp)]
    devices = [found.device_at(pp=p, dp=d, tp=t) for p, d, t in coordinates]
    assert sorted(devices) == list(range(8))


def test_the_innermost_axis_is_next_to_itself_and_an_order_moves_devices():
    found = plan(pp=2, dp=2, tp=2)
    assert [found.device_at(tp=1), found.device_at(dp=1), found.device_at(pp=1)] == [1, 2, 4]
    assert found.changed(device_order=tuple(range(7, -1, -1))).device_at(pp=1) == 3
    with pytest.raises(PlanError, match="pp=2 is not on the mesh"):
        found.device_at(pp=2)


@pytest.mark.parametrize(
    ("choices", "shared", "expert_tp"),
    [
        ({}, 1, 1),
        ({"sharding": "zero1"}, 2, 1),
        ({"sharding": "zero1", "sharding_degree": 1}, 1, 1),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "sharding": "zero3"}, 4, 2),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "ep": 4}, 1, 2),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "ep": 8}, 1, 1),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 1}, 1, 1),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 2}, 1, 2),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 2, "ep": 2, "etp": 1}, 1, 1),
    ],
    ids=str,
)
def test_degrees_that_follow_from_others(choices, shared, expert_tp):
    found = plan(**choices)
    assert (found.sharing_degree, found.expert_tp) == (shared, expert_tp)
    assert plan(reduction_dtype="float32", dtype="bfloat16").gradient_dtype == "float32"
    assert plan(dtype="bfloat16").gradient_dtype == "bfloat16"


def test_without_the_rooms_above_a_plan_says_what_to_import(monkeypatch, tmp_path):
    monkeypatch.setattr(Plan, "verbs", None)
    said = plan(schedule="interleaved_1f1b", num_chunks=2, pp=2)  # all that is asked for is said
    assert (plan().num_chunks, said.num_chunks) == (1, 2)
    for ask in (
        lambda: said.export("megatron"),
        lambda: Plan.load(tmp_path / "job.sh", format="megatron"),
        lambda: plan(schedule="interleaved_1f1b", pp=2),
    ):
        with pytest.raises(PlanError) as caught:
            ask()
        assert caught.value.next == "import meshwright.api"
