"""MeasuredCosts: prices computes and messages from the samples of a profile, shape by shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshwright.costs.collective.collective import collective_table, flows_between, rescaled_s
from meshwright.costs.cost import Cost, Flow
from meshwright.costs.measured.calibration import Calibration, calibrate
from meshwright.costs.measured.interpolation import Estimate, by_shape, by_size
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator
from meshwright.specs.plan.prediction import weakest

ADD_TOUCHES = 3  # arrays that the elementwise table's sum reads and writes
MEASURED_OPTIMIZER = "adamw"  # others cost what sums of arrays of as many bytes do
SHAPED = ("matmul", "attention")  # rates depend on every dimension; the others on how much there is
# Relative error left in a pass that was never calibrated on a whole stage, from leaving out caches and overheads.
UNCALIBRATED_ERROR = 0.25
HEADS_POWER = 0.3  # a factor of ten in heads is as far as a factor of two in sequence length
LEAST_ERROR = 0.05  # no interval is narrower: a machine differs from itself by this from minute to minute
NEVER_SEEN_ERROR = 0.5
# Profiles before schema 3 have no samples of an exchange of parts. They are priced by those of a collective in which every
# device sends and receives as many bytes in as many messages: of b bytes of a buffer or of the whole, (n - 1) / n b.
STANDS_FOR: Mapping[str, str] = {"all_to_all": "all_gather"}


@dataclass(frozen=True, eq=False)
class MeasuredCosts:
    """A cost model and communication model from one profile; every device is of the kind that was measured.

    `factors`: devices of that kind whose computes take so many times what the tables say (`device_factors`).

    A pass (F, B, ...) costs the sum of its operators, corrected by the profile's calibration of that pass;
    work without operators (a host call) costs one instruction's overhead.
    """

    profile: Profile
    factors: Mapping[DeviceSpec, float] = field(default_factory=dict, repr=False, compare=False)
    _estimates: dict[Operator, Estimate] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def calibrations(self) -> Mapping[str, Calibration]:
        """Pass -> its correction, fitted once."""
        return calibrate(self.profile, lambda operator: self.operator(operator).seconds)

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Seconds of `work`, their uncertainty and basis."""
        if not work.operators:
            return Cost(self.profile.constant("instruction_overhead_s"))
        estimates = [(self.operator(operator), operator.count) for operator in work.operators]
        total = sum(estimate.seconds * count for estimate, count in estimates)
        num_operators = sum(operator.count for operator in work.operators)
        calibration = self.calibrations.get(work.name) or Calibration(spread=UNCALIBRATED_ERROR)
        factor = 1.0 if device is None else self.factors.get(device, 1.0)
        seconds = factor * calibration.seconds(total, num_operators)
        seconds += self.profile.constant("instruction_overhead_s")
        basis = weakest(*(estimate.basis for estimate, _ in estimates))
        return Cost(seconds, uncertainty=max(LEAST_ERROR, calibration.spread), basis=basis)

    def operator(self, operator: Operator) -> Estimate:
        """Seconds of one occurrence of `operator`; from bytes alone where its kind was not measured."""
        if operator not in self._estimates:
            self._estimates[operator] = _operator_estimate(self.profile, operator)
        return self._estimates[operator]

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """Seconds from all ends posted to the result complete, with every process exchanging at once."""
        if len(set(devices)) < 2:
            return Cost(0.0, compute_share=0.0)
        asked = collective_table(exchange, len(devices))
        table = asked if self.profile.samples(asked) else STANDS_FOR.get(asked, asked)
        samples = self.profile.samples(table)
        if not samples:
            raise SpecError(
                f"the profile of {self.profile.device} has no samples of {asked}",
                allowed=", ".join(sorted(self.profile.tables)) or "none of any kind",
                next="run `meshwright calibrate`",
            )
        estimate = by_size(samples, num_bytes, lambda shape: float(shape[0]))
        latency = min(sample.seconds for sample in samples)  # what the smallest message takes
        seconds = estimate.seconds
        if table != "send_receive":
            seconds = rescaled_s(seconds, latency, len(devices), self.profile.num_processes)
        is_measured = table == asked and len(devices) <= self.profile.num_processes
        basis = estimate.basis if is_measured else "extrapolated"
        slowdown = max(1.0, self.profile.constant("compute_slowdown", 1.0))
        share = min(1.0, slowdown - 1.0)  # beside a compute, which takes all of it, the sum is the slowdown
        error = max(LEAST_ERROR, min(estimate.spread, NEVER_SEEN_ERROR))
        error = error if table == asked else NEVER_SEEN_ERROR
        return Cost(seconds, compute_share=share, link_share=1.0, uncertainty=error, basis=basis)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Bytes from each device to each other one while the exchange runs."""
        return flows_between(exchange, num_bytes, devices)


def _operator_estimate(profile: Profile, operator: Operator) -> Estimate:
    """Seconds of one occurrence, from the table of its kind and phase."""
    is_foreign = operator.kind == "optimizer" and operator.label != MEASURED_OPTIMIZER
    if is_foreign or operator.kind in ("elementwise", "host_copy"):
        return _elementwise(profile, operator)
    table = operator.kind if operator.phase == "forward" else f"{operator.kind}_{operator.phase}"
    samples = profile.samples(table)
    if operator.kind in SHAPED and samples:
        place = _attention_place if operator.kind == "attention" else tuple
        return by_shape(samples, operator.shape, lambda shape: _flops(operator.kind, shape), place)
    if samples:
        return by_size(samples, _amount(operator.kind, operator.shape), lambda s: _amount(operator.kind, s))
    return _from_bytes(profile, operator)


def _flops(kind: str, shape: Sequence[int]) -> float:
    """Work by which rates of a shaped table are formed, up to a factor that cancels."""
    if kind == "matmul":
        return float(math.prod(shape))
    batch, heads, _, sequence, head_dim, is_causal = shape
    pairs = sequence * (sequence + 1) / 2 if is_causal else float(sequence * sequence)
    return batch * heads * pairs * head_dim


def _attention_place(shape: Sequence[int]) -> tuple[float, ...]:
    """Sequence and head size decide the rate; how many heads there are matters little (see HEADS_POWER)."""
    batch, heads, _, sequence, head_dim, _ = shape
    return (float(batch * heads) ** HEADS_POWER, float(sequence), float(head_dim))


def _amount(kind: str, shape: Sequence[int]) -> float:
    """How much there is to do: numbers touched; of an embedding the rows taken and, weakly, the table."""
    if kind == "embedding":
        tokens, hidden, vocabulary = shape
        return float((tokens + vocabulary) * hidden)
    return float(math.prod(shape))


def _elementwise(profile: Profile, operator: Operator) -> Estimate:
    """By its bytes, from sums of arrays of as many bytes."""
    samples = profile.samples("elementwise")
    if not samples:
        return _from_bytes(profile, operator)
    factor = ADD_TOUCHES * dtype_bytes(profile.dtype)
    return by_size(samples, operator.bytes, lambda shape: float(factor * math.prod(shape)))


def _from_bytes(profile: Profile, operator: Operator) -> Estimate:
    """An operator whose kind was not measured: its bytes at the rate of the largest elementwise sample."""
    samples = profile.samples("elementwise")
    if not samples:
        raise SpecError(
            f"the profile of {profile.device} has samples neither of {operator.kind} nor of elementwise",
            next="run `meshwright calibrate`",
        )
    largest = max(samples, key=lambda sample: math.prod(sample.shape))
    rate = ADD_TOUCHES * math.prod(largest.shape) * dtype_bytes(profile.dtype) / largest.seconds
    return Estimate(operator.bytes / rate, "never seen", NEVER_SEEN_ERROR)
