"""Roofline: prices computes from a data sheet, each operator by the slower of its arithmetic and its traffic.

For devices nobody has measured here; every cost of it says "never seen" and has a wide interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.costs.collective.collective import (
    collective_s,
    collective_table,
    flows_between,
    sum_flows,
    way_of,
)
from meshwright.costs.cost import CommunicationModel, Cost, Flow
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.cluster.summing import QUICKEST, RING, quickest_sum, sum_s
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator

# Share of the peak that large matrix products of a training step reach: 57 % on H100 in bfloat16 is reported for
# whole layers (NVIDIA, Megatron-LM README), single products are above it.
MATMUL_EFFICIENCY = 0.70
# FlashAttention-2 (Dao 2023, arXiv 2307.08691, figures 5 and 6): up to 73 % forward, 63 % backward on A100, causal
# and short sequences below.
ATTENTION_EFFICIENCY = 0.50
# Share of the peak memory bandwidth that streaming kernels reach (BabelStream on A100 and H100: 0.8 to 0.93).
MEMORY_EFFICIENCY = 0.85
LINK_EFFICIENCY = 0.80  # of a link's data-sheet rate, for messages of megabytes (nccl-tests bus bandwidth)
# Between a device's memory and the host's: PCIe 4.0 with 16 lanes, 16 GT/s x 16 x 128/130 / 8 (PCI Express Base
# Specification 4.0), of which long copies from pinned memory reach about 80 %.
HOST_LINK_BYTES_PER_S = 0.8 * 31.5e9
OPERATOR_OVERHEAD_S = 5e-6  # one kernel launch on a GPU whose queue runs empty
UNCERTAINTY = 0.30

EFFICIENCIES: Mapping[str, float] = {
    "matmul": MATMUL_EFFICIENCY,
    "grouped_matmul": MATMUL_EFFICIENCY,
    "attention": ATTENTION_EFFICIENCY,
}


@dataclass(frozen=True)
class Roofline:
    """A cost model and communication model from the specifications of a cluster.

    Attributes:
        cluster: devices and links.
        efficiencies: kind of operator -> share of the peak; other kinds are bound by memory.
        memory_efficiency: share of the peak memory bandwidth.
        link_efficiency: share of a link's rate.
        operator_overhead_s: least seconds of one operator.
        links: prices messages where those of the device's links were measured; None: the data sheet does.
    """

    cluster: ClusterSpec
    efficiencies: Mapping[str, float] = field(default_factory=lambda: dict(EFFICIENCIES))
    memory_efficiency: float = MEMORY_EFFICIENCY
    link_efficiency: float = LINK_EFFICIENCY
    operator_overhead_s: float = OPERATOR_OVERHEAD_S
    links: CommunicationModel | None = None

    def __post_init__(self) -> None:
        shares = {
            **self.efficiencies,
            "memory": self.memory_efficiency,
            "link": self.link_efficiency,
        }
        for name, share in shares.items():
            if not 0 < share <= 1:
                raise SpecError(f"the efficiency of {name} is {share}", allowed="above 0 and at most 1")

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Sum over the work's operators; without a list of them, the roofline of its totals."""
        spec = device if isinstance(device, DeviceSpec) else self.cluster.devices[0]
        if not work.operators and not work.flops and not work.bytes:
            return Cost(0.0, basis="never seen")
        if work.operators:
            seconds = sum(self.operator_s(op, work.dtype, spec) * op.count for op in work.operators)
        else:
            seconds = self._bound_s("matmul", work.flops, work.bytes, work.dtype, spec)
        return Cost(seconds, uncertainty=UNCERTAINTY, basis="never seen")

    def operator_s(self, operator: Operator, dtype: str, device: DeviceSpec) -> float:
        """Seconds of one occurrence of `operator`."""
        bound = self._bound_s(operator.kind, operator.flops, operator.bytes, dtype, device)
        return max(bound, self.operator_overhead_s if device.machine.has_streams else 0.0)

    def _bound_s(self, kind: str, flops: float, num_bytes: float, dtype: str, device: DeviceSpec) -> float:
        """The slower of arithmetic and traffic."""
        if kind == "host_copy" and device.machine.has_streams:
            return num_bytes / HOST_LINK_BYTES_PER_S
        traffic = num_bytes / (device.memory_bandwidth_bytes_per_s * self.memory_efficiency)
        if kind not in self.efficiencies:
            return traffic
        return max(traffic, flops / (device.peak_flops_per_s(dtype) * self.efficiencies[kind]))

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """Latency and bandwidth of the slowest path between neighbours, all of it free.

        A message holds its links for bytes / bandwidth and is complete a latency later; a collective's steps
        wait for each other, so its latencies are part of the seconds. Where each two devices have a link of their own, a
        collective is a ring on all links between its members at once.
        """
        if self.links is not None:
            return self.links.exchange_cost(exchange, num_bytes, devices)
        if len(set(devices)) < 2:
            return Cost(0.0, compute_share=0.0)
        table = collective_table(exchange, len(devices))
        if table == "send_receive":
            rate, latency = self._slowest(((devices[0], devices[1]),))
            seconds, behind = num_bytes / rate, latency
        else:
            rate, latency = self._slowest(tuple(zip(devices, (*devices[1:], devices[0]), strict=True)))
            way = way_of(exchange)
            if table == "all_reduce" and way != RING:
                seconds, behind = sum_s(way, num_bytes, len(devices), latency, rate), 0.0
            else:
                rate *= len(devices) - 1 if self.cluster.is_paired(devices) else 1
                seconds, behind = collective_s(table, num_bytes, len(devices), latency, rate), 0.0
        return Cost(
            seconds, behind, compute_share=0.0, link_share=1.0, uncertainty=UNCERTAINTY, basis="never seen"
        )

    def _slowest(self, pairs: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        """Least usable bandwidth and largest latency of directed pairs of devices."""
        rates = [self.cluster.bandwidth_bytes_per_s(source, target) for source, target in pairs]
        latencies = [self.cluster.latency_s(source, target) for source, target in pairs]
        return min(rates) * self.link_efficiency, max(latencies)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Bytes from each device to each other one while the exchange runs."""
        if self.links is not None:
            return self.links.flows(exchange, num_bytes, devices)
        way = way_of(exchange)
        if way == QUICKEST:
            rate, latency = self._slowest(tuple(zip(devices, (*devices[1:], devices[0]), strict=True)))
            way = quickest_sum(num_bytes, len(devices), latency, rate)
        if way != RING and len(set(devices)) > 1:
            return sum_flows(way, num_bytes, devices)
        return flows_between(exchange, num_bytes, devices, is_paired=self.cluster.is_paired(devices))
