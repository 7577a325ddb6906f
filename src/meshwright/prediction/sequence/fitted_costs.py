"""`sequence_costs_of`: seconds and bytes of groups of ranks as a formula of lengths, fitted to a plan's own prices.

An algorithm that groups sequences asks for the cost of thousands of groups, and a price of each from programs would take
minutes. So a few microbatches, of long and of packed short sequences, are priced as this package prices plans, at every
degree that divides the ranks, and the formula of `SequenceCosts` is fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import RINGS, divides_heads
from meshwright.specs.sequence.sequence_costs import SequenceCosts

# Steps of so many microbatches are priced, and what one microbatch takes is their difference: what a step has once is not in
# it. Between one and three there are two that follow each other.
FEW, MORE = 1, 3
SHORTER = (1, 4, 16, 64)  # the longest sequence of a sample over its sequences
LEAST_TOKENS = 16  # of a rank in a sample: kernels of fewer are all launch
START = (
    1e-3  # of the cheapest price: a search that begins where a term is zero may not see what it would change
)


@dataclass(frozen=True)
class GroupPrice:
    """What one microbatch was priced at: `count` sequences of `length` tokens on `degree` ranks."""

    degree: int
    length: int
    count: int
    seconds: float
    held_bytes: float

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of all its sequences."""
        return (self.length,) * self.count

    @property
    def tokens_of_rank(self) -> float:
        """Tokens that each of its ranks has."""
        return self.length * self.count / self.degree


@dataclass(frozen=True)
class SequenceFit:
    """Costs as fitted, and the prices that they were fitted to."""

    costs: SequenceCosts
    prices: tuple[GroupPrice, ...]

    def error_of(self, price: GroupPrice) -> float:
        """Fitted seconds over the priced ones, less one."""
        return self.costs.seconds(price.lengths, price.degree) / price.seconds - 1

    @property
    def largest_error(self) -> float:
        """The worst |error| of the prices that it was fitted to."""
        return max(abs(self.error_of(price)) for price in self.prices)


def sequence_costs_of(plan: Plan, cluster: ClusterSpec, **given: Any) -> SequenceCosts:
    """What groups of the plan's ranks need for sequences; arguments and errors as of `fit_sequence_costs`."""
    return fit_sequence_costs(plan, cluster, **given).costs


def fit_sequence_costs(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    memory_bytes: float | None = None,
    profile: Profile | None = None,
    extrapolate: bool = False,
) -> SequenceFit:
    """Price microbatches of a plan at every degree and fit `SequenceCosts` to them; its ranks are dp x cp.

    Args:
        memory_bytes: what a device may use; None: all it has.
        profile, extrapolate: as of `predict`.

    Raises:
        PlanError: the plan has a pipeline, its parameters leave no room for tokens, or `predict` refuses it.
    """
    if plan.pp > 1:
        raise PlanError(
            f"groups of ranks that change by step with pp = {plan.pp}",
            allowed="pp = 1: a rank of a group has all layers",
        )
    pricer = _Pricer(plan, cluster, {"profile": profile, "extrapolate": extrapolate})
    degrees = _degrees(plan)
    available = min(memory_bytes or math.inf, cluster.memory_bytes)
    empty = _unfitted(plan, pricer, available)
    most = empty.least_degree(1) and empty.capacity_tokens
    samples = [sample for degree in degrees for sample in _samples(plan, degree, most)]
    prices = tuple(pricer.price(*sample) for sample in samples)
    token_bytes, state_bytes = (
        _memory_line(prices, empty.token_bytes) if len(prices) > 1 else (empty.token_bytes, empty.state_bytes)
    )
    empty = replace(empty, token_bytes=token_bytes, state_bytes=state_bytes, degrees=_told_degrees(plan))
    return SequenceFit(_fitted(plan, empty, prices, degrees), prices)


