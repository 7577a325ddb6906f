"""ReplicaLayout: how the devices of one replica share a model that serves."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload


@dataclass(frozen=True)
class ReplicaLayout:
    """`tp` devices share every matrix, `pp` stages the layers; with `ep`, which then is tp, each has whole experts.

    `attention_dp` groups of tp / attention_dp devices attend for sequences of their own, each with all weights of attention:
    before the rest of a block the tokens of all groups are gathered, behind it each has its own back. What else would be on
    every device, or be cut into fewer parts than there are devices (a latent, few heads of keys), is then kept once.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1

    @property
    def num_devices(self) -> int:
        """Of one replica."""
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        """Devices that share the matrices of attention, and the keys and values of a sequence."""
        return self.tp // self.attention_dp

    @property
    def name(self) -> str:
        """ "tp8", "tp4 pp2", "tp8 ep8", "tp8 attention_dp8"."""
        degrees = {"tp": self.tp, "pp": self.pp, "ep": self.ep, "attention_dp": self.attention_dp}
        return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "tp1"

    def plan(self, model: ModelSpec, cluster: ClusterSpec, num_tokens: int, dtype: str) -> Plan:
        """The plan whose forward is a step of `num_tokens` tokens on the first devices of the cluster.

        Raises PlanError where the model cannot be divided so, or the devices are not there.
        """
        if model.num_encoder_layers:
            raise PlanError(
                f"{model.name} is an encoder-decoder",
                allowed="a decoder: its prompts and outputs are one sequence",
            )
        if self.ep > 1 and (self.ep != self.tp or not any(kind.experts for kind in model.kinds)):
            raise PlanError(
                f"ep is {self.ep} in a replica of tp {self.tp} of {model.name}",
                allowed="1, or tp where the model has experts: whole experts on each device",
            )
        if self.tp % self.attention_dp or (self.attention_dp > 1 and model.has_parallel_branches):
            raise PlanError(
                f"attention_dp is {self.attention_dp} in a replica of tp {self.tp} of {model.name}",
                allowed="1, or a divisor of tp where attention and the rest of a block come one behind the other",
            )
        if self.num_devices > cluster.num_devices:
            raise PlanError(
                f"a replica of {self.name} needs {self.num_devices} devices, {cluster.name} has {cluster.num_devices}",
                allowed="tp x pp of at most the cluster",
            )
        return Plan.of(
            model, cluster, Workload(1, num_tokens), tp=self.tp, pp=self.pp, ep=self.ep, dp=1, dtype=dtype,
            num_devices=self.num_devices, etp=1 if self.ep > 1 else 0, sequence_parallel=self.attention_dp > 1,
        )  # fmt: skip
