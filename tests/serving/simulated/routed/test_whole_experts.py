"""Whole experts on devices that have all tokens: what the busiest computes and reads, what is sent, what is held."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import num_weights, replica_memory
from meshwright.serving.simulated.routed.whole_experts import busiest_rows
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.operator import Operator

MIXTRAL = load_model("mixtral-8x7b")
PROMPT, ONE = BatchShape.of([(0, 4096)]), BatchShape.of((), 1, 100)
HIDDEN, INNER, CHOSEN, NUM_EXPERTS = 4096, 14336, 2, 8


def replica(
    tp: int, ep: int = 1, load: float = 1.0, model: str = "mixtral-8x7b", dp: int = 1
) -> ForwardProgram:
    """On H100s of one node."""
    layout = ReplicaLayout(tp, 1, ep, dp)
    return ForwardProgram(load_model(model), Cluster("1x8xH100"), layout, expert_load=load)


def found(program: ForwardProgram, batch: BatchShape, *kinds: str) -> list[Operator]:
    """Operators of some kinds, of all blocks."""
    return [each for work in program.works(batch) for each in work.operators if each.kind in kinds]


def flops(program: ForwardProgram, batch: BatchShape) -> float:
    """Of experts' products on a device."""
    return sum(each.total_flops for each in found(program, batch, "grouped_matmul"))


@pytest.mark.parametrize(("num_rows", "num_devices"), [(1, 4), (3, 3), (5, 2), (6, 3)])
def test_the_busiest_device_of_few_rows(num_rows: int, num_devices: int) -> None:
    """Beside every way in which rows may go, each as probable; never less than an even split."""
    ways = product(range(num_devices), repeat=num_rows)
    exact = np.mean([np.bincount(way).max() for way in ways])
    found = busiest_rows(num_rows, num_devices)
    assert found == pytest.approx(exact, rel=0.05) and found >= -(-num_rows // num_devices)


def test_the_busiest_device_of_many_rows() -> None:
    """Of draws, within their noise; of ever more rows the mean."""
    draw = np.random.default_rng(1)
    for num_rows, num_devices in ((64, 8), (1024, 8), (4096, 32)):
        drawn = draw.multinomial(num_rows, [1 / num_devices] * num_devices, 20_000).max(1)
        assert busiest_rows(num_rows, num_devices) == pytest.approx(drawn.mean(), rel=0.01)
    assert busiest_rows(1 << 20, 8) == pytest.approx((1 << 20) / 8, rel=0.01)
    assert (busiest_rows(9, 1), busiest_rows(0, 4)) == (9.0, 0.0)


@pytest.mark.parametrize(("tp", "ep"), [(8, 8), (8, 2), (4, 4)])
def test_the_busiest_device_computes_its_rows_through_whole_experts(tp: int, ep: int) -> None:
    """6 E I FLOPs a row, of a share of the units where several devices have an expert; of as many experts as it has."""
    rows = int(np.ceil(busiest_rows(4096 * CHOSEN, ep)))
    program = replica(tp, ep)
    assert flops(program, PROMPT) == pytest.approx(6 * rows * HIDDEN * INNER / (tp // ep), rel=1e-3)
    assert {each.shape[0] for each in found(program, PROMPT, "grouped_matmul")} == {NUM_EXPERTS // ep}
    assert 1.0 < flops(program, PROMPT) / flops(replica(tp), PROMPT) < 1.1, "chance alone makes it uneven"


def test_a_routing_says_how_uneven_it_is() -> None:
    """Rows in proportion, from where they are more than chance has them, to all on one device."""
    even, twice, all_of_it = (flops(replica(8, 8, load), PROMPT) for load in (1.0, 2.0, 99.0))
    assert twice == pytest.approx(2 * flops(replica(8), PROMPT), rel=1e-3)
    assert all_of_it == pytest.approx(4 * twice, rel=1e-3)
    assert even < 0.6 * twice
    assert any("2.00 times" in line for line in replica(8, 8, 2.0).assumptions)
    apart = [replica(8, 8, load, dp=8).step(PROMPT).latency_s for load in (1.0, 2.0)]
    assert apart[0] < apart[1], "where rows are sent as well"


def test_nothing_more_is_sent_than_without() -> None:
    """A sum behind attention and behind experts; the router sees all tokens, and its result is added to each."""
    whole, divided = replica(8, 8), replica(8)
    for batch in (ONE, PROMPT):
        assert whole.parts_s(batch)["exchanges"] == divided.parts_s(batch)["exchanges"]
    for kind in ("routing", "matmul"):
        one, other = (found(each, PROMPT, kind) for each in (whole, divided))
        assert [each.shape for each in one] == [each.shape for each in other]
    rows = int(np.ceil(busiest_rows(4096 * CHOSEN, 8)))
    by_label = {each.label: each for each in found(whole, PROMPT, "permutation")}
    assert by_label["dispatch"].bytes == 2 * rows * HIDDEN * 2
    assert by_label["combine"].bytes == (rows + 4096) * HIDDEN * 2


def test_one_decode_reads_whole_experts() -> None:
    """Its two experts are on two of eight devices, each of which reads all of one: by tensor parallelism an eighth of two."""
    whole, divided = (
        sum(each.bytes for each in found(program, ONE, "grouped_matmul"))
        for program in (replica(8, 8), replica(8))
    )
    assert whole == pytest.approx(4 * divided, rel=0.02)
    assert replica(8, 8).step(ONE).latency_s > replica(8).step(ONE).latency_s


def test_products_of_fewer_and_wider_experts_are_quicker_where_experts_are_many_and_small() -> None:
    """128 experts of 768 units: of a quarter of their units a long prompt's products are narrow."""
    seconds = [replica(4, ep, model="qwen3-30b-a3b").step(PROMPT).latency_s for ep in (1, 2, 4)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "gpt-oss-120b"])
def test_devices_hold_the_same_share(model: str) -> None:
    """But for biases behind an expert's second matrix, which all that share the expert have."""
    (layers,) = replica(8, model=model).plan.stages()
    divided, whole = (num_weights(replica(8, ep, model=model), layers) for ep in (1, 8))
    spec = load_model(model)
    experts = spec.experts
    assert experts is not None
    biases = spec.num_layers * experts.num_experts * spec.hidden_size if spec.has_expert_bias else 0
    assert divided - whole == biases * 7 // 8
    room = [replica_memory(replica(8, ep, model=model), Limits(), 16).num_blocks for ep in (1, 8)]
    assert room[1] >= room[0] > 0


def test_units_that_tp_does_not_divide_are_refused_before_a_step_is_lowered() -> None:
    model = MIXTRAL.changed(expert_intermediate_size=14340)
    program = replace(replica(8, 8), model=model)
    with pytest.raises(PlanError, match="do not divide the 14340 inner units"):
        program.step(ONE)
