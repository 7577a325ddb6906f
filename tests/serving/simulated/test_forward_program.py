"""Steps that serve: what they compute is counted, and they take what their device leaves them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.serving.simulated_case import of_8b as program
from tests.serving.simulated_case import program as of_model

from meshwright.costs.kernel.curve import nearest_kernels
from meshwright.costs.roofline import LINK_EFFICIENCY
from meshwright.ir.table import Work
from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import replica_memory
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.cluster.summing import sum_s
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator

ONE, PROMPT = BatchShape.of((), 1, 100), BatchShape.of([(0, 4096)])
MIXED = BatchShape.of([(0, 100), (64, 28)], num_decodes=8, num_context=4000)


def operators(works: tuple[Work, ...], kind: str) -> list[Operator]:
    """Of all works, by their kind."""
    return [each for work in works for each in work.operators if each.kind == kind]


def test_a_shape_counts_what_its_chunks_see() -> None:
    """Token i of a chunk that starts at s sees s + i tokens."""
    pairs = sum(range(1, 101)) + sum(range(65, 93))
    assert MIXED == BatchShape(128, pairs, 2, 8, 4000)
    assert (MIXED.num_tokens, MIXED.num_rows) == (136, 10)


def test_products_are_of_all_tokens_and_the_head_of_wanted_rows() -> None:
    """2 FLOPs for each parameter of a block and each token; the head sees 10 rows."""
    found, model = program(), load_model("llama-3.1-8b")
    products = operators(found.works(MIXED), "matmul")
    (head,) = (each for each in products if each.label == "vocabulary")
    assert head.shape == (10, model.vocabulary_size, model.hidden_size)
    blocks = sum(each.total_flops for each in products) - head.total_flops
    matrices = model.num_layers * (model.num_block_parameters() - 2 * model.hidden_size)
    assert blocks == pytest.approx(2 * 136 * matrices)


def test_attention_reads_the_cache_once_and_sees_what_chunks_see() -> None:
    """4 FLOPs a pair and number of a query; keys and values of 4,000 tokens, 8 heads of 128, in 16 bits."""
    works = program().works(MIXED)
    (chunks,), (decodes,) = operators(works, "attention"), operators(works, "cached_attention")
    assert chunks.flops == 4 * MIXED.chunk_pairs * 4096
    assert decodes.flops == 4 * 4000 * 4096
    assert decodes.bytes == 4000 * 2 * 8 * 128 * 2 + 8 * 2 * 4096 * 2
    batch, *_, length, _, _ = chunks.shape
    assert batch * length * length / 2 == pytest.approx(MIXED.chunk_pairs, rel=0.05)


def test_a_batch_without_a_kind_of_request_has_no_kernel_for_it() -> None:
    """Decodes alone have no chunks, chunks alone no decodes; nothing takes no time."""
    assert not operators(program().works(BatchShape.of((), 4, 100)), "attention")
    assert not operators(program().works(BatchShape.of([(0, 9)])), "cached_attention")
    assert program().step(BatchShape()) == (0.0, 0.0)


def test_one_decode_takes_little_more_than_reading_the_weights() -> None:
    """16 GB at 3.35 TB/s, and at most twice that; two devices that share the matrices take between half and all of it."""
    least_s = 2 * 7.5e9 / 3.35e12
    alone, shared = (program(tp).step(BatchShape.of((), 1, 100)).latency_s for tp in (1, 2))
    assert least_s < alone < 2 * least_s
    assert alone / 2 < shared < alone


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (BatchShape.of((), 64, 64_000), BatchShape.of((), 32, 32_000)),
        (BatchShape.of((), 32, 320_000), BatchShape.of((), 32, 32_000)),
        (BatchShape.of([(4000, 512)]), BatchShape.of([(0, 512)])),
        (BatchShape.of([(0, 512)], 8, 8000), BatchShape.of([(0, 512)])),
    ],
)
def test_more_work_takes_longer_and_a_slower_device_as_well(more: BatchShape, less: BatchShape) -> None:
    """On one device, and between devices of one kind: an H200 has the H100's arithmetic and more bandwidth."""
    assert program().step(more).latency_s > program().step(less).latency_s
    assert program(devices="1xA100").step(more).latency_s > program().step(more).latency_s
    assert program(devices="1x8xH200").step(more).latency_s <= program().step(more).latency_s * 1.001


