"""Borrowed kernels: published ones come back, others are near, and what cannot be borrowed is refused."""

from __future__ import annotations

import json
from importlib import resources
from statistics import median
from typing import Any

import pytest

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.kernel.borrowed import borrowed_profile
from meshwright.costs.kernel.curve import GpuKernels
from meshwright.costs.kernel.packaged import BORROWED, load_kernel_profile
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.costs.step.step_costs import StepCosts
from meshwright.specs import Cluster, SpecError
from meshwright.specs.cluster.device import load_device
from meshwright.specs.operator import Operator
from meshwright.specs.plan.software import software_class

TERA = 1e12


def kernels(name: str) -> GpuKernels:
    return GpuKernels(load_device(name), NcclCollectives(Cluster(f"8x{name}")), casts="apart")


def product_rate(name: str, m: int, n: int, k: int, dtype: str = "bfloat16") -> float:
    """TFLOP/s of a product alone, at the device's own power limit."""
    own = kernels(name)
    power = StepCosts(own, own.links, packaged_step_profile().fit.typical, software_class("")).power_factor
    operator = Operator("matmul", 2.0 * m * n * k, 0.0, (m, n, k))
    return 2.0 * m * n * k / (own.operator(operator, dtype).seconds * power) / TERA


def published(name: str) -> dict[str, Any]:
    path = resources.files("meshwright.costs") / "profiles" / f"{name}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize("name", BORROWED)
def test_published_kernels_come_back_without_bias_and_say_how_far_off_they_are(name: str) -> None:
    profile = load_kernel_profile(name)
    assert profile.lender == "h100" and profile.chip.source and "MIT" in profile.licence
    for curve in profile.curves:
        assert abs(curve.bias) < 0.01 and curve.median_error <= 0.11 and curve.p80_error <= 0.25
    rows = published(name)["kernels"][0]["rows"]
    ratios = [product_rate(name.upper(), m, n, k) * us / (2e-6 * m * n * k) for m, n, k, us in rows]
    assert median(ratios) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("name", "size", "rate"),  # PyTorch on MI350X: HazyResearch/HipKittens, analysis/mi350x_data_to_log.json
    [("MI350X", 4096, 1037.8), ("MI350X", 8192, 1116.7), ("MI350X", 16384, 1039.9)],
)
def test_products_of_a_chip_that_nothing_was_moved_to_are_near(name: str, size: int, rate: float) -> None:
    assert product_rate(name, size, size, size) == pytest.approx(rate, rel=0.12)


@pytest.mark.parametrize(
    (
        "name",
        "n",
        "dtype",
        "rate",
    ),  # AMD's largest sustained rates (ROCm blogs, "Max-Achievable FLOPs"): best of many shapes
    [("MI325X", 4864, "bfloat16", 831.4), ("MI325X", 3648, "float8", 1408.1)],
)
def test_no_product_is_above_what_the_vendor_calls_achievable(
    name: str, n: int, dtype: str, rate: float
) -> None:
    assert 0.8 * rate < product_rate(name, 4096, n, 32896, dtype) < rate


def test_attention_goes_back_as_it_was_measured_and_the_steps_of_nobody_are_said() -> None:
    own = kernels("MI355X")
    shape = (4, 32, 8, 8192, 128, 1)
    forward, backward = (
        own.operator(Operator("attention", 1.0, 1.0, shape, phase=phase), "bfloat16")
        for phase in ("forward", "backward")
    )
    pairs = 4 * 32 * 8192**2 * 128
    assert 2 * pairs / forward.seconds / TERA == pytest.approx(
        1319, rel=0.15
    )  # aiter's README, the same shape
    assert 5 * pairs / backward.seconds / TERA == pytest.approx(775, rel=0.15)
    assert forward.basis == "extrapolated" and own.is_borrowed and not kernels("H100").is_borrowed
    assert any("moved to what few published kernels of MI355X" in line for line in own.assumptions)
    assert any("data sheets" in line for line in kernels("MI325X").assumptions)


def test_what_cannot_be_borrowed_is_refused() -> None:
    data, lender = published("mi300x"), load_kernel_profile("h100")
    first = data["kernels"][0]
    with pytest.raises(SpecError, match="version 9"):
        borrowed_profile({**data, "version": 9}, lender)
    with pytest.raises(SpecError, match="no curve of gemm in int8"):
        borrowed_profile({**data, "kernels": [{**first, "dtype": "int8"}]}, lender)
    with pytest.raises(SpecError, match="columns"):
        borrowed_profile({**data, "kernels": [{**first, "columns": ["m", "n", "k", "ms"]}]}, lender)


def test_constants_of_a_family_without_steps_are_medians() -> None:
    fit = packaged_step_profile().fit
    assert fit.typical.matmul == sorted(each.matmul for each in fit.constants.values())[1]
    assert fit.typical.gap_s == sorted(each.gap_s for each in fit.constants.values())[1]
