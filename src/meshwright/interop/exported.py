"""What a plan becomes in another program's words, or the list of choices that the program has no words for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.specs.error import PlanError
from meshwright.specs.model.block import ROUTINGS, Routing
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import AXES, OVERLAPS, Plan
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.sequence.context_parallel import ARRANGEMENT_OF

DIGEST_DIGITS = 16  # as of a model's digest


@dataclass(frozen=True)
class Refusal:
    """One choice of a plan, as it stands there, and why the target has no words for it."""

    choice: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return {"choice": self.choice, "reason": self.reason}


class ExportError(PlanError):
    """A plan that the target cannot express; `refusals` has every such choice, not only the first."""

    def __init__(self, target: str, refusals: Sequence[Refusal]) -> None:
        self.target, self.refusals = target, tuple(refusals)
        lines = [f"  {refusal.choice}: {refusal.reason}" for refusal in refusals]
        count = f"{len(lines)} choice{'s' if len(lines) > 1 else ''}"
        super().__init__(
            "\n".join([f"{target} cannot express {count} of this plan:", *lines]),
            next="change them in the plan, or export to another format",
        )


@dataclass(frozen=True)
class Exported:
    """A plan in another program's words.

    Attributes:
        format: "megatron", "torchtitan" or "deepspeed".
        text: the whole file, the same for the same plan.
        plan_digest: hash of the plan's own file; the text names it.
        suffix: of such a file.
        left_open: what this format does not carry, or leaves to the user.
        assumptions: what the plan left open, and how it was filled in.
    """

    format: str
    text: str
    plan_digest: str
    suffix: str
    left_open: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return {
            "format": self.format,
            "text": self.text,
            "plan_digest": self.plan_digest,
            "left_open": list(self.left_open),
            "assumptions": list(self.assumptions),
        }


@dataclass
class Export:
    """An export in the making: the plan in its canonical words, and what was refused so far."""

    target: str
    plan: Plan
    digest: str
    orders: tuple[tuple[str, ...], ...] = (AXES,)
    refusals: list[Refusal] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    passes: tuple[str, ...] = ()

    @classmethod
    def begin(
        cls,
        target: str,
        plan: Plan,
        software: str,
        orders: tuple[tuple[str, ...], ...] = (AXES,),
        passes: tuple[str, ...] = (),
    ) -> Export:
        """With `software`, the class of the target's own, where the plan names none; `orders` of the mesh and `passes` that
        it has words for."""
        export = cls(target, canonical(plan, software), plan_digest(plan), orders, passes=passes)
        if not plan.software:
            export.assumptions.append(f"software = {software}: the plan names no efficiency class")
        export._refuse_what_nobody_has()
        return export

    def refuse(self, choice: str, reason: str) -> None:
        """The target has no words for `choice`."""
        self.refusals.append(Refusal(choice, reason))

    def need(self, holds: bool, choice: str, reason: str) -> None:
        """Refuse `choice` unless `holds`."""
        if not holds:
            self.refuse(choice, reason)

    def one_of(self, name: str, allowed: Iterable[str], reason: str) -> None:
        """Refuse a field of the plan unless its value is allowed."""
        value = getattr(self.plan, name)
        self.need(value in allowed, f'{name} = "{value}"', reason)

    def check_float32_copies(self) -> None:
        """The optimizer's copy is float32 and gradients are summed in the plan's format or in float32."""
        plan = self.plan
        kept = plan.dtype if plan.sharding == "zero3" else ""
        self.need(
            plan.master_dtype == ("float32" if plan.dtype != "float32" else kept),
            f'master_dtype = "{plan.master_dtype}"',
            "the optimizer's copy is float32, and there is none in float32",
        )
        self.need(
            plan.reduction_dtype in (plan.dtype, "float32"),
            f'reduction_dtype = "{plan.reduction_dtype}"',
            f"gradients are summed in {plan.dtype} or in float32",
        )

    def check_experts(self) -> None:
        """An expert degree needs experts that divide by it."""
        plan, num_experts = self.plan, self.plan.model.num_experts
        if plan.ep > 1 and not num_experts:
            self.refuse(f"ep = {plan.ep}", f"{plan.model.name} has no experts")
        elif num_experts % plan.ep:
            self.refuse(f"ep = {plan.ep}", f"it does not divide {num_experts} experts")

    def check_all_blocks(self) -> None:
        """What is recomputed is recomputed in every block."""
        counts = ", ".join(map(str, self.plan.recompute_blocks))
        self.need(
            not counts, f"recompute_blocks = {counts}", f"{self.plan.recompute} recompute is of all blocks"
        )

    def finish(self) -> None:
        """Raises ExportError where anything was refused."""
        if self.refusals:
            raise ExportError(self.target, self.refusals)

    def headline(self) -> str:
        """Which plan a text was made from, for its comment."""
        plan = self.plan
        return f"meshwright plan {self.digest}: {plan.model.name}, {plan.product_text()}, ep({plan.ep})"

    def _refuse_what_nobody_has(self) -> None:
        plan = self.plan
        self.need(
            not plan.split_backward,
            "split_backward = true",
            "its schedules run the backward pass in one piece",
        )
        if plan.cp > 1:
            layout = f'token_layout = "{plan.token_layout}"'
            is_usual = plan.token_layout in ("", ARRANGEMENT_OF[plan.context])
            self.need(is_usual, layout, "it deals tokens out as it does for every plan")
        self.need(plan.ep_near == 1, f"ep_near = {plan.ep_near}", "no option exchanges rows in two levels")
        self.need(not plan.has_parts, f"token_parts = {plan.token_parts}", "it runs a microbatch as one")
        self.need(plan.sharding in ZERO, f"sharding = {plan.sharding}", "it knows the steps of ZeRO")
        self.one_of(
            "optimizer", (Plan.optimizer,), "what is written is of AdamW, whose numbers are left open"
        )
        self.one_of("gathered", (Plan.gathered,), "no option says that gathered inputs are kept")
        self.one_of("vocabulary", ("ends",), "embedding and head are on the first and the last stage")
        self.need(not plan.device_order, "device_order", "ranks follow the order of the launcher's hosts")
        known = " or ".join("-".join(order) for order in self.orders)
        self.need(
            plan.mesh_order in self.orders,
            f"mesh_order = {', '.join(plan.mesh_order)}",
            f"it has {known}; plan with --fix mesh_order={'-'.join(AXES)}",
        )
        model, scaling = plan.model, plan.model.rotary_scaling
        activation = model.mlp.activation if model.mlp else ""
        usual = ROUTINGS.get(model.architecture, Routing())
        routings = [each.experts.routing_in(model.architecture) for each in model.kinds if each.experts]
        for is_there, what in (
            (model.is_adapted, "frozen parameters or low-rank additions"),
            (scaling is not None, f"{scaling and scaling.kind} scaling of rotary positions"),
            (bool(activation), f"activation {activation}"),
            (model.has_ladder_residual, "a ladder residual"),
            (model.has_parallel_branches, "parallel branches"),
            (bool(model.num_encoder_layers), "an encoder"),
            (any(each.cosine_rank for each in routings), "routers that compare by cosines"),
            (
                any(each.scores != usual.scores for each in routings),
                "scores of routers that are not its family's",
            ),
        ):
            self.need(not is_there, f"model {model.name}", f"{what} is not written")
        self.need(not plan.workload.lengths, "lengths of sequences", "every sequence is full")
        for each in (one for one in plan.passes if one.name not in self.passes):
            self.refuse(f"pass {each.name}", "it has no such pass over its instructions")


def plan_digest(plan: Plan) -> str:
    """Hash of the plan's file."""
    return hashlib.sha256(plan_text(plan).encode()).hexdigest()[:DIGEST_DIGITS]


