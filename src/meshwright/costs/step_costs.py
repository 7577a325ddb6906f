"""StepCosts: prices training steps: kernels and collectives by their curves, times what a step makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.costs.collective_nccl import NcclCollectives
from meshwright.costs.cost import Cost, Flow
from meshwright.costs.kernel_curve import GpuKernels
from meshwright.costs.software import SoftwareClass
from meshwright.ir.table import Exchange, Work
from meshwright.specs.device import DeviceSpec
from meshwright.specs.operator import Operator
from meshwright.specs.prediction import weakest

LINEAR_KINDS = ("matmul", "grouped_matmul")


@dataclass(frozen=True)
class StepConstants:
    """What a training step makes of kernels and messages that were measured alone; fitted for a family of chips.

    Factors multiply seconds; 1 is "as measured alone".
    """

    matmul: float = 1.1
    attention: float = 1.1
    attention_backward: float = 1.0
    stream: float = 1.1
    float8: float = 1.1
    node_exchange: float = 1.1
    network_exchange: float = 1.1
    network_decay: float = 0.05
    host_s: float = 8e-6
    step_s: float = 10e-3
    expert_s: float = 100e-6

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value >= 0:
                raise ValueError(f"{each.name} is {value}")


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

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Sum over kernels; at least what the host needs to launch them."""
        if work not in self._known:
            self._known[work] = self._priced(work)
        return self._known[work]

    def _priced(self, work: Work) -> Cost:
        if not work.operators:
            return self.kernels.cost(work)
        parts = self.parts(work)
        seconds = sum(parts.values())
        basis = weakest(*(self._estimate(op, work.dtype)[1] for op in work.operators))
        host_s = self.host_s(work)
        return Cost(max(seconds, host_s) + self._experts_s(work), basis=basis)

    def parts(self, work: Work) -> dict[str, float]:
        """Device seconds of a work by kind of kernel."""
        found: dict[str, float] = {}
        for operator in work.operators:
            seconds, _ = self._estimate(operator, work.dtype)
            kind = component(operator)
            found[kind] = found.get(kind, 0.0) + seconds * operator.count
        return found

    def host_s(self, work: Work) -> float:
        """What the host needs to launch a work's kernels."""
        launches = sum(op.count for op in work.operators)
        return launches * self.constants.host_s * self.software.host_share

    def _experts_s(self, work: Work) -> float:
        """The host waits for the counts of routed tokens in every layer of experts, forward."""
        layers = sum(op.count for op in work.operators if op.kind == "routing" and op.phase == "forward")
        return layers * self.constants.expert_s

    def _estimate(self, operator: Operator, dtype: str) -> tuple[float, Any]:
        """Seconds and basis of one occurrence."""
        c, given = self.constants, dtype
        if dtype == "float8" and (operator.kind not in LINEAR_KINDS or operator.label.startswith("vocabulary")):
            given = "bfloat16"
        estimate = self.kernels.operator(operator, given)
        seconds = estimate.seconds
        kind = component(operator)
        if kind == "matmul":
            seconds *= c.matmul * self.software.slowdown * (c.float8 if given == "float8" else 1.0)
        elif kind == "attention":
            seconds *= c.attention * (c.attention_backward if operator.phase == "backward" else 1.0)
        else:
            seconds *= c.stream * self.software.share(operator)
        return seconds, estimate.basis

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """As `links` prices it, times what a step makes of it, over N nodes less the decay of their rate."""
        cost = self.links.exchange_cost(exchange, num_bytes, devices)
        per_node = self.links.cluster.levels[0].num_devices
        nodes = len({device // per_node for device in devices})
        if nodes == 1:
            return cost.scaled(self.constants.node_exchange)
        return cost.scaled(self.constants.network_exchange * (nodes / 2) ** self.constants.network_decay)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """As `links` says."""
        return self.links.flows(exchange, num_bytes, devices)


def component(operator: Operator) -> str:
    """Which factor applies to an operator: "matmul", "attention" or "stream"."""
    if operator.kind in LINEAR_KINDS:
        return "matmul"
    return "attention" if operator.kind == "attention" else "stream"
