"""StepCosts: prices training steps: kernels and collectives by their curves, times what a step makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.cost import Cost, Flow
from meshwright.costs.kernel.curve import STREAM_EFFICIENCY, GpuKernels, family_of
from meshwright.ir.table import IN_PARTS, ROUTED, ROUTED_ONCE, Exchange, Work
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator
from meshwright.specs.plan.prediction import Basis, weakest
from meshwright.specs.plan.software import SoftwareClass
from meshwright.stage.exchange.once import sent_share

# A cast to float8 reads 16 bits, writes the matrix and its transpose for the weight gradient, and reads 16 bits once
# more for the largest element (Transformer Engine, current scaling).
CAST_BYTES = 6
# Of a gradient as large as its table: zeros are written; it is read, and the sum read and written.
WHOLE_TABLE_TOUCHES = 4
# Products of all experts in one launch against one product of as many rows, both measured in training: 1.1 to 1.3 by
# rows of an expert (medians of the published system file of SimuMax for B200, forward and input gradient). Products of
# all heads in one launch (unfused attention) are taken alike.
GROUPED = 1.15
# What products lose to an exchange that their own kernels send beside them, as a share of its time. NeMo's settings of
# Transformer Engine's user buffers for Llama 405B, H100, tp 8 (tp_overlap_configs/userbuffers.py): ten exchanges of a layer
# hold 2, 24, 2, 2, 24, 8 and four times 1 of 132 multiprocessors, 0.05 of them in the mean; two come in four parts, the last
# of which nothing is left to hide: 2 / 10 / 4 = 0.05 of all.
LOST_BESIDE = 0.10
# Of the device that most steps of a family, or its kernels, were measured on: A100 SXM, H100 SXM, HGX B200 (NVIDIA data
# sheets), MI300X, MI355X (AMD data sheets).
USUAL_POWER_W: Mapping[str, float] = {
    "a100": 400.0, "h100": 700.0, "b200": 1000.0, "mi300x": 750.0, "mi355x": 1400.0,
}  # fmt: skip
LINEAR_KINDS = ("matmul", "grouped_matmul")


@dataclass(frozen=True)
class StepConstants:
    """What a training step makes of kernels and messages that were measured alone; fitted for a family of chips.

    Factors multiply seconds; 1 is "as measured alone".

    Attributes:
        matmul: products run hot, one after the other, in layouts and with sums that the tables do not have.
        attention: the same of attention, forward and backward.
        attention_portable: attention kernels that are not written for the chip's generation, against those that are.
        stream: kernels bound by memory.
        float8: products in float8, on top of `matmul`.
        node_exchange, network_exchange: collectives within a node, and between nodes.
        jitter: of a collective between nodes: what the delays of single nodes add to its time, as a share; all wait for the
            slowest of them (`slowest_of`).
        gap_s: between two kernels: launch, tail, allocation.
        step_s: once a step: data, norm of the gradient, synchronisation with the host.
        expert_s: least time of the host for one layer of experts, forward and backward.
    """

    matmul: float = 1.2
    attention: float = 1.1
    attention_portable: float = 1.5
    stream: float = 1.05
    float8: float = 0.95
    node_exchange: float = 1.2
    network_exchange: float = 1.2
    jitter: float = 0.05
    gap_s: float = 15e-6
    step_s: float = 30e-3
    expert_s: float = 8e-3

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in vars(self).items() if not value >= 0}
        if wrong:
            raise SpecError(f"constants of a training step are {wrong}", allowed="numbers from 0")


@dataclass(frozen=True, eq=False)
class StepCosts:
    """A cost and communication model of training steps on one kind of GPU.

    Attributes:
        kernels, links: what was measured alone.
        constants: of the chip's family.
        software: how operators become kernels.
    """

    kernels: GpuKernels
    links: NcclCollectives
    constants: StepConstants
    software: SoftwareClass
    _known: dict[Work, Cost] = field(default_factory=dict, init=False, repr=False)
    _estimates: dict[tuple[Operator, str], tuple[float, Basis]] = field(
        default_factory=dict, init=False, repr=False
    )
    _exchanges: dict[tuple[Exchange, float, tuple[int, ...]], Cost] = field(
        default_factory=dict, init=False, repr=False
    )

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Sum over kernels; at least what the host needs to launch them."""
        found = self._known.get(work)  # a work is long to hash: once
        if found is None:
            found = self._known[work] = self._priced(work)
        return found

    def _priced(self, work: Work) -> Cost:
        if not work.operators:
            return self.kernels.cost(work)
        estimates = [self._estimate(operator, work.dtype) for operator in work.operators]
        device_s = sum(self._parts(work, estimates).values())
        basis = weakest(*(basis for _, basis in estimates))
        host_s = self.host_s(work)
        return Cost(max(device_s, host_s), slack_s=max(0.0, host_s - device_s), basis=basis)

    @cached_property
    def power_factor(self) -> float:
        """What the products of a device with another power limit than its family's take, against that family: near the
        limit a clock grows with the third root of the power (power ~ clock x voltage^2, voltage ~ clock). Attention
        keeps fewer units busy and stays below the limit."""
        device = self.kernels.device
        usual = USUAL_POWER_W.get(family_of(device) or "")
        return (usual / device.power_w) ** (1 / 3) if usual and device.power_w else 1.0

    @property
    def between_steps_s(self) -> float:
        """Seconds once a step that no instruction shows: what of `step_s` the software leaves."""
        return self.constants.step_s * self.software.step_share

    def parts(self, work: Work) -> dict[str, float]:
        """Device seconds of a work by kind of kernel; "gap" is what lies between them."""
        return self._parts(work, [self._estimate(operator, work.dtype) for operator in work.operators])

    def _parts(self, work: Work, estimates: Sequence[tuple[float, Basis]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for operator, (seconds, _) in zip(work.operators, estimates, strict=True):
            kind = component(operator)
            found[kind] = found.get(kind, 0.0) + seconds * operator.count
        launches = sum(op.count for op in work.operators if op.kind != "optimizer")
        return {**found, "gap": launches * self.constants.gap_s * self.software.gap_share}

    def host_s(self, work: Work) -> float:
        """What the host needs for a work: to dispatch its operators and exchanges, where nothing fuses or captures them; and
        with experts, as it waits for the counts of routed tokens and launches kernels for each of them, a third forward, two
        thirds backward, as with arithmetic."""
        launched = sum(op.count for op in work.operators if op.kind != "optimizer")
        launched += sum(inner.count for inner in work.inner)
        return launched * self.software.operator_s + self._routing_s(work)

    def _routing_s(self, work: Work) -> float:
        if not self.software.waits_for_routing:
            return 0.0
        forward = sum(op.count for op in work.operators if op.kind == "routing" and op.phase == "forward")
        backward = sum(op.count for op in work.operators if op.kind == "routing" and op.phase == "backward")
        return (forward + 2 * backward) / 3 * self.constants.expert_s

    def _estimate(self, operator: Operator, dtype: str) -> tuple[float, Basis]:
        """Seconds and basis of one occurrence."""
        key = (operator, dtype)
        found = self._estimates.get(key)
        if found is None:
            found = self._estimates[key] = self._estimated(operator, dtype)
        return found

    def prepare(self, works: Iterable[Work]) -> None:
        """Price the operators of many works at once, as of `GpuKernels.prepare`."""
        asked = dict.fromkeys((each, work.dtype) for work in works for each in work.operators)
        self.kernels.prepare((each, _given_dtype(each, dtype)) for each, dtype in asked)

    def _estimated(self, operator: Operator, dtype: str) -> tuple[float, Basis]:
        c, given = self.constants, _given_dtype(operator, dtype)
        estimate = self.kernels.operator(operator, given)
        seconds = estimate.seconds
        kind = component(operator)
        if kind == "matmul":
            seconds *= c.matmul * self.power_factor * (c.float8 if given == "float8" else 1.0)
            seconds *= GROUPED if operator.kind == "grouped_matmul" and operator.shape[0] > 1 else 1.0
            seconds += self._cast_s(operator) if given == "float8" else 0.0
        elif kind == "attention":
            seconds *= c.attention
            seconds *= 1.0 if self.software.has_native_attention else c.attention_portable
        else:
            seconds *= c.stream * self.software.share(operator)
            seconds += self._whole_table_s(operator, given)
        return seconds, estimate.basis

    def _cast_s(self, operator: Operator) -> float:
        """Casting what a float8 product of activations or of their gradient reads; its weight gradient uses the same."""
        if operator.phase == "weight_gradient":
            return 0.0
        m, _, k = operator.shape[-3:]
        groups = operator.shape[0] if operator.kind == "grouped_matmul" else 1
        return self._streamed_s(CAST_BYTES * groups * m * k * self.software.cast_share)

    def _whole_table_s(self, operator: Operator, dtype: str) -> float:
        """What an embedding's gradient moves beyond the rows of its tokens, where it is as large as its table."""
        if operator.variant != "embedding_backward" or not self.software.sums_whole_tables:
            return 0.0
        _, hidden, words = operator.shape
        return self._streamed_s(WHOLE_TABLE_TOUCHES * words * hidden * dtype_bytes(dtype))

    def _streamed_s(self, num_bytes: float) -> float:
        rate = self.kernels.device.memory_bandwidth_bytes_per_s * STREAM_EFFICIENCY
        return num_bytes / rate * self.constants.stream

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """As `links` prices it, times what a step makes of it; over nodes the slower the more members a ring has."""
        key = (exchange, num_bytes, devices)
        if key not in self._exchanges:
            self._exchanges[key] = self._exchanged(exchange, num_bytes, devices)
        return self._exchanges[key]

    def _exchanged(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        c, per_node = self.constants, self.links.cluster.levels[0].num_devices
        cost = self.links.exchange_cost(exchange, num_bytes, devices)
        num_nodes = len({device // per_node for device in devices})
        routed = exchange.algorithm.startswith((ROUTED, ROUTED_ONCE))
        if num_nodes == 1 and exchange.algorithm.endswith(IN_PARTS):
            return replace(cost.scaled(c.node_exchange), compute_share=LOST_BESIDE)
        if num_nodes == 1:
            return cost.scaled(c.node_exchange * (_sent_share(exchange, len(devices)) if routed else 1.0))
        if routed:
            return self._routed(cost, exchange, num_bytes, devices, num_nodes)
        return cost.scaled(c.network_exchange * (1 + c.jitter * slowest_of(num_nodes)))

    def _routed(
        self, cost: Cost, exchange: Exchange, num_bytes: float, devices: tuple[int, ...], num_nodes: int
    ) -> Cost:
        """An all-to-all of tokens: each crosses once to every other node that has experts for it, and goes on within it.

        `num_bytes` count a token as often as it has experts, k; N nodes: of these (N - 1) / N k would cross, and
        (N - 1) (1 - (1 - 1 / N)^k) do.
        """
        chosen = _num_chosen(exchange)
        crossing = (num_nodes - 1) * (1 - (1 - 1 / num_nodes) ** chosen)
        share = crossing / (chosen * (num_nodes - 1) / num_nodes)
        per_node = self.links.cluster.levels[0].num_devices
        first = devices[0] // per_node
        near = self.links.exchange_cost(
            exchange, num_bytes, tuple(d for d in devices if d // per_node == first)
        )
        seconds = max(
            cost.seconds * share * self.constants.network_exchange,
            near.seconds * self.constants.node_exchange * _sent_share(exchange, len(devices)),
        )
        return cost.scaled(seconds / cost.seconds)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """As `links` says."""
        return self.links.flows(exchange, num_bytes, devices)


def slowest_of(number: int) -> float:
    """How much longer the slowest of so many nodes is expected to take than one of them, in units of `jitter`: delays whose
    tail falls as the square of their size (Pareto) have a largest that grows as the root of their number."""
    return math.sqrt(number) - 1.0


def _num_chosen(exchange: Exchange) -> int:
    """To how many experts each token of an exchange goes."""
    return int(exchange.algorithm.removeprefix(ROUTED).removeprefix(ROUTED_ONCE))


def _sent_share(exchange: Exchange, num_devices: int) -> float:
    """Of a token's k copies, one for each of its experts, the part that is sent: all, or one to each of n devices."""
    if not exchange.algorithm.startswith(ROUTED_ONCE):
        return 1.0
    return sent_share(num_devices, _num_chosen(exchange))


def _given_dtype(operator: Operator, dtype: str) -> str:
    """The format in which an operator of a work runs: float8 recipes are of linear layers, without the vocabulary's."""
    is_cast = operator.kind in LINEAR_KINDS and not operator.label.startswith("vocabulary")
    return "bfloat16" if dtype == "float8" and not is_cast else dtype


def component(operator: Operator) -> str:
    """Which factor applies to an operator: "matmul", "attention" or "stream"."""
    if operator.kind in LINEAR_KINDS:
        return "matmul"
    return "attention" if operator.kind == "attention" else "stream"
