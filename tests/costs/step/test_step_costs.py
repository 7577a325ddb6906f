"""Prices of training steps: what each constant moves and nothing else, casts, hosts, rings and routed tokens by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.cost import Cost
from meshwright.costs.kernel.curve import STREAM_EFFICIENCY, GpuKernels
from meshwright.costs.step.step_costs import (
    CAST_BYTES,
    GROUPED,
    StepConstants,
    StepCosts,
    component,
    slowest_of,
)
from meshwright.ir.table import Exchange, Inner, Work
from meshwright.simulator.pricing import with_inner
from meshwright.specs import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator, Phase
from meshwright.specs.plan.software import CLASSES, SoftwareClass

CLUSTER = Cluster("4x8xH100")
KERNELS = GpuKernels(CLUSTER.devices[0], NcclCollectives(CLUSTER), casts="apart")
LINKS = NcclCollectives(CLUSTER)
PLAIN = SoftwareClass("plain", "every kernel as it was measured")
ONES = StepConstants(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
PARTS = ("matmul", "attention", "stream", "gap")
ALL, NODE = tuple(range(32)), tuple(range(8))


def costs(constants: StepConstants | None = None, software: SoftwareClass = PLAIN) -> StepCosts:
    return StepCosts(KERNELS, LINKS, constants or StepConstants(), software)


def matmul(m: int, n: int, k: int, phase: Phase = "forward", label: str = "qkv", count: int = 1) -> Operator:
    return Operator("matmul", 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), (m, n, k), count, phase, label)


def experts(phase: Phase = "forward") -> Operator:
    num_bytes = 2.0 * 8 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    return Operator(
        "grouped_matmul", 2.0 * 8 * 512 * 2048 * 1024, num_bytes, (8, 512, 2048, 1024), phase=phase
    )


def norm(phase: Phase = "forward", count: int = 1) -> Operator:
    return Operator("norm", 1.0, 2.0 * 2 * 4096 * 4096, (4096, 4096), count, phase)


ATTENTION = Operator("attention", 1.0, 1.0, (1, 32, 8, 4096, 128, 1), 2)
OPTIMIZER = Operator("optimizer", 1.0, 16e8, (100_000_000,))
STEP = (matmul(4096, 4096, 4096, count=3), ATTENTION, norm(count=5), OPTIMIZER)


def work(*operators: Operator, dtype: str = "bfloat16") -> Work:
    return Work("F", 4096, dtype=dtype, operators=operators)


def routed(phase: Phase = "forward", count: int = 1) -> Operator:
    return Operator("routing", 1.0, 1e6, (4096, 64, 8), count, phase)


def doubled(name: str) -> StepConstants:
    return replace(StepConstants(), **{name: 2 * getattr(StepConstants(), name)})


# ------------------------------------------------------------------------------------------ constants and parts


@pytest.mark.parametrize("name", [each.name for each in fields(StepConstants)])
def test_a_constant_doubles_its_own_part_and_no_other(name: str) -> None:
    own = {"gap_s": "gap"}.get(name, name)
    before, after = costs().parts(work(*STEP)), costs(doubled(name)).parts(work(*STEP))
    assert set(before) == set(PARTS)
    ratios = {part: after[part] / before[part] for part in PARTS}
    assert ratios == pytest.approx({part: 2.0 if part == own else 1.0 for part in PARTS})


def test_at_ones_parts_are_kernels_as_they_were_measured() -> None:
    found = costs(ONES).parts(work(*STEP))
    product, attention, addition, update = (KERNELS.operator(each, "bfloat16").seconds for each in STEP)
    expected = {
        "matmul": 3 * product,
        "attention": 2 * attention,
        "stream": 5 * addition + update,
        "gap": 0.0,
    }
    assert found == pytest.approx(expected)


def test_gaps_stand_behind_every_launch_but_the_optimizers() -> None:
    c = StepConstants(gap_s=1e-3)
    assert costs(c).parts(work(*STEP))["gap"] == pytest.approx(10e-3)
    assert costs(c).parts(work(OPTIMIZER))["gap"] == 0.0
    assert costs(c, replace(PLAIN, gap_share=0.25)).parts(work(*STEP))["gap"] == pytest.approx(2.5e-3)


def test_portable_attention_is_of_software_without_kernels_of_the_generation() -> None:
    portable = replace(PLAIN, has_native_attention=False)
    native, slow = costs().parts(work(*STEP)), costs(software=portable).parts(work(*STEP))
    factor = StepConstants().attention_portable
    assert slow == pytest.approx({**native, "attention": native["attention"] * factor})
    more = costs(doubled("attention_portable"), portable).parts(work(*STEP))
    assert more == pytest.approx({**slow, "attention": 2 * slow["attention"]})


def at_power(power_w: float) -> StepCosts:
    kernels = replace(KERNELS, device=replace(KERNELS.device, power_w=power_w))
    return StepCosts(kernels, LINKS, StepConstants(), PLAIN)


def test_products_of_a_device_with_less_power_run_at_the_third_root_of_it() -> None:
    """An H100 has 700 W; what streams is not clocked by them, nor are casts to float8, and attention stays below."""
    usual, half = at_power(700.0).parts(work(*STEP)), at_power(350.0).parts(work(*STEP))
    root = 2 ** (1 / 3)
    assert half == pytest.approx({**usual, "matmul": usual["matmul"] * root})
    assert usual == costs().parts(work(*STEP)), "the device of the preset has the usual power"
    assert at_power(0.0).parts(work(*STEP)) == usual, "nothing is known of its power"
    cast = StepConstants().stream * casts_s(4096, 2048)
    product = work(matmul(4096, 8192, 2048), dtype="float8")
    alone = at_power(700.0).parts(product)["matmul"] - cast
    assert at_power(350.0).parts(product)["matmul"] == pytest.approx(alone * root + cast)


def test_experts_in_one_launch_are_slower_than_one_product() -> None:
    found = costs(ONES).parts(work(experts()))
    assert found["matmul"] == pytest.approx(GROUPED * KERNELS.operator(experts(), "bfloat16").seconds)


def test_software_moves_its_share_of_what_streams() -> None:
    software = replace(PLAIN, traffic={"norm": 0.5, "norm_backward": 0.25, "matmul": 9.0, "attention": 9.0})
    for phase, share in (("forward", 0.5), ("backward", 0.25)):
        operators = (matmul(4096, 4096, 4096), ATTENTION, norm(phase))  # type: ignore[arg-type]
        plain, less = costs().parts(work(*operators)), costs(software=software).parts(work(*operators))
        assert less == pytest.approx({**plain, "stream": plain["stream"] * share})


def test_only_products_attention_and_the_rest_are_told_apart() -> None:
    assert [component(each) for each in (STEP[0], experts(), ATTENTION, norm(), OPTIMIZER, routed())] == [
        *("matmul", "matmul", "attention", "stream", "stream", "stream")
    ]


@pytest.mark.parametrize("value", [-1e-9, float("nan")])
def test_constants_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(SpecError, match="gap_s"):
        StepConstants(gap_s=value)


# ------------------------------------------------------------------------------------------ float8


def casts_s(m: int, k: int, share: float = 1.0) -> float:
    return CAST_BYTES * m * k * share / (CLUSTER.devices[0].memory_bandwidth_bytes_per_s * STREAM_EFFICIENCY)


@pytest.mark.parametrize("phase", ["forward", "input_gradient", "weight_gradient"])
def test_a_float8_product_casts_what_it_reads_unless_that_was_cast(phase: Phase) -> None:
    product = matmul(4096, 8192, 2048, phase)
    alone = KERNELS.operator(product, "float8").seconds
    cast = 0.0 if phase == "weight_gradient" else casts_s(4096, 2048)
    c = replace(ONES, matmul=1.3, float8=0.9, stream=1.1)
    found = costs(c).parts(work(product, dtype="float8"))["matmul"]
    assert found == pytest.approx(1.3 * 0.9 * alone + 1.1 * cast)
    fused = costs(c, replace(PLAIN, cast_share=0.5)).parts(work(product, dtype="float8"))["matmul"]
    assert found - fused == pytest.approx(0.5 * 1.1 * cast)


def test_a_gradient_as_large_as_its_table_is_written_read_and_added() -> None:
    tokens, hidden, words = 2048, 3072, 32_000
    scatter = Operator("embedding", 1.0, 3.0 * 2 * tokens * hidden, (tokens, hidden, words), phase="backward")
    lookup = replace(scatter, phase="forward")
    whole = replace(PLAIN, sums_whole_tables=True)
    for operator, num_bytes in ((scatter, 4 * words * hidden * 2), (lookup, 0)):
        of_rows, of_table = (costs(ONES, each).parts(work(operator))["stream"] for each in (PLAIN, whole))
        rate = CLUSTER.devices[0].memory_bandwidth_bytes_per_s * STREAM_EFFICIENCY
        assert of_table - of_rows == pytest.approx(num_bytes / rate)


def test_experts_cast_the_rows_of_all_of_them() -> None:
    found = costs(ONES).parts(work(experts(), dtype="float8"))["matmul"]
    alone = GROUPED * KERNELS.operator(experts(), "float8").seconds
    assert found == pytest.approx(alone + casts_s(8 * 512, 1024))


def test_float8_changes_linear_layers_only_and_not_the_vocabulary() -> None:
    others = (matmul(4096, 32000, 4096, label="vocabulary head"), ATTENTION, norm())
    assert costs().parts(work(*others, dtype="float8")) == costs().parts(work(*others))
    more = costs(doubled("float8"))
    assert more.parts(work(*others, dtype="float8")) == costs().parts(work(*others))
    product = matmul(4096, 8192, 8192)
    assert costs().parts(work(product, dtype="float8")) != costs().parts(work(product))
    assert more.parts(work(product)) == costs().parts(work(product))


# ------------------------------------------------------------------------------------------ host of experts


def test_the_host_is_a_floor_of_a_layer_of_experts() -> None:
    c = StepConstants(expert_s=0.3)
    forward, backward = work(routed(), experts()), work(routed("backward"), experts())
    for each, host_s in ((forward, 0.1), (backward, 0.2), (work(routed(count=2)), 0.2)):
        cost, device_s = costs(c).cost(each), sum(costs(c).parts(each).values())
        assert cost.seconds == pytest.approx(host_s) and device_s < host_s
        assert cost.slack_s == pytest.approx(host_s - device_s)


def test_without_experts_or_behind_long_kernels_the_host_is_never_late() -> None:
    plain = costs(StepConstants(expert_s=5.0)).cost(work(*STEP))
    assert (plain.seconds, plain.slack_s) == (sum(costs().parts(work(*STEP)).values()), 0.0)
    both = work(*STEP, routed())
    found = costs(StepConstants(expert_s=1e-6)).cost(both)
    assert (found.seconds, found.slack_s) == (sum(costs().parts(both).values()), 0.0)


def test_a_captured_step_waits_for_no_host() -> None:
    layer = work(routed(), experts())
    found = costs(StepConstants(expert_s=3.0), replace(PLAIN, waits_for_routing=False)).cost(layer)
    assert (found.seconds, found.slack_s) == (sum(costs().parts(layer).values()), 0.0)


def test_a_captured_step_leaves_little_between_two_steps() -> None:
    constants = StepConstants(step_s=0.04)
    assert costs(constants).between_steps_s == 0.04
    assert costs(constants, CLASSES["captured"]).between_steps_s == pytest.approx(0.008)


def test_exchanges_inside_hide_while_the_device_waits_for_its_host() -> None:
    inner = Inner(Exchange(("ep",), algorithm="all_to_all.top2"), 64e6, 2)
    layer = work(routed(), experts())._replace(inner=(inner,))
    sent_s = 2 * costs().exchange_cost(inner.exchange, inner.bytes, NODE).seconds

    def seconds(constants: StepConstants) -> float:
        model = costs(constants)
        return with_inner(model.cost(layer), layer, model, model, [NODE], None).seconds

    device_s = sum(costs().parts(layer).values())
    assert seconds(StepConstants(expert_s=0.0)) == pytest.approx(device_s + sent_s)
    floor = 3 * (device_s + 0.5 * sent_s)  # half of what is sent fits below it
    assert seconds(StepConstants(expert_s=floor)) == pytest.approx(device_s + sent_s)
    assert seconds(StepConstants(expert_s=3.0)) == pytest.approx(1.0), "below a high floor it is free"


def test_products_lose_a_share_to_tensor_parallelism_that_passes_beside_them() -> None:
    """A tenth of what they cover; all of it where nothing is said to run beside it."""
    model, products = costs(ONES), work(*STEP)
    alone_s = model.cost(products).seconds

    def added_s(algorithm: str, beside: str) -> tuple[float, float]:
        inner = Inner(Exchange(("tp",), algorithm=algorithm), 1e6, 1, beside)
        sent_s = model.exchange_cost(inner.exchange, inner.bytes, NODE).seconds
        layer = products._replace(inner=(inner,))
        return with_inner(model.cost(layer), layer, model, model, [NODE], None).seconds - alone_s, sent_s

    parts = "all_gather.in_parts"
    for algorithm, beside, share in ((parts, "matmul", 0.1), (parts, "", 1.0), ("all_gather", "matmul", 0.0)):
        found, sent_s = added_s(algorithm, beside)
        assert found == pytest.approx(share * sent_s, abs=1e-12)


# ------------------------------------------------------------------------------------------ exchanges


def ratio(constants: StepConstants, devices: tuple[int, ...], algorithm: str) -> float:
    exchange = Exchange(("dp",), algorithm=algorithm)
    alone = LINKS.exchange_cost(exchange, 64e6, devices).seconds
    return costs(constants).exchange_cost(exchange, 64e6, devices).seconds / alone


def test_within_a_node_only_its_own_factor_counts() -> None:
    c = replace(ONES, node_exchange=1.7, network_exchange=5.0, jitter=5.0)
    for algorithm in ("all_reduce", "all_gather.two_level", "all_to_all.top8"):
        assert ratio(c, NODE, algorithm) == pytest.approx(1.7)
        assert ratio(c, (8, 12), algorithm) == pytest.approx(1.7)


def test_between_nodes_all_wait_for_the_slowest_of_them() -> None:
    c = replace(ONES, node_exchange=7.0, network_exchange=1.5, jitter=0.1)
    for devices, number in ((ALL, 4), ((0, 8), 2)):
        for algorithm in ("all_reduce", "reduce_scatter.two_level"):
            assert ratio(c, devices, algorithm) == pytest.approx(1.5 * (1 + 0.1 * slowest_of(number)))


def test_the_slowest_of_many_is_little_slower_than_that_of_few() -> None:
    """Against the median of the largest of drawn delays, over that of one; of one there is none to wait for."""
    drawn = np.random.default_rng(0).pareto(2.0, size=(4000, 1024)) + 1.0
    one = np.median(drawn[:, 0])
    for number in (16, 64, 1024):
        largest = np.median(drawn[:, :number].max(axis=1)) / one
        assert largest == pytest.approx(1.0 + slowest_of(number), rel=0.25)
    assert slowest_of(1) == 0.0


def test_the_host_dispatches_every_operator_and_the_device_waits_where_it_is_done_before() -> None:
    eager = replace(PLAIN, operator_s=1.0)
    found = costs(ONES, eager).cost(work(*STEP, OPTIMIZER))
    assert found.seconds == pytest.approx(10.0)
    assert found.slack_s == pytest.approx(10.0 - costs(ONES).cost(work(*STEP, OPTIMIZER)).seconds)
    gathers = Inner(Exchange(("tp",), algorithm="all_gather"), 1e6, 3, "", "")
    with_exchanges = costs(ONES, eager).cost(work(*STEP, OPTIMIZER)._replace(inner=(gathers,)))
    assert with_exchanges.seconds == pytest.approx(13.0)


def test_tokens_may_be_sent_once_to_every_device_that_has_experts_for_them() -> None:
    """Of 8 devices one has none of 8 experts with (7/8)^8, as often as drawn; between nodes each crosses once
    either way."""
    drawn = np.random.default_rng(0).integers(8, size=(20_000, 8))
    reached = np.mean([len(set(row)) for row in drawn.tolist()])
    c = replace(ONES, node_exchange=1.7, network_exchange=1.5)
    assert ratio(c, NODE, "all_to_all.once8") == pytest.approx(1.7 * reached / 8, rel=0.01)
    assert ratio(c, NODE, "all_to_all.once1") == pytest.approx(1.7)
    far, c = tuple(range(16)), replace(c, node_exchange=0.0)
    assert ratio(c, far, "all_to_all.once8") == ratio(c, far, "all_to_all.top8")


def test_tokens_cross_once_to_every_node_that_has_experts_for_them() -> None:
    """Two nodes, 8 experts a token: of 8 copies 4 would cross, 1 - 1/256 of a token do."""
    c = replace(ONES, node_exchange=0.0, network_exchange=1.5)
    assert ratio(c, tuple(range(16)), "all_to_all.top8") == pytest.approx(1.5 * (255 / 256) / 4)
    assert ratio(c, tuple(range(16)), "all_to_all.top1") == pytest.approx(1.5)
    assert ratio(c, ALL, "all_to_all.top2") == pytest.approx(1.5 * 3 * (1 - 9 / 16) / (2 * 3 / 4))


def test_routed_tokens_do_not_crowd_and_take_at_least_what_the_node_does() -> None:
    pair = tuple(range(16))
    assert ratio(doubled("jitter"), pair, "all_to_all.top8") == ratio(
        StepConstants(), pair, "all_to_all.top8"
    )
    exchange = Exchange(("dp",), algorithm="all_to_all.top8")
    near = LINKS.exchange_cost(exchange, 64e6, NODE).seconds
    c = replace(ONES, node_exchange=100.0)
    assert costs(c).exchange_cost(exchange, 64e6, pair).seconds == pytest.approx(100.0 * near)


def test_links_say_what_flows() -> None:
    exchange = Exchange(("dp",), algorithm="all_reduce")
    assert costs().flows(exchange, 1e6, (0, 8)) == LINKS.flows(exchange, 1e6, (0, 8))


# ------------------------------------------------------------------------------------------ a work


def test_a_cost_is_the_sum_of_its_parts_and_as_sure_as_its_weakest_operator() -> None:
    model = costs(software=CLASSES["fused"])
    found = model.cost(work(*STEP))
    assert found.seconds == pytest.approx(sum(model.parts(work(*STEP)).values()))
    assert (
        found.basis == "extrapolated" and model.cost(work(matmul(4096, 4096, 4096))).basis == "interpolated"
    )


def test_a_work_of_totals_only_costs_what_its_kernels_say() -> None:
    totals = Work("F", 1, dtype="bfloat16", flops=1e12, bytes=1e9)
    assert costs().cost(totals) == KERNELS.cost(totals)
    assert isinstance(costs().cost(Work("F")), Cost) and costs().cost(Work("F")).seconds == 0.0
