"""Options that go, change and come, in the words of the user's own file."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop import Given
from meshwright.interop.deepspeed.config import import_deepspeed
from meshwright.interop.export import TARGETS
from meshwright.interop.imported import Option
from meshwright.interop.megatron.arguments import import_megatron
from meshwright.interop.plan_difference import (
    OptionChange,
    difference,
    exported_options,
    plan_options,
    written_options,
)
from meshwright.interop.torchtitan.config import import_torchtitan
from meshwright.specs import Cluster, Plan, Workload, load_model
from tests.interop.todays_file import DEEPSPEED, MEGATRON, TORCHTITAN

CLUSTER = Cluster("2x8xH100")
READ = {"megatron": import_megatron, "torchtitan": import_torchtitan, "deepspeed": import_deepspeed}


def told(target: str, text: str, **changes: Any) -> list[str]:
    """The difference between a file and its plan with other choices."""
    given = Given(cluster="2x8xH100")
    if target == "deepspeed":
        given = Given(load_model("llama-3.1-8b"), "2x8xH100", sequence_length=4096)
    found = READ[target](text, "today", given)
    after = found.plan.changed(**changes)
    before, best = (exported_options(TARGETS[target](plan, CLUSTER)) for plan in (found.plan, after))
    return [str(change) for change in difference(before, best, written_options(found, text))]


def test_the_same_plan_has_no_difference() -> None:
    for target, text in (("megatron", MEGATRON), ("torchtitan", TORCHTITAN), ("deepspeed", DEEPSPEED)):
        assert told(target, text.replace('"train_batch_size": 32', '"train_batch_size": 64')) == []


def test_megatron_options_change_come_and_go() -> None:
    found = told("megatron", MEGATRON, tp=4, dp=4, recompute="none", overlap=("reduce", "gather"))
    assert found == [
        "- --recompute-activations",
        "  --tensor-model-parallel-size 8 -> 4",
        "+ --overlap-grad-reduce",
        "+ --overlap-param-gather",
    ]


def test_an_option_that_was_left_to_its_default_comes() -> None:
    assert "+ --context-parallel-size 2" in told("megatron", MEGATRON, tp=4, cp=2, dp=2)


def test_another_spelling_of_the_file_goes_and_the_usual_one_comes() -> None:
    found = told("megatron", MEGATRON, recompute="full")
    assert "- --recompute-activations" in found and "+ --recompute-granularity full" in found


def test_layers_of_a_chunk_mean_something_else_in_another_pipeline() -> None:
    text = MEGATRON.replace(
        "--pipeline-model-parallel-size 1",
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8",
    )
    found = told(
        "megatron", text, tp=4, pp=4, dp=1, num_chunks=2, layers_per_stage=(4,) * 8, recompute="selective"
    )
    assert "- --num-layers-per-virtual-pipeline-stage 8" in found
    assert "+ --num-virtual-stages-per-pipeline-rank 2" in found


def test_the_queues_of_the_environment_go_with_fsdp() -> None:
    found = told(
        "megatron", MEGATRON, tp=1, dp=16, sequence_parallel=False, sharding="zero3", overlap=("reduce", "gather")
    )  # fmt: skip
    assert "- CUDA_DEVICE_MAX_CONNECTIONS 1" in found and "- --sequence-parallel" in found


def test_torchtitan_keys_stand_as_in_the_file() -> None:
    found = told("torchtitan", TORCHTITAN, tp=1, dp=16, sequence_parallel=False, recompute="none")
    assert not any("shard_degree" in line for line in found)  # -1 is still what is left
    assert "  parallelism.tensor_parallel_degree 4 -> 1" in found
    assert "  activation_checkpoint.mode full -> none" in found
    assert not any("digest" in line or "name" in line for line in found)


def test_a_degree_that_says_the_rest_is_written_out_where_copies_change() -> None:
    found = told("torchtitan", TORCHTITAN, sharding_degree=2)
    assert "  parallelism.data_parallel_shard_degree -1 -> 2" in found
    assert "+ parallelism.data_parallel_replicate_degree 2" in found


def test_older_names_of_torchtitan_are_kept() -> None:
    text = TORCHTITAN.replace("local_batch_size", "batch_size")
    found = told("torchtitan", text, microbatch_size=2)
    assert found == ["  training.batch_size 1 -> 2"]


def test_deepspeed_keys_have_their_tables_before_them() -> None:
    text = DEEPSPEED.replace('"train_batch_size": 32', '"train_batch_size": 64')
    found = told("deepspeed", text, sharding="zero1", overlap=("reduce",), recompute="none")
    assert "  zero_optimization.stage 3 -> 1" in found
    assert "  zero_optimization.overlap_comm false -> true" in found
    assert any(line.startswith("- activation_checkpointing") for line in found)
    assert not any("tensorboard" in line for line in found)


def test_plans_of_our_own_are_compared_by_the_keys_of_their_file() -> None:
    plan = Plan.of(load_model("llama-3.1-8b"), CLUSTER, Workload(64, 4096), dp=16)
    found = difference(plan_options(plan), plan_options(plan.changed(tp=2, dp=8)))
    assert {str(change) for change in found} == {"  dp 16 -> 8", "  tp 1 -> 2"}


@pytest.mark.parametrize(
    ("before", "after", "kind", "text"),
    [
        (None, "4", "added", "+ --name 4"),
        ("4", None, "removed", "- --name 4"),
        ("4", "8", "changed", "  --name 4 -> 8"),
        (None, "", "added", "+ --name"),
    ],
)
def test_a_change_in_one_line(before: str | None, after: str | None, kind: str, text: str) -> None:
    change = OptionChange("--name", before, after)
    assert change.kind == kind and str(change) == text
    assert change.to_dict() == {"option": "--name", "change": kind, "before": before, "after": after}


def test_what_the_file_never_said_is_not_taken_out() -> None:
    assert difference({"--a": "1", "--b": "2"}, {}, [Option("--a", "1")]) == (OptionChange("--a", "1", None),)
