"""Prices of an engine that serves: casts leave nothing behind, small sums are its own, and all else is what it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costs.collective.one_shot import OneShotSums
from meshwright.costs.kernel.curve import GpuKernels, gpu_costs
from meshwright.costs.kernel.packaged import load_kernel_profile
from meshwright.costs.roofline import Roofline
from meshwright.costs.serving_costs import FUSED, ONE_SHOT, serving_costs
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.operator import Operator


def product(rows: int, columns: int = 8192, inner: int = 8192) -> Operator:
    return Operator("matmul", 2.0 * rows * columns * inner, 0.0, (rows, columns, inner))


@pytest.mark.parametrize("chip", ["H100", "B200"])
def test_a_decoding_product_in_float8_pays_no_launch_of_a_cast(chip: str) -> None:
    """Of one row, which has hardly any bytes to cast, it takes by the launches less than with the cast apart, up to what the
    tables' corrections make of them; and less than in 16 bits, whose weights are twice as large."""
    cluster = Cluster(f"1x8x{chip}")
    engine, _ = serving_costs(cluster)
    apart = replace(engine, casts="apart")
    profile = load_kernel_profile(chip.lower())
    launches = [profile.curve("gemm", dtype).constants["launch_s"] for dtype in ("fp8", "bfloat16")]  # type: ignore[union-attr]
    one = product(1)
    saved_s = apart.operator(one, "float8").seconds - engine.operator(one, "float8").seconds
    assert saved_s == pytest.approx(launches[0] - launches[1], rel=0.3)
    assert engine.operator(one, "float8").seconds < 0.8 * engine.operator(one, "bfloat16").seconds


def test_products_in_16_bits_and_all_but_small_sums_cost_what_they_did() -> None:
    """Kernels of `gpu_costs`; the assumptions say what differs."""
    cluster = Cluster("2x8xH100")
    engine, said = serving_costs(cluster)
    kernels, before = gpu_costs(cluster)
    assert isinstance(kernels, GpuKernels) and isinstance(engine.links, OneShotSums)
    for rows in (1, 500):
        assert engine.operator(product(rows), "bfloat16") == kernels.operator(product(rows), "bfloat16")
    assert said == (*before, FUSED, ONE_SHOT)


def test_rooflines_and_what_somebody_names_stay_as_they_are() -> None:
    """A chip that borrows kernels has an engine as well; without NCCL's links none of its own."""
    bare = Cluster("1x8xL40S")
    costs, said = serving_costs(bare)
    assert isinstance(costs, Roofline) and FUSED not in said
    named, told = serving_costs(replace(bare, costs="roofline"))
    assert isinstance(named, Roofline) and "roofline" in told[0]
    near, told = serving_costs(replace(bare, costs="nearest_kernels"))
    assert near.casts == "fused" and near.family == "h100" and FUSED in told and ONE_SHOT not in told
