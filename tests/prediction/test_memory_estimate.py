"""Peaks of memory: microbatches in flight against closed forms, bytes by hand, moments, and what bounds what."""

import pytest

from meshwright.catalog import find_schedule
from meshwright.prediction import memory_estimate
from meshwright.prediction.memory_allocator import FRAGMENTATION, MAX_FRAGMENTATION, WORST_FRAGMENTATION
from meshwright.prediction.memory_buffer import (
    exchange_bytes,
    freed_logits_bytes,
    late_bytes,
    loss_bytes,
    most_context_bytes,
)
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules.in_flight import in_flight
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model
from meshwright.specs.dtype import dtype_bytes
from meshwright.stage.work import stage_works

LLAMA = load_model("llama-3.1-8b")
SMALL = ModelSpec.decoder(8, 256, 8, vocabulary_size=1024)
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def estimated(model=LLAMA, devices="8xH100", sequence_length=4096, batch=64, **choices):
    cluster = Cluster(devices)
    plan = Plan.of(model, cluster, Workload(batch, sequence_length), **{**MIXED, **choices})
    return plan, estimate_memory(plan, cluster, find_schedule(plan.schedule))


def held(device):
    return dict(device.holders)


def test_bytes_of_a_dense_model_on_one_device_by_hand():
    plan, memory = estimated(devices="1xB200", sequence_length=8192, batch=4)
    n, tokens = LLAMA.num_parameters, 8192
    block = 2 * (6 * 4096 + 2048 + 3 * 14336) + 4 * 32 + 2 * 2
    activations = tokens * (32 * block + 8 + 2 * (2 * 4096 + 1) + 8)
    assert memory.fullest.moment == "loss"
    assert held(memory.fullest) == {
        "parameters": 2 * n, "gradients": 4 * n, "optimizer state": 12 * n,
        "activations of microbatches in flight": activations,
        "logits and their gradient": tokens * 128256 * (2 + 4 + 4),
    }  # fmt: skip
    assert [size for _, size in memory.holders] == sorted((size for _, size in memory.holders), reverse=True)
    assert memory.allocated_bytes == sum(size for _, size in memory.holders)
    passing = activations + tokens * 128256 * 10
    assert memory.fullest.lasting_bytes == 18 * n  # it fills its segments; what comes and goes does not
    assert memory.reserved_bytes == pytest.approx(18 * n + FRAGMENTATION * passing)


def test_state_on_the_host_is_on_the_device_for_the_step_only():
    """12 bytes a parameter, of which the copy's 4 stay; at worst the moments of the last step are still on their way."""
    n, offload = LLAMA.num_parameters, {"passes": ("offload_optimizer",)}
    (_, kept), (_, moved) = (estimated(sharding="zero1", **choices) for choices in ({}, offload))
    assert moved.fullest.moment == kept.fullest.moment == "loss"
    assert held(moved.fullest) == {**held(kept.fullest), "optimizer state": 4 * n / 8}
    assert (kept.fullest.host_bytes, moved.fullest.host_bytes) == (0, 8 * n / 8)
    assert moved.reserved_bytes == pytest.approx(kept.reserved_bytes - 8 * n / 8)
    assert moved.upper_bytes == pytest.approx(kept.upper_bytes)

    short = {"sequence_length": 64, "batch": 8, "sharding": "none"}
    _, full = estimated(**short, **offload)
    assert full.fullest.moment == "optimizer step"
    assert held(full.fullest) == {
        "parameters": 2 * n, "gradients": 4 * n, "optimizer state": 4 * n, "optimizer state from the host": 8 * n,
    }  # fmt: skip
    assert full.allocated_bytes <= estimated(**short)[1].allocated_bytes


def test_an_unfused_loss_keeps_three_and_leaves_one_behind():
    choices = {
        "devices": "8xH100",
        "sharding": "zero3",
        "recompute": "full",
        "batch": 8,
        "sequence_length": 32768,
    }
    plan, memory = estimated(software="compiled", **choices)
    logits = 32768 * 128256
    device = memory.fullest
    assert device.moment == "loss" and held(device)["logits and their gradient"] == 12 * logits
    passing = device.allocated_bytes - device.lasting_bytes + 2 * logits
    assert device.reserved_bytes == pytest.approx(device.lasting_bytes + FRAGMENTATION * passing)
    assert (
        estimated(software="", **choices)[1].allocated_bytes == device.allocated_bytes
    )  # sharded: PyTorch's loss
    assert estimated(software="fused", **choices)[1].allocated_bytes == device.allocated_bytes - 2 * logits
    assert "gradients" not in held(device)  # one microbatch: none is there before its backward
    _, more = estimated(software="compiled", **{**choices, "batch": 16})
    assert held(more.fullest)["gradients"] == 4 * LLAMA.num_parameters / 8


