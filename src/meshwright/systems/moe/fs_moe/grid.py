"""The paper's 1,458 layers on its two clusters, by its constants: what each schedule takes, and in how many chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from statistics import fmean
from typing import NamedTuple

from meshwright.specs.error import UnknownNameError
from meshwright.systems.moe.fs_moe.mechanism import (
    MOST_CHUNKS,
    ExpertLayer,
    LinearCost,
    best_chunks,
    hole_seconds,
    layer_seconds,
    one_stream_seconds,
)

MILLISECONDS, BYTES = 1e-3, 2  # products run at the rate of 16-bit tensor cores
TOP_K = 2
BATCHES, HEADS, WIDTHS, RATIOS = (1, 2, 4), (8, 16, 32), (1024, 2048, 4096), (2, 3, 4)
CAPACITIES = (1.2, 2.4, 1.0)  # the last: without a limit, tokens evenly spread
PRODUCTS = {"simple": 2, "mixtral": 3}  # of a feed-forward part


class FittedCluster(NamedTuple):
    """A cluster's constants as printed: (milliseconds of the startup, milliseconds of a byte or multiply-add)."""

    node: int
    lengths: tuple[int, int, int]
    all_to_all: tuple[float, float]
    all_gather: tuple[float, float]
    reduce_scatter: tuple[float, float]
    all_reduce: tuple[float, float]
    product: tuple[float, float]

    def cost(self, name: str, units: float, factor: float = 1.0) -> LinearCost:
        """Of so many units; `factor` kernels, among which these are divided."""
        startup, rate = (value * MILLISECONDS for value in getattr(self, name))
        return LinearCost(factor * startup, rate, units)


FITTED = {
    "A": FittedCluster(
        8, (512, 1024, 2048),
        (2.87e-1, 2.21e-7), (3.37e-1, 2.32e-6), (3.95e-1, 2.34e-7), (5.11e-1, 4.95e-6), (4.26e-2, 2.29e-11)
    ),
    "B": FittedCluster(
        4, (256, 512, 1024),
        (1.75e-1, 3.06e-7), (3.20e-2, 1.68e-7), (3.91e-2, 1.67e-7), (8.37e-2, 5.99e-7), (9.24e-2, 4.42e-11)
    ),
}  # fmt: skip


class GridSetting(NamedTuple):
    """A layer of the grid."""

    batch: int
    num_heads: int
    length: int
    width: int
    ratio: int
    capacity: float
    feed_forward: str


class PricedLayer(NamedTuple):
    """Experts of a setting, its attention (forward; a backward is two of them) and the gradients that are reduced."""

    experts: ExpertLayer
    attention_s: float
    gradients_s: float


def fitted(cluster: str) -> FittedCluster:
    """A or B. Raises UnknownNameError."""
    if cluster not in FITTED:
        raise UnknownNameError("cluster of FSMoE", cluster, FITTED)
    return FITTED[cluster]


def settings(cluster: str) -> Iterator[GridSetting]:
    """All 1,458 of a cluster. Raises UnknownNameError."""
    lengths = fitted(cluster).lengths
    for row in product(BATCHES, HEADS, lengths, WIDTHS, RATIOS, CAPACITIES, PRODUCTS):
        yield GridSetting(*row)


def priced(cluster: str, setting: GridSetting) -> PricedLayer:
    """What a setting costs. Sizes as NCCL's tests count them: of an all-to-all what a device has, of an all-gather and a
    reduce-scatter the whole, which the devices of a node make together; they share an expert's matrices and attention."""
    rates = fitted(cluster)
    tokens = setting.batch * setting.length
    rows, width = TOP_K * setting.capacity * tokens, setting.width
    sent, num_products = rows * width * BYTES, PRODUCTS[setting.feed_forward]
    experts = ExpertLayer(
        rates.cost("all_to_all", sent),
        rates.cost("all_gather", rates.node * sent),
        rates.cost("product", num_products * rows * width * setting.ratio * width, num_products),
        rates.cost("reduce_scatter", rates.node * sent),
    )
    pairs = (
        2 * setting.batch * setting.length**2 * width
    )  # scores, and what they weigh; heads cut, and add nothing
    attention = rates.cost("product", 4 * tokens * width**2 + pairs, 6)
    reduced = rates.cost("all_reduce", 4 * width**2 * BYTES / rates.node)
    return PricedLayer(experts, attention.seconds(), reduced.seconds())


def tutel_seconds(layer: PricedLayer) -> float:
    """A step of one layer: exchanges on one stream, one degree for both passes, gradients reduced behind them."""
    forward, backward = layer.experts, layer.experts.backward()
    experts_s = min(
        one_stream_seconds(forward, chunks) + one_stream_seconds(backward, chunks)
        for chunks in range(1, MOST_CHUNKS + 1)
    )
    return experts_s + 3 * layer.attention_s + layer.gradients_s


def improved_seconds(layer: PricedLayer) -> float:
    """Likewise, with gradients reduced beside attention's backward."""
    return tutel_seconds(layer) - min(layer.gradients_s, 2 * layer.attention_s)


def one_by_one_seconds(layer: PricedLayer) -> float:
    """Nothing beside anything else, as in DeepSpeed-MoE."""
    whole = sum(one_stream_seconds(each, 1) for each in (layer.experts, layer.experts.backward()))
    return whole + 3 * layer.attention_s + layer.gradients_s


def fs_moe_seconds(layer: PricedLayer) -> float:
    """On three resources, each pass in its own number of chunks; gradients of a layer like this one beside attention's
    backward and in the hole of its experts', as far as they go there."""
    forward, backward = layer.experts, layer.experts.backward()
    left_s = max(0.0, layer.gradients_s - 2 * layer.attention_s)
    chunks = best_chunks(backward, left_s)
    backward_s = layer_seconds(backward, chunks, left_s)
    return layer_seconds(forward, best_chunks(forward)) + backward_s + 3 * layer.attention_s


SCHEDULES = {
    "Tutel": tutel_seconds,
    "Tutel-Improved": improved_seconds,
    "DeepSpeed-MoE": one_by_one_seconds,
    "FSMoE": fs_moe_seconds,
}


@cache
def mean_speed_up(cluster: str, schedule: str = "FSMoE") -> float:
    """Mean over the grid of Tutel's seconds over a schedule's. Raises UnknownNameError."""
    if schedule not in SCHEDULES:
        raise UnknownNameError("schedule of FSMoE's grid", schedule, SCHEDULES)
    layers = [priced(cluster, setting) for setting in settings(cluster)]
    return fmean(tutel_seconds(layer) / SCHEDULES[schedule](layer) for layer in layers)


@cache
def num_with_two_degrees(cluster: str) -> int:
    """Settings whose passes are best in different numbers of chunks."""
    found = 0
    for setting in settings(cluster):
        layer = priced(cluster, setting)
        backward = layer.experts.backward()
        left_s = max(0.0, layer.gradients_s - 2 * layer.attention_s)
        found += best_chunks(layer.experts) != best_chunks(backward, left_s)
    return found


def hidden_share(cluster: str) -> float:
    """Of the seconds of gradients that attention's backward leaves, what holes of experts' backward hide, over the grid."""
    left, hidden = 0.0, 0.0
    for setting in settings(cluster):
        layer = priced(cluster, setting)
        left_s = max(0.0, layer.gradients_s - 2 * layer.attention_s)
        backward = layer.experts.backward()
        left += left_s
        hidden += min(left_s, hole_seconds(backward, best_chunks(backward, left_s)))
    return hidden / left
