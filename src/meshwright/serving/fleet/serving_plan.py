"""ServingPlan: how a cluster serves: the layout of a replica, how many, what a step may have, and who prefills."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from meshwright.serving.decoder.decoder import ONE_TOKEN
from meshwright.serving.policy.limits import Limits
from meshwright.serving.request.request_file import BLOCK_TOKENS
from meshwright.serving.routing.router import ROUTERS, USUAL_ROUTER
from meshwright.serving.simulated.parted.serving_step import WHOLE
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.weight.weight_place import RESIDENT
from meshwright.specs.cluster.summing import RING, check_sums
from meshwright.specs.error import PlanError, UnknownNameError


@dataclass(frozen=True)
class ServingPlan:
    """One decision. `num_prefill` of the replicas compute prompts alone and send their keys and values to the others (0:
    every replica does both). `weights`: where those of a replica lie, a name in this slot. `sums`: how the terms
    of tensor parallelism are summed (`specs/cluster/summing`). `step`: how a replica runs the rows of a
    step, a name in this slot. `decoder`: what a step gives those who decode, a name in this slot."""

    layout: ReplicaLayout
    replicas: int = 1
    max_batch_tokens: int = Limits.max_batch_tokens
    max_sequences: int = Limits.max_sequences
    num_prefill: int = 0
    router: str = USUAL_ROUTER
    block_tokens: int = BLOCK_TOKENS
    weights: str = RESIDENT
    sums: str = RING
    step: str = WHOLE
    decoder: str = ONE_TOKEN

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0 <= self.num_prefill < self.replicas:
            raise PlanError(
                f"{self.replicas} replicas, of which {self.num_prefill} prefill",
                allowed="at least one replica, and one that does not only prefill",
            )
        check_sums(self.sums)
        if self.weights != RESIDENT and self.step != WHOLE:
            raise PlanError(
                f"weights={self.weights} with step={self.step}",
                allowed="one of them: what parts of a step wait for weights is not known",
            )
        if self.router not in ROUTERS:
            raise UnknownNameError("router", self.router, ROUTERS)

    @property
    def num_devices(self) -> int:
        """Of all replicas."""
        return self.replicas * self.layout.num_devices

    def limits(self, max_model_tokens: int) -> Limits:
        """Of one replica's scheduler."""
        return Limits(self.max_batch_tokens, self.max_sequences, max_model_tokens)

    @property
    def name(self) -> str:
        """For people."""
        times = f"{self.replicas} x " if self.replicas > 1 else ""
        apart = f" ({self.num_prefill} prefill)" if self.num_prefill else ""
        fetched = f" {self.weights}" if self.weights != RESIDENT else ""
        summed = f" sums={self.sums}" if self.sums != RING else ""
        step = f" {self.step}" if self.step != WHOLE else ""
        proposed = f" {self.decoder}" if self.decoder != ONE_TOKEN else ""
        return f"{times}{self.layout.name}{apart}{fetched}{summed}{step}{proposed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, degrees first."""
        data = asdict(self)
        return {**data.pop("layout"), **data, "num_devices": self.num_devices}