def test_a_loss_in_place_has_its_logits_only():
    sizes = {}
    for software in ("fused", "eager, fused loss", "eager"):
        plan, _ = estimated(software=software, sequence_length=8192)
        last = stage_works(plan, plan.stages())[-1]
        sizes[software] = (loss_bytes(last), freed_logits_bytes(last))
    logits = 8192 * 128256
    assert sizes == {
        "fused": (10 * logits, 0),
        "eager, fused loss": (2 * logits, 0),
        "eager": (12 * logits, 2 * logits),
    }


def test_every_stage_of_a_pipeline_has_its_own_microbatches():
    plan, memory = estimated(SMALL, "4xH100", pp=4, batch=16)
    kept = [held(device)["activations of microbatches in flight"] for device in memory.devices]
    assert kept[1] / kept[2] == pytest.approx(3 / 2)
    assert kept[0] > kept[1] > kept[2]
    _, fewer = estimated(SMALL, "4xH100", pp=4, batch=2)
    two = held(fewer.devices[1])["activations of microbatches in flight"]
    assert kept[1] == pytest.approx(3 / 2 * two)


def test_a_split_vocabulary_keeps_its_softmax_until_the_next_microbatchs() -> None:
    """T of a microbatch stands behind S of the next: on every device 128 rows of 1024 for its tokens in float32, what the
    last stage gave, and with one barrier two halves of its gradient; interlaced nothing."""
    what = "softmax of the split vocabulary"
    for vocabulary, boundaries in (("one_barrier", 3), ("two_barriers", 1)):
        plan, found = estimated(SMALL, pp=8, vocabulary=vocabulary)
        tokens = plan.tokens_per_microbatch
        size = tokens * (4 * 1024 / 8 + boundaries * 256 * dtype_bytes(plan.dtype))
        assert {dict(each.holders)[what] for each in found.devices} == {size}
    for vocabulary in ("ends", "interlaced"):
        assert all(
            what not in dict(each.holders)
            for each in estimated(SMALL, pp=8, vocabulary=vocabulary)[1].devices
        )


@pytest.mark.parametrize(
    ("vocabulary", "microbatches"), [("one_barrier", 9), ("two_barriers", 10), ("interlaced", 12)]
)
def test_a_split_vocabulary_holds_more_microbatches(vocabulary, microbatches):
    """p + 1, p + 2 and 1.5 p on the first stage (Yeung et al., arXiv 2411.05288)."""
    ends, split = (
        estimated(SMALL, pp=8, vocabulary=each)[1].devices[0].holders for each in ("ends", vocabulary)
    )
    name = "activations of microbatches in flight"
    assert dict(split)[name] == pytest.approx(dict(ends)[name] * microbatches / 8)
    assert dict(split)["parameters"] != dict(ends)["parameters"]


def test_recompute_in_order_of_what_it_keeps():
    sizes = {}
    for recompute in ("none", "selective", "selective_op", "full"):
        _, memory = estimated(attention="unfused", recompute=recompute, sharding="zero1")
        sizes[recompute] = memory.allocated_bytes
    assert sizes["none"] > sizes["selective"] > sizes["selective_op"] > sizes["full"]


def test_full_recompute_adds_one_block_while_it_runs():
    _, memory = estimated(SMALL, "1xH100", sequence_length=8192, recompute="full")
    device = memory.fullest
    block = 2 * (8 * 256 + 3 * SMALL.intermediate_size) + 4 * 8 + 2 * 2 - 2 * 256  # all but its input
    assert device.moment == "backward"
    assert held(device)["recomputed activations"] == 8192 * block
    assert held(device)["activations of microbatches in flight"] < 8192 * (9 * 2 * 256 + 3 * 2 * 256)


def test_some_blocks_keep_their_input_and_the_others_all():
    """Stages differ in nothing but in the number of blocks that are recomputed: each is counted by itself."""
    activations = "activations of microbatches in flight"
    sizes = {}
    for counts in ((), (1, 1, 1, 1), (4, 0, 2, 1), (4, 4, 4, 4)):
        choices = {"recompute": "full", "recompute_blocks": counts} if counts else {}
        model = ModelSpec.decoder(16, 256, 8, vocabulary_size=1024)
        _, memory = estimated(model, "4xH100", pp=4, dp=1, **choices)
        sizes[counts] = [held(device) for device in memory.devices]
    none, one, some, most = sizes.values()
    all_but_its_input = 2 * (8 * 256 + 3 * SMALL.intermediate_size) + 4 * 8 + 2 * 2 - 2 * 256
    block = 4096 * all_but_its_input
    for device, count in enumerate((4, 0, 2, 1)):
        in_flight = 4 - device
        for found, recomputed in ((one, 1), (some, count), (most, 4)):
            saving = none[device][activations] - found[device][activations]
            assert saving == pytest.approx(in_flight * recomputed * block)
    assert "recomputed activations" not in some[1]
    assert some[2]["recomputed activations"] == most[2]["recomputed activations"] == block


