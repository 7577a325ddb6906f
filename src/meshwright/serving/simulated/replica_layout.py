"""ReplicaLayout: how the devices of one replica share a model that serves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload


@dataclass(frozen=True)
class ReplicaLayout:
    """`tp` devices share every matrix, `pp` stages the layers. `ep` of tp, or a divisor of it, have whole experts each: all
    have all tokens, and the sum behind the layer adds up what each has computed of its own experts' rows.

    `attention_dp` groups of tp / attention_dp devices attend for sequences of their own, each with all weights of attention:
    before the rest of a block the tokens of all groups are gathered, behind it each has its own back; with ep, which then
    is tp, rows go to their experts instead. What else would be on every device, or be cut into fewer parts than there are
    devices (a latent, few heads of keys), is then kept once.
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
        has_experts, apart = any(kind.experts for kind in model.kinds), self.attention_dp > 1
        if self.ep > 1 and (not has_experts or self.tp % self.ep or (apart and self.ep != self.tp)):
            raise PlanError(
                f"ep is {self.ep} in a replica of tp {self.tp} of {model.name}",
                allowed="1, or of a model with experts tp, or without attention_dp a divisor of it: whole experts on each",
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
        expert_tp = self.tp // self.ep if self.ep > 1 else 0
        return Plan.of(
            model, cluster, Workload(1, num_tokens), tp=self.tp, pp=self.pp, ep=self.ep, dp=1, dtype=dtype,
            num_devices=self.num_devices, etp=expert_tp, sequence_parallel=self.attention_dp > 1,
        )  # fmt: skip

    def lowered(self, plan: Plan) -> Plan:
        """The plan whose program a step is: where every device has all tokens none is sent to experts, so that exchanges are
        those of experts that all share. Raises PlanError where tp does not divide an expert's inner units."""
        if self.ep == 1 or self.attention_dp > 1:
            return plan
        return plan.changed(ep=1, etp=0, workload=replace(plan.workload, expert_load=1.0))