def test_stages_share_a_step_and_the_next_one_enters_behind_the_slowest() -> None:
    """Two stages take together a little more than one, for the message; each about half of it."""
    one, two = (program(1, pp).step(MIXED) for pp in (1, 2))
    assert one.latency_s == one.period_s
    assert one.latency_s < two.latency_s < 1.1 * one.latency_s
    assert 0.45 * two.latency_s < two.period_s < 0.6 * two.latency_s


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_the_parts_of_a_step_are_the_whole_of_it(tp: int, pp: int) -> None:
    """Computes and exchanges stand one behind the other; of one device nothing is sent, and most is the MLP's."""
    found = program(tp, pp)
    parts = found.parts_s(MIXED)
    assert sum(parts.values()) == pytest.approx(found.step(MIXED).latency_s, rel=0.02)
    assert (parts["exchanges"] > 0) == (tp * pp > 1)
    assert parts["mlp"] > parts["attention"] > parts["add"]


def test_few_tokens_touch_few_experts() -> None:
    """One token goes to 2 of 8 experts; a thousand tokens to all of them."""
    found = of_model(2, model="mixtral-8x7b")
    few = operators(found.works(BatchShape.of((), 1, 100)), "grouped_matmul")
    many = operators(found.works(BatchShape.of([(0, 1000)])), "grouped_matmul")
    assert {each.shape[0] for each in few} == {2} and {each.shape[0] for each in many} == {8}
    assert max(each.bytes for each in few) < min(each.bytes for each in many) / 2


@pytest.mark.parametrize(
    ("layout", "model", "said"),
    [
        (ReplicaLayout(3), "llama-3.1-8b", "tp"),
        (ReplicaLayout(16), "llama-3.1-8b", "16 devices, 1x8xH100 has 8"),
        (ReplicaLayout(8, 1, 8), "llama-3.1-8b", "ep is 8"),
        (ReplicaLayout(8, 1, 3), "mixtral-8x7b", "ep is 3"),
        (ReplicaLayout(8, 1, 4, 8), "mixtral-8x7b", "ep is 4"),
        (ReplicaLayout(8, attention_dp=3), "llama-3.1-8b", "attention_dp is 3"),
        (ReplicaLayout(2, attention_dp=4), "llama-3.1-8b", "attention_dp is 4"),
    ],
)
def test_what_no_replica_can_be_is_refused(layout: ReplicaLayout, model: str, said: str) -> None:
    """By what does not fit."""
    with pytest.raises(PlanError, match=said):
        layout.plan(load_model(model), Cluster("1x8xH100"), 16, "bfloat16")