def _degrees(plan: Plan) -> tuple[int, ...]:
    """Degrees at which its microbatches are priced: those that divide its ranks, and that its kind can have."""
    num_ranks = plan.dp * plan.cp
    divisors = (degree for degree in range(1, num_ranks + 1) if num_ranks % degree == 0)
    return tuple(d for d in divisors if plan.context != "ulysses" or divides_heads(plan.model, plan.tp, d))


def _told_degrees(plan: Plan) -> tuple[int, ...]:
    """The degrees that a group can have, where not all can be: Ulysses divides heads, also those of ranks that do not divide
    all."""
    if plan.context != "ulysses":
        return ()
    every = range(1, plan.dp * plan.cp + 1)
    return tuple(degree for degree in every if divides_heads(plan.model, plan.tp, degree))


@dataclass(frozen=True)
class _Pricer:
    """What microbatches of a plan cost at any degree."""

    plan: Plan
    cluster: ClusterSpec
    given: Mapping[str, Any]

    def _predicted(self, degree: int, length: int, count: int, num_microbatches: int) -> Predicted:
        dp = self.plan.dp * self.plan.cp // degree
        workload = Workload(dp * count * num_microbatches, length)
        plan = self.plan.changed(cp=degree, dp=dp, workload=workload, microbatch_size=count)
        return predict(plan, self.cluster, **self.given)

    def price(self, degree: int, length: int, count: int) -> GroupPrice:
        """Seconds and bytes of a microbatch."""
        few, more = (self._predicted(degree, length, count, number) for number in (FEW, MORE))
        seconds = (more.step.value - few.step.value) / (MORE - FEW)
        return GroupPrice(degree, length, count, seconds, held_bytes(more))


def held_bytes(predicted: Predicted) -> float:
    """Bytes by which a plan fits its devices or does not, as `Predicted.rejected` counts them."""
    memory = predicted.memory
    return predicted.bound_bytes if memory is None else memory.allocated_bytes + memory.context_bytes


def _unfitted(plan: Plan, pricer: _Pricer, available_bytes: float) -> SequenceCosts:
    """Costs whose memory is known roughly, of one rank, and nothing else. What the optimizer's step holds hides what few
    tokens keep, so there are as many of them as it takes to see what one more adds."""
    longest = plan.workload.sequence_length
    length, shortest = (_whole(plan, 1, tokens) for tokens in (longest, longest / SHORTER[-1]))
    least, few, more = (
        held_bytes(pricer._predicted(1, tokens, count, MORE))
        for tokens, count in ((shortest, 1), (length, 1), (length, 2))
    )
    count = 1
    while few <= least:
        count *= 2
        few, more = more, held_bytes(pricer._predicted(1, length, 2 * count, MORE))
    slope = (more - few) / (length * count)
    state_bytes = max(least - slope * shortest, few - slope * length * count)
    return SequenceCosts(0.0, 0.0, 0.0, slope, state_bytes, available_bytes)


def _samples(plan: Plan, degree: int, most_tokens: float) -> list[tuple[int, int, int]]:
    """(degree, length, number of sequences) of the microbatches that are priced: one sequence of each length that fits, and
    short ones packed to as many tokens as the longest has."""
    longest = max(plan.workload.sequence_length, LEAST_TOKENS * degree)
    longest = int(min(longest, most_tokens * degree))
    wanted = [(longest / by, 1) for by in SHORTER] + [(longest / by, by) for by in SHORTER[1:]]
    found = {
        (degree, _whole(plan, degree, length), count)
        for length, count in wanted
        if length * count >= LEAST_TOKENS * degree
    }
    return sorted(found) or [(degree, _whole(plan, degree, longest), 1)]


def _whole(plan: Plan, degree: int, length: float) -> int:
    """A length near one that every layout over so many ranks, and tensor parallelism inside, divides."""
    step = 2 * degree * plan.tp
    return max(1, round(length / step)) * step


