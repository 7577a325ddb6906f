"""Kernel curves: physical sense, profiles of the package, prices of operators, and the cost model of a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.kernel.chip import Columns
from meshwright.costs.kernel.curve import (
    BACKWARD_PRODUCTS,
    BACKWARD_RATE,
    GpuKernels,
    gpu_costs,
    nearest_family,
    nearest_kernels,
)
from meshwright.costs.kernel.grid import CorrectionGrid, corners
from meshwright.costs.kernel.moe import balanced_loads, power_law_loads
from meshwright.costs.kernel.packaged import load_kernel_profile
from meshwright.costs.kernel.profile import FORMULAS, KernelProfile
from meshwright.costs.roofline import Roofline
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.device import DeviceSpec, load_device
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator, OperatorKind, Phase

H100_PEAK = 989.4e12


def kernels(device: DeviceSpec | None = None, **options: object) -> GpuKernels:
    cluster = Cluster("1x8xH100")
    return GpuKernels(device or cluster.devices[0], Roofline(cluster), **options)  # type: ignore[arg-type]


def matmul(m: int, n: int, k: int, phase: Phase = "forward", size: int = 2) -> Operator:
    num_results = 2 if phase == "weight_gradient" else 1
    num_bytes = (m * k + k * n + num_results * m * n) * size
    return Operator("matmul", 2.0 * m * n * k, num_bytes, (m, n, k), phase=phase)


def attention(batch: int, sequence: int, phase: Phase = "forward", is_causal: int = 1) -> Operator:
    shape = (batch, 32, 8, sequence, 128, is_causal)
    return Operator("attention", 1.0, 1.0, shape, phase=phase)


# ------------------------------------------------------------------------------------------ tables and formulas


def test_a_grid_gives_its_nodes_and_lines_between_and_is_flat_outside() -> None:
    grid = CorrectionGrid(((0.0, 1.0), (0.0, 2.0)), (0.0, 0.2, 0.4, 0.6))
    points = np.array([[0.0, 2.0], [1.0, 0.0], [0.5, 1.0], [-9.0, -9.0], [9.0, 9.0]])
    assert np.log(grid.factor(points)) == pytest.approx([0.2, 0.4, 0.3, 0.0, 0.6])


def test_weights_of_corners_sum_to_one() -> None:
    points = np.random.default_rng(0).uniform(-1, 5, (50, 3))
    indices, weights = corners(((0.0, 1.0, 4.0), (0.0, 2.0), (1.0, 2.0, 3.0)), points)
    assert indices.shape == weights.shape == (50, 8)
    assert indices.min() >= 0 and indices.max() < 18
    assert weights.sum(axis=1) == pytest.approx(np.ones(50))


def _gemm_columns(m: list[float], n: float, k: float) -> Columns:
    sizes = {"m": np.array(m), "n": np.full(len(m), n), "k": np.full(len(m), k)}
    return {**sizes, "element_bytes": np.full(len(m), 2.0), "peak": np.full(len(m), H100_PEAK)}


def test_a_product_pays_for_a_tile_that_it_does_not_fill() -> None:
    curve = load_kernel_profile("h100").curve("gemm", "bfloat16")
    assert curve is not None
    chip = load_kernel_profile("h100").chip
    exact, more = FORMULAS["gemm"].seconds(
        curve.constants, chip, _gemm_columns([2048.0, 2049.0], 8192.0, 8192.0)
    )
    assert more > exact  # one row more is one row of tiles more, 0.05 % more work
    assert more / exact - 1 > 5 * (1 / 2048)


@pytest.mark.parametrize("name", ["a100", "h100", "b200"])
def test_a_profile_states_source_licence_and_errors_and_constants_are_physical(name: str) -> None:
    profile = load_kernel_profile(name)
    assert "Apache-2.0" in profile.licence and "aiconfigurator" in profile.source and profile.chip.source
    assert profile.curves
    for curve in profile.curves:
        ranges = {item.name: (item.low, item.high) for item in FORMULAS[curve.formula].constants}
        for constant, value in curve.constants.items():
            low, high = ranges[constant]
            assert low * 0.999 <= value <= high * 1.001, (curve.formula, curve.dtype, constant)
        assert 0 < curve.median_error < curve.p80_error < 1
        assert curve.num_shapes > 100


def test_held_out_errors_of_the_package_meet_the_target() -> None:
    for name in ("a100", "h100", "b200"):
        for curve in load_kernel_profile(name).curves:
            if curve.formula != "moe":
                assert curve.median_error <= 0.08, (name, curve.formula, curve.dtype)


def test_a_profile_survives_its_file_form_and_other_versions_are_refused() -> None:
    profile = load_kernel_profile("a100")
    data = profile.to_dict()
    assert KernelProfile.from_dict(data).to_dict() == data
    with pytest.raises(SpecError, match="version 99"):
        KernelProfile.from_dict({**data, "version": 99})
    with pytest.raises(SpecError, match="no kernel profile"):
        load_kernel_profile("abacus")


def test_expert_loads_keep_their_pairs() -> None:
    loads = balanced_loads(num_tokens=1024, top_k=8, num_experts=64, ep=4)
    assert loads.routed == 2048 and loads.touched == 16 and loads.tiles == 16 * 2
    hot = power_law_loads(1024, 8, 64, 4, 1.2)
    assert loads.routed < hot.routed <= 1024 * 8
    assert 1 <= hot.touched <= 16
    alone = power_law_loads(1024, 8, 64, 1, 1.01)
    assert alone.routed <= 1024 * 8


# ---------------------------------------------------------------------------------------------- prices of operators


def test_a_large_product_runs_between_half_and_all_of_the_peak() -> None:
    operator = matmul(8192, 8192, 8192)
    estimate = kernels().operator(operator, "bfloat16")
    assert 0.45 * H100_PEAK < operator.flops / estimate.seconds < 0.95 * H100_PEAK
    assert estimate.basis == "interpolated"
    assert 0 < estimate.error < 0.5


def test_float8_is_faster_than_bfloat16_where_products_are_large_and_casts_matter_where_small() -> None:
    model = kernels()
    large, small = matmul(16384, 16384, 16384), matmul(1024, 1024, 1024)
    gain = {
        operator: model.operator(operator, "bfloat16").seconds / model.operator(operator, "float8").seconds
        for operator in (large, small)
    }
    assert 1.2 < gain[large] < 2.2
    assert gain[small] < gain[large]


def test_a_weight_gradient_pays_for_adding_to_the_sum() -> None:
    model = kernels()
    plain = model.operator(matmul(4096, 4096, 64), "bfloat16").seconds
    summed = model.operator(matmul(4096, 4096, 64, "weight_gradient"), "bfloat16").seconds
    assert plain < summed < 2 * plain


def test_attention_grows_with_the_square_and_backward_is_the_documented_multiple() -> None:
    model = kernels()
    forward = [model.operator(attention(1, s), "bfloat16").seconds for s in (4096, 8192, 16384)]
    assert 2.5 < forward[1] / forward[0] < 4.5 and 3.0 < forward[2] / forward[1] < 4.5
    backward = model.operator(attention(1, 8192, "backward"), "bfloat16")
    assert backward.seconds == pytest.approx(forward[1] * BACKWARD_PRODUCTS / BACKWARD_RATE)
    assert backward.basis == "extrapolated"
    full = model.operator(attention(1, 8192, is_causal=0), "bfloat16").seconds
    assert 1.6 < full / forward[1] < 2.1


@pytest.mark.parametrize("kind", ["norm", "elementwise", "activation", "embedding", "loss", "optimizer"])
def test_other_operators_are_bound_by_memory(kind: OperatorKind) -> None:
    model, num_bytes = kernels(), 1e9
    estimate = model.operator(Operator(kind, 1.0, num_bytes, (1000, 1000)), "bfloat16")
    assert 0.99 * num_bytes / 3350e9 < estimate.seconds < 3 * num_bytes / 3350e9
    twice = model.operator(Operator(kind, 1.0, 2 * num_bytes, (1000, 2000)), "bfloat16")
    assert 1.5 < twice.seconds / estimate.seconds <= 2.0


def test_a_relative_is_scaled_by_its_data_sheet_and_says_so() -> None:
    h100 = load_device("H100")
    h200 = replace(h100, name="H200", memory_bandwidth_bytes_per_s=4800e9)
    wide, tall = matmul(8, 8192, 28672), matmul(8192, 8192, 8192)
    near, far = kernels(h100), kernels(h200)
    assert far.operator(wide, "bfloat16").seconds < 0.85 * near.operator(wide, "bfloat16").seconds
    assert far.operator(tall, "bfloat16").seconds == pytest.approx(
        near.operator(tall, "bfloat16").seconds, rel=0.05
    )
    assert far.operator(tall, "bfloat16").basis == "extrapolated"
    assert far.operator(tall, "bfloat16").error > near.operator(tall, "bfloat16").error
    assert any("H200" in sentence for sentence in far.assumptions)


def test_a_shape_far_outside_the_table_is_extrapolated() -> None:
    assert kernels().operator(matmul(2**21, 4096, 4096), "bfloat16").basis == "extrapolated"


def test_a_format_without_a_peak_is_refused() -> None:
    model = kernels(load_device("A100-80"))
    with pytest.raises(SpecError, match="float8"):
        model.operator(matmul(64, 64, 64, size=1), "float8")


def test_experts_cost_more_when_more_of_them_are_touched_and_when_rows_are_many() -> None:
    model = kernels()
    few, all_of_them = balanced_loads(2, 2, 64, 1), balanced_loads(64, 2, 64, 1)
    many = balanced_loads(16384, 2, 64, 1)
    times = [model.experts(loads, 4096, 2048, "bfloat16").seconds for loads in (few, all_of_them, many)]
    assert times == sorted(times)
    flops = 2 * 3 * 4096 * 2048 * many.routed
    assert 0.1 * H100_PEAK < flops / times[2] < H100_PEAK
    assert model.experts(many, 4096, 2048, "bfloat16", is_gated=False).seconds < times[2]


def test_generation_reads_the_cache_and_heads_that_do_not_share_it_pay() -> None:
    model, cache_bytes = kernels(), 2 * 64 * 8 * 8192 * 128 * 2
    shared = model.generation(64, 32, 8, 8192, 128)
    assert 0.6 * cache_bytes / 3350e9 < shared.seconds < 2 * cache_bytes / 3350e9
    assert model.generation(64, 32, 32, 8192, 128).seconds > 3 * shared.seconds
    assert shared.basis == "interpolated"


# ------------------------------------------------------------------------------------------------- the cost model


def test_work_is_the_sum_of_its_operators_with_a_weighted_interval() -> None:
    model = kernels()
    first, second = matmul(4096, 4096, 4096), attention(1, 4096)
    work = Work("F", dtype="bfloat16", operators=(replace(first, count=3), second))
    cost = model.cost(work)
    parts = [model.operator(first, "bfloat16"), model.operator(second, "bfloat16")]
    assert cost.seconds == pytest.approx(3 * parts[0].seconds + parts[1].seconds)
    assert min(part.error for part in parts) <= cost.uncertainty <= max(part.error for part in parts)
    assert cost.basis == "interpolated"
    assert model.cost(work, load_device("A100-80")).seconds > cost.seconds


def test_work_without_operators_is_a_roofline_nobody_measured() -> None:
    assert kernels().cost(Work("T")).seconds == 0
    cost = kernels().cost(Work("T", dtype="bfloat16", flops=1e15))
    assert cost.basis == "never seen" and cost.seconds > 1e15 / H100_PEAK


def test_a_cluster_of_gpus_gets_kernels_and_messages_of_measured_curves() -> None:
    cluster = Cluster("2x8xH100")
    costs, assumptions = gpu_costs(cluster)
    assert isinstance(costs, GpuKernels) and any("H100" in sentence for sentence in assumptions)
    exchange, devices = Exchange(("pp",), None, 1), (0, 8)
    links = NcclCollectives(cluster)
    assert costs.exchange_cost(exchange, 1 << 20, devices) == links.exchange_cost(exchange, 1 << 20, devices)
    assert costs.flows(exchange, 1 << 20, devices) == links.flows(exchange, 1 << 20, devices)


def test_a_cluster_without_measured_relatives_gets_the_roofline() -> None:
    costs, assumptions = gpu_costs(Cluster("1x8xMI250X"))
    assert isinstance(costs, Roofline) and any("roofline" in sentence for sentence in assumptions)
    with pytest.raises(SpecError, match="MI250X"):
        kernels(load_device("MI250X"))


def test_experts_cost_at_least_their_weights_and_their_products() -> None:
    cluster = Cluster("8xH100")
    costs, _ = gpu_costs(cluster)
    few, many = (
        Operator(
            "grouped_matmul",
            2.0 * 8 * rows * 4096 * 14336,
            2.0 * 8 * (rows * (4096 + 14336) + 4096 * 14336),
            (8, rows, 4096, 14336),
        )
        for rows in (16, 2048)
    )
    seconds = [costs.cost(Work("F", operators=(op,), dtype="bfloat16")).seconds for op in (few, many)]
    weights_s = 8 * 4096 * 14336 * 2 / cluster.devices[0].memory_bandwidth_bytes_per_s
    products_s = many.flops / cluster.devices[0].peak_flops_per_s("bfloat16")
    assert weights_s < seconds[0] < 2 * weights_s, "few tokens: the weights are read"
    assert products_s < seconds[1] < 2 * products_s, "many tokens: arithmetic"


def test_a_window_shortens_attention() -> None:
    costs, _ = gpu_costs(Cluster("8xH100"))
    full, windowed = (
        costs.cost(
            Work(
                "F",
                operators=(Operator("attention", 0.0, 0.0, (1, 32, 8, 8192, 128, last)),),
                dtype="bfloat16",
            )
        )
        for last in (1, 1024)
    )
    assert windowed.seconds < 0.5 * full.seconds


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("H100", "bfloat16"),
        ("H100", "float8"),
        ("H200", "float8"),
        ("B200", "bfloat16"),
        ("A100-80", "bfloat16"),
    ],
)
def test_what_was_prepared_together_is_what_each_is_asked_for_alone(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: tuple[Phase, ...] = ("forward", "weight_gradient")
    sizes = (1, 7, 128, 4096, 8191, 1 << 20)  # the ends are far outside what was measured
    operators = [matmul(m, n, 4096, phase) for m in sizes for n in sizes for phase in phases]
    operators += [
        attention(batch, sequence, phase) for batch in (1, 3) for sequence in sizes for phase in phases
    ]
    asked = [(operator, dtype) for operator in operators if dtype == "bfloat16" or operator.kind == "matmul"]
    device = Cluster(f"8x{name}").devices[0]
    alone, together = kernels(device), kernels(device)
    expected = [alone.operator(*each) for each in asked]
    assert "extrapolated" in {each.basis for each in expected}
    together.prepare(asked)
    monkeypatch.setattr(GpuKernels, "_evaluated", None)  # nothing is evaluated again
    assert [together.operator(*each) for each in asked] == expected


def test_a_chip_without_a_table_borrows_the_curves_of_the_nearest_one() -> None:
    """By FLOPs a byte; one with a relative keeps its own. A product that fills the chip scales by the peaks, one that waits
    for memory by the bandwidths."""
    cards = Cluster("1xRTX-PRO-6000")
    card, own = cards.devices[0], load_device("b200")
    near = nearest_kernels(cards)
    assert nearest_family(card) == near.family == "b200" and nearest_family(load_device("l40s")) == "h100"
    assert nearest_kernels(Cluster("1xA100-80")).family == "a100"
    lender = nearest_kernels(Cluster("1xB200"))
    for operator, ratio in (
        (matmul(8192, 8192, 8192), own.flops_per_s["bfloat16"] / card.flops_per_s["bfloat16"]),
        (matmul(1, 16384, 16384), own.memory_bandwidth_bytes_per_s / card.memory_bandwidth_bytes_per_s),
    ):
        seconds = [each.operator(operator, "bfloat16").seconds for each in (near, lender)]
        assert seconds[0] / seconds[1] == pytest.approx(ratio, rel=0.2)
    assert near.operator(matmul(64, 4096, 4096), "bfloat16").basis == "extrapolated"
    assert "B200" in near.assumptions[0] and "scaled to RTX-PRO-6000" in near.assumptions[0]
