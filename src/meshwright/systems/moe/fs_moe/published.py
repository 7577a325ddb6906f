"""Parts of four published layers, and what a step of each takes by them under the paper's schedules."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from meshwright.systems.moe.fs_moe.grid import FITTED, MILLISECONDS, SCHEDULES, PricedLayer
from meshwright.systems.moe.fs_moe.mechanism import ExpertLayer, LinearCost

PRODUCTS = {"mixtral": 3, "gpt-2": 2}


class LayerParts(NamedTuple):
    """Milliseconds of one layer's parts in a pass: both all-to-alls, gradients, all-gather, reduce-scatter, experts,
    attention."""

    all_to_all: float
    all_reduce: float
    all_gather: float
    reduce_scatter: float
    expert: float
    attention: float


# Forward and backward, of a Mixtral and a GPT-2 with experts on the paper's clusters A and B.
LAYERS = {
    ("A", "mixtral"): (LayerParts(19.5, 0, 12.3, 13.7, 15.6, 4.1), LayerParts(19.6, 26.45, 12.3, 13.7, 31.8, 7.7)),
    ("A", "gpt-2"): (LayerParts(6.9, 0, 4.6, 5.4, 3.1, 1.7), LayerParts(6.9, 5.26, 4.6, 5.4, 6.1, 3.6)),
    ("B", "mixtral"): (LayerParts(28.3, 0, 39.6, 40.8, 58.5, 9.5), LayerParts(30.8, 32.1, 40.1, 41.8, 119.7, 18.1)),
    ("B", "gpt-2"): (LayerParts(11.2, 0, 15.5, 15.7, 6.7, 4.5), LayerParts(11.2, 7.3, 15.5, 15.2, 13, 8.6)),
}  # fmt: skip


def priced(cluster: str, model: str) -> PricedLayer:
    """The forward's parts with the cluster's startups; a backward's experts and attention are two of a forward's, as they
    are in the table within 8 %."""
    forward, backward = LAYERS[cluster, model]
    rates = FITTED[cluster]

    def linear(milliseconds: float, startup: float) -> LinearCost:
        return LinearCost(startup * MILLISECONDS, MILLISECONDS, milliseconds - startup)

    experts = ExpertLayer(
        linear(forward.all_to_all / 2, rates.all_to_all[0]),
        linear(forward.all_gather, rates.all_gather[0]),
        linear(forward.expert, PRODUCTS[model] * rates.product[0]),
        linear(forward.reduce_scatter, rates.reduce_scatter[0]),
    )
    return PricedLayer(experts, forward.attention * MILLISECONDS, backward.all_reduce * MILLISECONDS)


def speed_up(cluster: str, model: str, over: str) -> float:
    """Seconds of a layer's step under another schedule over FSMoE's."""
    layer = priced(cluster, model)
    return SCHEDULES[over](layer) / SCHEDULES["FSMoE"](layer)


def speed_up_of_models(over: str, which: str) -> float:
    """The least, the most or the mean of the four."""
    found = [speed_up(*each, over) for each in LAYERS]
    return {"least": min(found), "most": max(found), "mean": fmean(found)}[which]