def canonical(plan: Plan, software: str = "") -> Plan:
    """The same plan with every choice that makes no difference written in one way.

    Axes of degree 1 stand in the usual place, a sharding over one device is none, what does not happen overlaps with
    nothing, defaults of number formats are named. `software` fills in for a plan without an efficiency class.
    """
    is_alone = plan.sharing_degree == 1 and plan.ep == 1
    sharding = "none" if is_alone else plan.sharding
    degree = 0 if sharding == "none" or plan.sharding_degree == plan.dp * plan.cp else plan.sharding_degree
    in_order = plan.device_order == tuple(range(plan.num_devices))
    return plan.changed(
        mesh_order=_mesh_order(plan),
        device_order=() if in_order else plan.device_order,
        recompute_blocks=() if plan.recompute_blocks == plan.layers_per_stage else plan.recompute_blocks,
        etp=plan.etp if plan.has_own_expert_tp else 0,
        sharding=sharding,
        sharding_degree=degree,
        reduction_dtype=plan.gradient_dtype,
        master_dtype=_master_dtype(plan, sharding),
        overlap=_overlap(plan, sharding),
        context=plan.context if plan.cp > 1 else Plan.context,
        token_layout=plan.token_layout
        if plan.cp > 1 and plan.token_layout != ARRANGEMENT_OF[plan.context]
        else "",
        gathered=plan.gathered if plan.sequence_parallel else Plan.gathered,
        software=plan.software or software,
    )


def _mesh_order(plan: Plan) -> tuple[str, ...]:
    """The usual order where the axes that have a degree stand in it."""
    used = [axis for axis, degree in plan.mesh if degree > 1]
    return AXES if used == [axis for axis in AXES if axis in used] else plan.mesh_order


def _overlap(plan: Plan, sharding: str) -> tuple[str, ...]:
    happens = {
        "reduce": plan.dp * plan.cp > 1 or plan.ep > 1,
        "gather": sharding != "none",
        "tp": plan.tp > 1,
        "ep": plan.ep > 1,
    }
    return tuple(name for name in OVERLAPS if name in plan.overlap and happens[name])


def _master_dtype(plan: Plan, sharding: str) -> str:
    """Sharded parameters are the master copy; unsharded ones of its own format need none."""
    if sharding == "zero3":
        return plan.master_dtype or plan.dtype
    is_same = sharding == "none" and plan.master_dtype == plan.dtype
    return "" if is_same else plan.master_dtype
