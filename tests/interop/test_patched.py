"""Changes are written into the file that a user has: what is not changed stays byte for byte, what is unclear is refused."""

from __future__ import annotations

import json

import pytest

from meshwright.interop.patched import PatchError, patched
from meshwright.interop.plan_difference import QUEUES, OptionChange
from tests.interop.todays_file import DEEPSPEED, MEGATRON, TORCHTITAN

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8  # --tensor-model-parallel-size of old
ARGS=(
    --tensor-model-parallel-size ${TP}
    --micro_batch_size=1
    --sequence-parallel
    --name "a name"   # not touched
)
torchrun pretrain_gpt.py "${ARGS[@]}" --recompute-granularity full --recompute-method uniform \\
    --pipeline-model-parallel-size 2 \\
    --lr 3e-4
"""


def changed(name: str, before: str | None, after: str | None) -> OptionChange:
    return OptionChange(name, before, after)


def test_a_script_keeps_every_byte_that_is_not_changed() -> None:
    text = patched(
        SCRIPT,
        [
            changed("--sequence-parallel", "", None),
            changed("--recompute-granularity", "full", None),
            changed(QUEUES, "1", None),
            changed("--tensor-model-parallel-size", "8", "2"),
            changed("--micro-batch-size", "1", "4"),
            changed("--overlap-grad-reduce", None, ""),
        ],
        "megatron",
        "",
    )
    assert text == (
        SCRIPT.replace("    --sequence-parallel\n", "")
        .replace(" --recompute-granularity full", "")
        .replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
        .replace("-size ${TP}", "-size 2")
        .replace("--micro_batch_size=1\n", "--micro_batch_size=4\n    --overlap-grad-reduce\n")
    )


def test_a_line_behind_a_backslash_goes_whole_and_comes_with_one() -> None:
    text = patched(SCRIPT, [changed("--pipeline-model-parallel-size", "2", None)], "megatron", "")
    assert text == SCRIPT.replace("    --pipeline-model-parallel-size 2 \\\n", "")
    long = "torchrun a.py \\\n  --global-batch-size 8 \\\n  --bf16\n"
    text = patched(long, [changed("--use-megatron-fsdp", None, "")], "megatron", "")
    assert text == "torchrun a.py \\\n  --global-batch-size 8 \\\n  --use-megatron-fsdp \\\n  --bf16\n"


@pytest.mark.parametrize(
    "text", [SCRIPT + "# again\nA=(--micro-batch-size 2)\n", SCRIPT.replace("--micro", "--m")]
)
def test_an_option_that_stands_twice_or_nowhere_is_not_guessed_at(text: str) -> None:
    with pytest.raises(PatchError, match="places"):
        patched(text, [changed("--micro-batch-size", "1", "2")], "megatron", "")


def test_tables_keep_their_comments_and_order() -> None:
    today = TORCHTITAN.replace("local_batch_size = 1", "local_batch_size = 1  # fits")
    after = '[training]\nlocal_batch_size = 2\n[parallelism]\ntensor_parallel_degree = 1\nx = "full"\n[float8]\na = true\n'
    changes = [
        changed("activation_checkpoint.mode", "full", None),
        changed("training.local_batch_size", "1", "2"),
        changed("parallelism.x", None, "full"),
        changed("float8.a", None, "true"),
    ]
    assert patched(today, changes, "torchtitan", after) == (
        today.replace('mode = "full"\n', "")
        .replace("local_batch_size = 1  # fits", "local_batch_size = 2  # fits")
        .replace("tensor_parallel_degree = 4\n", 'tensor_parallel_degree = 4\nx = "full"\n')
        + "\n[float8]\na = true\n"
    )


def test_an_object_keeps_its_order_and_indent() -> None:
    after = json.dumps({"zero_optimization": {"stage": 1}})
    text = patched(DEEPSPEED, [changed("zero_optimization.stage", "3", "1")], "deepspeed", after)
    assert text == DEEPSPEED.replace('"stage": 3', '"stage": 1')


def test_a_file_without_changes_is_itself() -> None:
    assert patched(MEGATRON, [], "megatron", "") == MEGATRON
