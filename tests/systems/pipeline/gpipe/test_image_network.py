"""ResNet-101 and AmoebaNet-D: FLOPs and parameters as published, cuts by hand."""

from __future__ import annotations

import pytest

from meshwright.systems.pipeline.gpipe import image_network
from meshwright.systems.pipeline.gpipe.image_network import (
    AMOEBANET_BALANCES,
    P40,
    RESNET_BALANCES,
    Kernels,
    Layer,
    amoebanet_d,
    cut,
    data_bytes,
    resnet_101,
)


def test_resnet_has_the_published_multiply_adds() -> None:
    """He et al., table 1: 7.6e9 for the 101 layers; to their rounding and ours of strides (torchvision counts 7.8e9)."""
    assert sum(layer.flops for layer in resnet_101()) / 2 == pytest.approx(7.7e9, rel=0.03)


# Table 1 of the paper as torchgpipe's docs/benchmarks.rst quotes it: cells, filters -> millions of parameters
@pytest.mark.parametrize(
    ("num_cells", "num_filters", "millions"),
    [(18, 208, 82), (18, 416, 318), (18, 544, 542), (36, 544, 1050), (72, 512, 1800)],
)
def test_amoebanet_has_the_published_parameters(
    monkeypatch: pytest.MonkeyPatch, num_cells: int, num_filters: int, millions: float
) -> None:
    """Weights of all convolutions and of the classifier; those of normalisation are a thousandth. Billions: two digits."""
    weights = []

    def counted(taken: float, made: float, area: int, *sizes: float) -> Kernels:
        weights.append(taken * made * area)
        return real(taken, made, area, *sizes)

    real = image_network.convolution
    monkeypatch.setattr(image_network, "convolution", counted)
    layers = amoebanet_d(num_cells, num_filters)
    classifier = 1000 * 4 * 4 * num_filters
    assert (sum(weights) + classifier) / 1e6 == pytest.approx(millions, rel=0.03 if millions > 1000 else 0.01)
    assert len(layers) == num_cells + 6


@pytest.mark.parametrize(
    ("layers", "balances"), [(resnet_101(), RESNET_BALANCES), (amoebanet_d(), AMOEBANET_BALANCES)]
)
def test_a_balance_cuts_all_layers(layers: list[Layer], balances: dict[object, tuple[int, ...]]) -> None:
    whole = sum(layer.forward_s(P40) for layer in layers)
    for balance in balances.values():
        stages = cut(layers, balance, P40)
        assert sum(stages.forward_s) == pytest.approx(whole)
        assert len(stages.boundary_bytes) == len(balance) - 1


def test_what_crosses_a_boundary_includes_what_is_added_later() -> None:
    layers = resnet_101()
    assert layers[3].output_bytes == data_bytes(64, 56)  # between bottlenecks: one tensor
    assert layers[8].output_bytes == data_bytes(64, 56) + data_bytes(
        64, 56
    )  # within the first: and its input
    assert amoebanet_d()[8].output_bytes == 2 * data_bytes(1024, 28)  # a cell reads the last two outputs


def test_a_kernel_takes_its_flops_or_its_bytes() -> None:
    large = Layer(image_network.convolution(256, 256, 9, 14, 14), 0.0)
    assert large.forward_s(P40) == 2 * 256 * 256 * 9 * 14**2 / P40.flops_per_s
    narrow = Layer(image_network.convolution(8, 8, 1, 56, 56), 0.0)
    assert narrow.forward_s(P40) == 2 * data_bytes(8, 56) / P40.bytes_per_s