def test_groups_that_attend_for_themselves_compute_as_much_and_read_more_weights() -> None:
    """Of 136 rows each of two devices has 68 with all heads: as many FLOPs as with half of the heads of all, as many keys and
    values, and twice the weights; the rest of a block is as before."""
    even, own = (replace(program(2), layout=ReplicaLayout(2, attention_dp=number)) for number in (1, 2))
    for kind in ("cached_attention", "attention"):
        one, two = (operators(each.works(MIXED), kind)[0] for each in (even, own))
        assert two.flops == pytest.approx(one.flops)
    by_label = [
        {each.label: each for each in operators(found.works(MIXED), "matmul")} for found in (even, own)
    ]
    qkv = next(name for name in by_label[0] if "qkv" in name or "q_proj" in name)
    rows, outputs, inputs = by_label[1][qkv].shape
    assert by_label[0][qkv].shape == (2 * rows, outputs // 2, inputs) and rows == 68
    assert by_label[1]["down"].shape == by_label[0]["down"].shape


def test_groups_that_attend_for_themselves_send_half() -> None:
    """A gather and a scatter a block instead of two sums: half the bytes. So a long prompt is faster, as messages weigh more
    than weights, and a decode, which reads more weights, slower; both stay below one device's."""
    even, own = (replace(program(2), layout=ReplicaLayout(2, attention_dp=number)) for number in (1, 2))
    prompt, decode = BatchShape.of([(0, 4096)]), BatchShape.of((), 8, 8000)
    assert own.step(prompt).latency_s < even.step(prompt).latency_s
    assert even.step(decode).latency_s < own.step(decode).latency_s < program().step(decode).latency_s
    assert any("equal parts of every batch" in line for line in own.assumptions)


def test_groups_of_several_devices_stand_between_one_group_and_devices_alone() -> None:
    """Of four devices two groups of two: what they read of attention's weights for a decode lies between."""
    seconds = [
        replace(program(4), layout=ReplicaLayout(4, attention_dp=number)).step(BatchShape.of((), 8, 8000))
        for number in (1, 2, 4)
    ]
    assert seconds == sorted(seconds) and len(set(seconds)) == 3


def test_an_engine_adds_its_hosts_time_to_a_step_and_a_factor_to_kernels() -> None:
    """Of one stage to its period, too; the next batch of several stages need not wait for it."""
    for pp in (1, 2):
        alone = program(1, pp).step(MIXED)
        slower = replace(program(1, pp), overhead=StepOverhead(host_s=0.01, device_factor=1.5)).step(MIXED)
        assert slower.latency_s == pytest.approx(0.01 + 1.5 * alone.latency_s)
        assert slower.period_s == pytest.approx((0.01 if pp == 1 else 0.0) + 1.5 * alone.period_s)


def test_float8_halves_what_one_decode_reads_and_leaves_attention() -> None:
    """Matrices of one byte a number; keys and values stay in 16 bits."""
    narrow = replace(program(), dtype="float8")
    batch = BatchShape.of((), 1, 100)
    wide_bytes, narrow_bytes = (
        sum(each.total_bytes for each in operators(of.works(batch), "matmul")) for of in (program(), narrow)
    )
    assert narrow_bytes == pytest.approx(wide_bytes / 2, rel=0.01)
    assert operators(narrow.works(batch), "cached_attention") == operators(
        program().works(batch), "cached_attention"
    )
    assert 0.45 < narrow.step(batch).latency_s / program().step(batch).latency_s < 0.9


def test_sums_as_a_star_or_around_a_ring_on_slow_links() -> None:
    """Of eight devices on 1 Gb/s: a small step takes less by a star, a large one by a ring, the quickest is the less of each;
    the sums of one step differ by what the formulas do."""
    wired = Cluster("8x1xcpu nic=1Gb/s")
    slow = replace(wired, levels=tuple(replace(each, latency_s=1e-3) for each in wired.levels))
    model = ModelSpec.decoder(4, 4096, 32, num_kv_heads=8, vocabulary_size=32000)
    steps = {
        sums: ForwardProgram(model, slow, ReplicaLayout(8), "float32", StepOverhead(0.0), sums=sums)
        for sums in ("ring", "star", "tree", "quickest")
    }
    small, large = ({s: p.step(batch).latency_s for s, p in steps.items()} for batch in (ONE, PROMPT))
    assert small["star"] < small["tree"] < small["ring"] and large["ring"] < large["tree"] < large["star"]
    assert small["quickest"] == pytest.approx(small["star"])
    assert large["quickest"] < large["ring"] < 1.001 * large["quickest"], (
        "the sums of a wanted row are small ones"
    )
    rate = 125e6 * LINK_EFFICIENCY
    ring_s, star_s = (sum_s(way, 4096 * 4, 8, 1e-3, rate) for way in ("ring", "star"))
    assert small["ring"] - small["star"] == pytest.approx((2 * 4 + 1) * (ring_s - star_s), rel=0.3)


def test_where_a_library_chooses_how_to_sum_nobody_else_does() -> None:
    with pytest.raises(PlanError, match="sums=star on"):
        replace(program(2), sums="star").step(ONE)


def test_keys_and_values_of_one_byte_halve_blocks_and_what_decodes_read() -> None:
    """Linear layers stay as they are; a block of the same tokens takes half of the memory."""
    narrow = replace(program(), cache_dtype="float8")
    batch = BatchShape.of((), 64, 64 * 4000)
    (wide,), (read,) = (operators(of.works(batch), "cached_attention") for of in (program(), narrow))
    assert read.bytes == pytest.approx(wide.bytes / 2, rel=0.02)
    assert operators(narrow.works(batch), "matmul") == operators(program().works(batch), "matmul")
    assert narrow.step(batch).latency_s < program().step(batch).latency_s
    blocks = [replica_memory(of, Limits(), 16).block_bytes for of in (program(), narrow)]
    assert blocks[1] == blocks[0] / 2


def test_works_and_messages_cost_what_is_handed_over() -> None:
    """Instead of what the cluster says, and its assumptions are told."""
    cards = Cluster("1xRTX-PRO-6000")
    costs = nearest_kernels(cards)
    said = replace(program(), cluster=cards, priced_by=costs)
    assert said.assumptions == costs.assumptions
    assert said.step(MIXED).latency_s > 1.3 * program().step(MIXED).latency_s