def test_parallelism_divides():
    sizes = [
        estimated(devices="8xH100", tp=tp, sequence_parallel=tp > 1, sharding="zero1", batch=8)[
            1
        ].allocated_bytes
        for tp in (1, 2, 4, 8)
    ]
    assert sizes == sorted(sizes, reverse=True)
    with_rows, without = (
        estimated(tp=8, sequence_parallel=each)[1].allocated_bytes for each in (True, False)
    )
    assert with_rows < without
    _, long = estimated(cp=8, sequence_length=65536, batch=8)
    _, short = estimated(sequence_length=8192, batch=8)
    name = "activations of microbatches in flight"
    assert held(long.fullest)[name] == held(short.fullest)[name]


def test_experts_and_their_exchange_are_held():
    choices = {"devices": "8xB200", "sharding": "zero1", "batch": 16, "pp": 2}
    model = load_model("mixtral-8x7b")
    divided, whole = (estimated(model, ep=ep, **choices)[1].devices[0] for ep in (4, 1))
    assert held(divided)["parameters"] < held(whole)["parameters"] / 3
    assert divided.moment == "backward"
    assert (
        held(divided)["exchanges inside a block"] == 4096 * 2 * 2 * 2 * 4096
    )  # 2 experts a token, there and back


@pytest.mark.parametrize("software", ["", "eager", "compiled", "eager, float32 sums"])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_bounds_are_in_order(software, sharding):
    _, memory = estimated(SMALL, pp=2, dp=4, sharding=sharding, software=software)
    for device in memory.devices:
        assert device.allocated_bytes < device.reserved_bytes < device.upper_bytes
        assert device.reserved_bytes < device.needed_bytes
        assert all(size > 0 for _, size in device.holders)
    assert memory.upper_bytes >= MAX_FRAGMENTATION * memory.allocated_bytes


def test_sharded_stages_of_a_pipeline_may_be_kept_whole():
    plan, memory = estimated(pp=2, dp=4, sharding="zero3")
    sharded = [size for name, size in memory.devices[0].holders if name == "parameters"]
    assert sharded == [pytest.approx(4 * LLAMA.num_parameters / 2 / 4, rel=1e-3)]
    spread = memory.devices[0].upper_bytes / MAX_FRAGMENTATION - memory.devices[0].allocated_bytes
    assert spread > (2 + 4) * 0.99 * LLAMA.num_parameters / 2


def test_processes_of_a_host_have_no_allocator_and_no_driver():
    cluster = Cluster.detect(2)
    plan = Plan.of(SMALL, cluster, Workload(8, 64), pp=2, dp=1)
    memory = estimate_memory(plan, cluster, find_schedule("1f1b"))
    assert memory.reserved_bytes == memory.allocated_bytes
    assert memory.context_bytes == 0


def test_the_order_of_a_schedule_is_walked_once():
    in_flight.cache_clear()
    for microbatch_size in (1, 2):
        estimated(SMALL, pp=8, batch=64 * microbatch_size, microbatch_size=microbatch_size)
    assert (in_flight.cache_info().misses, in_flight.cache_info().hits) == (1, 1)
    assert memory_estimate.INTERLACED_FACTOR == 1.5


def test_buffers_of_context_parallelism_are_of_its_kind():
    """Of Llama-3.1-8B a token has 4096 numbers of queries and 2048 of keys and values, here in 2 bytes."""
    tokens = 8192 // 4

    def held_bytes(**choices):
        plan, _ = estimated(devices="4xH100", sequence_length=8192, batch=4, cp=4, **choices)
        return exchange_bytes(stage_works(plan, plan.stages())[0])

    ring = 4 * 2048 * tokens * 2  # keys and values with their gradients, of two ranks
    assert held_bytes() == held_bytes(token_layout="contiguous") == ring
    assert held_bytes(context="all_gather") == 2 * 4 * 2048 * tokens * 2  # and gradients of all four
    assert held_bytes(context="ulysses") == 2 * (4096 + 2048) * tokens * 2  # before and behind the exchange


SUMS = "eager, float32 sums"