def _memory_line(prices: Sequence[GroupPrice], least: float) -> tuple[float, float]:
    """Bytes of a token, `least` at least, and of all else: least squares, raised so that no priced microbatch holds more than
    the line says."""
    tokens = np.array([price.tokens_of_rank for price in prices])
    held = np.array([price.held_bytes for price in prices])
    slope = float(np.polyfit(tokens, held, 1)[0]) if np.ptp(tokens) > 0 else float(held.max() / tokens.max())
    slope = max(slope, least)
    return slope, float(np.max(held - slope * tokens))


def _fitted(
    plan: Plan, empty: SequenceCosts, prices: Sequence[GroupPrice], degrees: Sequence[int]
) -> SequenceCosts:
    """Least squares of the logarithms of fitted over priced seconds, no term below zero."""
    from scipy.optimize import least_squares, nnls  # a quarter of a second that other commands need not wait

    apart = [degree for degree in degrees if degree > 1]
    seconds = np.array([price.seconds for price in prices])
    terms = _terms(prices, apart)
    scale = np.abs(terms).max(axis=0, initial=1e-12)
    first = nnls(terms / scale / seconds[:, None], np.ones(len(prices)))[0] / scale
    is_beside, unit = plan.context in RINGS, seconds.min() / scale
    unit = np.append(unit, seconds.min())

    def fitted_s(units: NDArray[np.float64]) -> NDArray[np.float64]:
        values = terms * (units * unit)[:-1]
        attention, exchange = values[:, 0], values[:, 3:].sum(axis=1)
        seen = np.maximum(attention, exchange) if is_beside else attention + exchange
        found: NDArray[np.float64] = np.maximum(values[:, 1:3].sum(axis=1) + seen, units[-1] * unit[-1])
        return found

    start = np.append(first, 1.02 * seconds.min()) / unit + START
    found = least_squares(lambda units: np.log(fitted_s(units) / seconds), start, bounds=(0.0, np.inf))
    square_s, token_s, fixed_s, exchange_s, *per_token, least_s = (found.x * unit).tolist()
    exchange_bytes, ring_bytes = exchanged_bytes(plan)
    sent = replace(empty, exchange_bytes=exchange_bytes, ring_bytes=ring_bytes)
    rates = {
        degree: (sent.exchange_bytes + (degree - 1) * sent.ring_bytes) / each_s if each_s > 0 else math.inf
        for degree, each_s in zip(apart, per_token, strict=True)
    }
    return replace(
        sent, square_s=square_s, token_s=token_s, fixed_s=fixed_s, exchange_s=exchange_s, is_beside=is_beside,
        rates=rates, least_s=least_s,
    )  # fmt: skip


def _terms(prices: Sequence[GroupPrice], apart: Sequence[int]) -> NDArray[np.float64]:
    """What each constant is multiplied with: of attention, tokens, a group, other ranks, tokens exchanged at each degree."""
    terms = np.zeros((len(prices), 4 + len(apart)))
    for row, price in zip(terms, prices, strict=True):
        tokens = price.tokens_of_rank
        row[:3] = price.length * tokens, tokens, 1.0
        if price.degree > 1:
            row[3], row[4 + apart.index(price.degree)] = price.degree - 1.0, tokens
    return terms


def exchanged_bytes(plan: Plan) -> tuple[float, float]:
    """`exchange_bytes` and `ring_bytes` of `SequenceCosts`, forward and backward: of Ulysses queries, keys, values and
    outputs, once; of the others keys and values, and their gradients, to every other rank."""
    total = 0.0
    for first, count in plan.model.block_kinds(0, plan.model.num_layers):
        attention = plan.model.layers[first].attention
        queries = attention.num_heads * attention.head_dim
        keys = attention.num_kv_heads * attention.head_dim
        total += count * (4 * (queries + keys) if plan.context == "ulysses" else 6 * keys)
    total *= dtype_bytes(plan.dtype) / plan.tp
    return (total, 0.0) if plan.context == "ulysses" else (0.0, total)
