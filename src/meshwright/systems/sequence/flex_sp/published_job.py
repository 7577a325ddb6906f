"""The paper's jobs: its cost constants, batches with the lengths of Wikipedia, and steps of both baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from meshwright.specs.error import UnknownNameError
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.systems.sequence.flex_sp.bucket import Cuts
from meshwright.systems.sequence.flex_sp.layout import Packed
from meshwright.systems.sequence.flex_sp.mechanism import FlexSp, longest_first, packed_parts, prices_of
from meshwright.systems.sequence.published_lengths import WIKIPEDIA, drawn_sequences

MIB, GIB, KILO = 2**20, 2**30, 1024
NUM_GPUS, GPU_GIB = 64, 30  # eight nodes of eight A100-40GB, of which the authors' code plans with 30
BATCH = 512
NUM_BATCHES = 6  # of a claim, drawn with the seeds 0, 1, ...
STATE_BYTES = (
    16  # of a parameter under ZeRO-3, divided by all: 16-bit values and gradients, three of Adam in 32 bits
)
VOCABULARY = 50_257  # GPT's
# Bytes per second of an all-to-all by degree, measured by the authors on their cluster (flexsp_solver/solver.py).
RATES = {2: 119.54e9, 4: 104.07e9, 8: 96.5e9, 16: 10.33e9, 32: 5.94e9, 64: 4.87e9}


class PublishedModel(NamedTuple):
    """What the authors' code (flexsp_solver/solver.py of PKU-DAIR/Hetu-Galvatron, branch flexsp) says of a GPT: MiB kept of a
    token, milliseconds of a token's square, of a token, and of a micro-batch; its width and layers."""

    token_mib: float
    square_ms: float
    token_ms: float
    fixed_ms: float
    width: int
    layers: int


MODELS = {
    "7B": PublishedModel(4.4804, 5.128e-6, 0.18396, 629.36, 4096, 32),
    "13B": PublishedModel(4.2204, 9.2852e-6, 0.30602, 1132.56, 5120, 40),
    "30B": PublishedModel(3.4174, 15.4262e-6, 0.80357, 2789.36, 6656, 60),
}


def published_costs(model: str = "7B", thousands: int = 384, gpus: int = NUM_GPUS) -> SequenceCosts:
    """The authors' constants as costs, for lengths up to so many K. Groups have two GPUs at least, as in their code.

    Raises:
        UnknownNameError: there is no such model.
    """
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS)
    one = MODELS[model]
    parameters = 12 * one.layers * one.width**2 + (VOCABULARY + thousands * KILO) * one.width
    return SequenceCosts(
        square_s=one.square_ms / 1e3, token_s=one.token_ms / 1e3, fixed_s=one.fixed_ms / 1e3,
        token_bytes=one.token_mib * MIB, state_bytes=STATE_BYTES * parameters / gpus, capacity_bytes=GPU_GIB * GIB,
        # queries, keys, values and outputs of 16 bits, forward and backward
        exchange_bytes=4 * 2 * 2 * one.layers * one.width, rates={d: rate for d, rate in RATES.items() if d <= gpus},
        degrees=tuple(degree for degree in RATES if degree <= gpus),
    )  # fmt: skip


def wikipedia_batch(seed: int, thousands: int = 384, count: int = BATCH) -> tuple[int, ...]:
    """Lengths drawn from the bins of Wikipedia, cut at so many K tokens."""
    return tuple(drawn_sequences(WIKIPEDIA, count, thousands * KILO, np.random.default_rng(seed)))


class LockstepStep(NamedTuple):
    """A step in lockstep: its lengths, its micro-batches, and costs."""

    lengths: tuple[int, ...]
    parts: list[Packed]
    costs: SequenceCosts
    gpus: int

    @property
    def seconds(self) -> float:
        """Of all micro-batches."""
        return sum(packed.seconds for packed in self.parts)

    @property
    def exchange_s(self) -> float:
        """Seconds in which a GPU exchanges, in the mean."""
        return (
            sum(
                load.price.degree
                * self.costs.exchange_seconds([self.lengths[n] for n in load.members], load.price.degree)
                for packed in self.parts
                for load in packed.loads
            )
            / self.gpus
        )


@cache
def step(method: str, model: str, thousands: int, gpus: int, seed: int) -> LockstepStep:
    """A step by "flex_sp", by "static" groups of the fewest GPUs, a power of two, that hold the longest sequence allowed, or
    by "homogeneous" ones of the degree that is best for the batch.

    Raises:
        UnknownNameError: there is no such method.
    """
    costs, lengths = published_costs(model, thousands, gpus), wikipedia_batch(seed, thousands)
    if method == "flex_sp":
        return LockstepStep(lengths, FlexSp(lockstep=True).micro_batches(lengths, gpus, costs), costs, gpus)
    if method not in ("static", "homogeneous"):
        raise UnknownNameError("method", method, ("flex_sp", "static", "homogeneous"))
    least = costs.least_degree(thousands * KILO if method == "static" else max(lengths))
    degrees = [least] if method == "static" else [degree for degree in costs.degrees if degree >= least]
    found = (
        LockstepStep(lengths, homogeneous(lengths, gpus, costs, degree), costs, gpus) for degree in degrees
    )
    return min(found, key=lambda each: each.seconds)


def steps(method: str, model: str = "7B", thousands: int = 384, gpus: int = NUM_GPUS) -> list[LockstepStep]:
    """Steps of the same batches for every method."""
    return [step(method, model, thousands, gpus, seed) for seed in range(NUM_BATCHES)]


def homogeneous(
    lengths: Sequence[int], num_ranks: int, costs: SequenceCosts, degree: int, tries: int = 5
) -> list[Packed]:
    """Micro-batches of a step in lockstep whose groups are all of one degree, the best of some numbers of them."""
    prices = [price for price in prices_of(lengths, num_ranks, costs) if price.degree == degree]
    order, best_s = longest_first(lengths), math.inf
    best: list[Packed] = []
    cuts = Cuts([lengths[number] for number in order])
    count, tried = max(1, math.ceil(sum(lengths) / (num_ranks * costs.capacity_tokens) - 1e-9)), 0
    while not best or tried < tries:
        parts = [order[places.start : places.stop] for places in cuts.into(count)]
        found = packed_parts(lengths, parts, num_ranks, prices, best_s)
        if found:
            best, best_s = found, sum(packed.seconds for packed in found)
        count, tried = count + 1, tried + 1
    return best