def test_gradients_beside_their_sums_are_there_when_a_backward_ends_or_always():
    """2 bytes a parameter: behind the last block, where one microbatch's activations are gone, or beside all of them."""
    choices = {"devices": "4xH100", "pp": 4, "batch": 4, "recompute": "full"}
    usual, sums, always = (
        estimated(software=name, **choices)[1].devices[1] for name in ("fused", SUMS, "fused, float32 sums")
    )
    n = held(usual)["parameters"] / 2
    assert held(sums)["gradients of one microbatch"] == 2 * n and sums.moment == "embedding backward"
    assert held(always)["gradients before they are summed"] == 2 * n
    assert always.allocated_bytes == pytest.approx(usual.allocated_bytes + 2 * n)
    assert always.lasting_bytes == pytest.approx(usual.lasting_bytes + 2 * n)
    _, narrow = estimated(software=SUMS, **{**choices, "reduction_dtype": "bfloat16"})
    assert "gradients of one microbatch" not in held(narrow.devices[1])


def test_replicas_have_buckets_or_flat_copies_and_one_alone_has_neither():
    def sizes(sharding, batch=64, devices="8xH100"):
        _, memory = estimated(SMALL, devices, batch=batch, software=SUMS, sharding=sharding)
        device = memory.fullest
        passing = device.allocated_bytes - device.lasting_bytes
        freed = 2 / 8 * held(device)["logits and their gradient"]
        unexplained = device.reserved_bytes - device.lasting_bytes - MAX_FRAGMENTATION * (passing + freed)
        return held(device).get("buckets of gradients", 0.0), unexplained

    n = SMALL.num_parameters
    assert sizes("none") == (2 * n, pytest.approx(0.0, abs=1))
    assert sizes("zero1") == (0.0, pytest.approx(2 * n * (1 + 1 / 8) / 2))
    assert sizes("none", 8, "1xH100") == (0.0, pytest.approx(0.0, abs=1))


def test_rows_of_tensor_parallelism_come_back_late_where_the_host_is_ahead():
    """By hand: two of [tokens, hidden] in bfloat16 a block, but for the device's own half."""
    choices = {"devices": "2xH100", "tp": 2}
    plan, memory = estimated(batch=4, software=SUMS, sequence_parallel=True, **choices)
    late = late_bytes(stage_works(plan, plan.stages())[0])
    assert late == 2 * 4096 * 4096 * 2 / 2 * 32
    for other in (
        {"software": SUMS, "sequence_parallel": False},
        {"software": "eager", "sequence_parallel": True},
    ):
        plan, _ = estimated(**choices, **other)
        assert late_bytes(stage_works(plan, plan.stages())[0]) == 0
    _, single = estimated(batch=1, software=SUMS, sequence_parallel=True, **choices)
    assert memory.allocated_bytes == pytest.approx(single.allocated_bytes)
    assert memory.reserved_bytes - single.reserved_bytes == pytest.approx(MAX_FRAGMENTATION * late)
    assert memory.upper_bytes == pytest.approx(single.upper_bytes)  # at most, of one microbatch, too


def test_a_host_that_waits_for_stages_is_half_as_far_ahead():
    choices = {"devices": "8xH100", "pp": 4, "tp": 2, "dp": 1, "software": SUMS, "sequence_parallel": True}
    plan, memory = estimated(**choices)
    late = late_bytes(stage_works(plan, plan.stages())[0])
    first, last = memory.devices[0], memory.devices[-1]
    passing = first.allocated_bytes - first.lasting_bytes
    assert first.reserved_bytes == pytest.approx(
        first.lasting_bytes + MAX_FRAGMENTATION * (passing + 3 * late / 2)
    )
    passing = last.allocated_bytes - last.lasting_bytes + 2 / 8 * held(last)["logits and their gradient"]
    assert last.reserved_bytes == pytest.approx(last.lasting_bytes + MAX_FRAGMENTATION * passing)
    assert first.upper_bytes > first.lasting_bytes + WORST_FRAGMENTATION * (
        first.allocated_bytes - first.lasting_bytes
    )


def test_a_context_at_most_has_every_kernel_and_more_communicators():
    single, _ = estimated(devices="1xH100")
    assert most_context_bytes(single) == 2 << 30
    split, memory = estimated(devices="8xH100", pp=4, tp=2, dp=1)
    # of all devices, two neighbours, and what the model is divided over, beside those of two axes
    assert most_context_bytes(split) == (2 << 30) + (4 + 2) * 64 * (4194304 + 524288 + 4915200)
    assert memory.context_bytes == (512 << 20) + 2 * (256 << 20)
