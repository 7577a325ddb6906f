"""What is left for keys and values, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.serving.simulated_case import of_8b as program
from tests.serving.simulated_case import program as of_model

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import replica_memory, token_bytes
from meshwright.specs.error import OutOfMemoryError

LIMITS = Limits(2048, 256, 8192)


def test_blocks_fill_what_weights_and_steps_leave() -> None:
    """An 8B model on one H100: 8.03e9 parameters of 2 bytes; a token has 32 layers of 2 x 8 x 128 numbers."""
    found = replica_memory(program(), LIMITS, 16)
    assert found.weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert found.block_bytes == 16 * 32 * 2 * 8 * 128 * 2
    room = 0.9 * program().cluster.devices[0].memory_bytes - found.weight_bytes - found.step_bytes
    assert found.num_blocks == int(room / found.block_bytes)


def test_what_a_measured_engine_had_left_is_near() -> None:
    """vLLM told 53.29 GiB for keys and values of this model on an H100 of 79.2 GiB (vllm-project/vllm pull request 10511)."""
    found = replica_memory(program(), LIMITS, 16)
    assert found.num_blocks * found.block_bytes == pytest.approx(53.29 * (1 << 30), rel=0.05)


def test_a_token_is_as_large_on_all_devices_together() -> None:
    """Cut by heads and by layers, nothing is kept twice."""
    assert token_bytes(program(2, 2)) == token_bytes(program())


def test_a_model_that_leaves_no_room_is_refused_with_what_takes_it() -> None:
    """A 70B model on one device."""
    with pytest.raises(OutOfMemoryError, match="weights"):
        replica_memory(of_model(model="llama-3.1-70b"), LIMITS, 16)


def test_float8_weights_leave_more_room_for_blocks_of_the_same_size() -> None:
    """A 70B model in one byte a number is 70 GB on two devices together."""
    found = replica_memory(replace(of_model(2, model="llama-3.1-70b"), dtype="float8"), LIMITS, 16)
    assert found.weight_bytes == pytest.approx(70.55e9 / 2, rel=0.01)
    assert found.block_bytes == 16 * 80 * 2 * 4 * 128 * 2


def test_stages_without_attention_keep_nothing_and_count_for_nothing() -> None:
    """Four layers on eight stages: as many blocks as the fullest of the others has room for."""
    found = replica_memory(of_model(1, 8), LIMITS, 16)
    assert found.num_blocks > 0 and found.block_bytes == 16 * 2 * 8 * 128 * 2


def test_groups_that_attend_for_themselves_keep_attention_whole_and_their_own_blocks() -> None:
    """Of 80 blocks of a 70B model, 2 x 8192 x 8192 and 2 x 8192 x 1024 numbers of attention: half of them more on each of two
    devices. A block has all 8 heads of keys, and there are those of both devices."""
    even = of_model(2, model="llama-3.1-70b", devices="1x8xH200")
    own = replace(even, layout=ReplicaLayout(2, attention_dp=2))
    one, two = (replica_memory(each, LIMITS, 16) for each in (even, own))
    attention = 80 * 2 * 8192 * (8192 + 1024) * 2  # bytes
    assert two.weight_bytes - one.weight_bytes == attention / 2
    assert two.block_bytes == 2 * one.block_bytes
    room = 0.9 * own.cluster.devices[0].memory_bytes - two.weight_bytes - two.step_bytes
    assert two.num_blocks == 2 * int(room / two.block_bytes)
    assert token_bytes(own) == token_bytes(even)


def test_a_latent_is_kept_once_where_every_device_attends_for_itself() -> None:
    """All heads share it, so with tensor parallelism every device has it: by data it is on one of them."""
    even = of_model(8, model="deepseek-v3", devices="2x8xH200")
    own = replace(even, layout=ReplicaLayout(8, attention_dp=8))
    assert token_bytes(even) == 8 * token_bytes(own)
