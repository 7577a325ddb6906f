"""How much of its devices a training uses: model FLOPs a second of one device, and their share of its peak (MFU).

Model FLOPs are what the model needs, forward and backward (`train_flops_per_token`: 6 for every parameter of a product that a
token meets, and its attention); what is computed again by recompute is none of them. That is the MFU of PaLM (Chowdhery et
al. 2022, arXiv 2204.02311, appendix B). Every verb that shows it asks here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.plan.plan import Plan


@dataclass(frozen=True)
class Utilisation:
    """``flops_per_s``: model FLOPs a second of one device; ``mfu``: their share of its peak, None where nobody knows one."""

    flops_per_s: float
    mfu: float | None

    def to_dict(self) -> dict[str, float | None]:
        """As data and files have it."""
        return {"flops_per_s_per_device": self.flops_per_s, "mfu": self.mfu}


@dataclass(frozen=True)
class StepFlops:
    """``per_device``: model FLOPs of a step on one device; ``peak_flops_per_s``: the most that it does, None: not known."""

    per_device: float
    peak_flops_per_s: float | None = None

    @classmethod
    def of(cls, plan: Plan, cluster: ClusterSpec | None, profile: Profile | None = None) -> StepFlops:
        """Of a plan, whose attention stays within documents. The peak is in the plan's format (of unequal devices the mean):
        of GPUs the data sheet's, of this machine's processes the best product of matrices that `calibrate` measured."""
        per_token = plan.model.train_flops_per_token(round(plan.workload.attended_length))
        per_device = per_token * plan.workload.tokens_per_step / plan.num_devices
        return cls(per_device, None if cluster is None else _peak(plan.dtype, cluster, profile))

    def used(self, step_s: float) -> Utilisation:
        """By steps of so many seconds."""
        rate = self.per_device / step_s if step_s > 0 else 0.0
        return Utilisation(rate, rate / self.peak_flops_per_s if self.peak_flops_per_s else None)

    def to_dict(self) -> dict[str, Any]:
        """As a trace carries it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Any) -> StepFlops | None:
        """What `to_dict` wrote; None for anything else."""
        if not isinstance(fields, Mapping):
            return None
        work, peak = fields.get("per_device"), fields.get("peak_flops_per_s")
        if not isinstance(work, int | float):
            return None
        return cls(float(work), float(peak) if isinstance(peak, int | float) else None)


def _peak(dtype: str, cluster: ClusterSpec, profile: Profile | None) -> float | None:
    """Of a device."""
    if cluster.machine.is_here:
        found = [] if profile is None else profile.samples("matmul")
        return max((2 * math.prod(sample.shape) / sample.seconds for sample in found), default=None)
    rates = [device.flops_per_s.get(dtype) for device in cluster.devices]
    known = [rate for rate in rates if rate]
    return (
        sum(known) / len(known) if cluster.machine.has_data_sheet and 0 < len(known) == len(rates) else None
    )
