"""Mesh: the axes of a plan's program, which are the finest cut that both foldings of its devices need.

The devices of a stage are numbered once, from the inside out, and folded twice: for attention into tp, cp, dp, and for
experts into etp, ep, and edp, the replicas that are left (MoE Parallel Folding, Megatron-Core). Groups that share
sharded state, or exchange heads inside a ring, end somewhere, too. Wherever a group of either folding ends the numbers are
cut, and what lies between two cuts is an axis: a part of one axis of each folding (`MeshAxis`). It has the name of its
attention axis and, if that is cut, its length from there inwards ("dp8": the innermost 8 of dp; the outermost part is
"dp"). What is replicated, sharded or exchanged along whole axes only is then a matter of names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from meshwright.ir.program import Axis
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import AXES, Plan

TENSOR, CONTEXT, DATA = "tp", "cp", "dp"  # axes of attention, from the inside out
EXPERT_TENSOR, EXPERT, EXPERT_DATA = "etp", "ep", "edp"  # axes of experts, from the inside out


class MeshAxis(NamedTuple):
    """An axis of the finest cut: how many devices, and which axis of attention's folding and of experts' it is a part of.
    ``stride``: devices from one to its neighbour along it, within a stage."""

    name: str
    size: int
    stride: int
    attention: str
    experts: str


Axes = tuple[MeshAxis, ...]


def mesh_axes(plan: Plan) -> Axes:
    """All axes behind ``pp``, outermost first. Raises PlanError where groups do not nest."""
    shared = {degree for degree in plan.sharing_degrees if degree > 1}
    for degree in shared:
        if degree % plan.cp:
            raise PlanError(
                f"sharding_degree({degree}) does not fill cp({plan.cp})",
                allowed="a multiple of cp: state is divided from the inside out",
            )
    groups = {plan.tp * degree for degree in (*shared, plan.ulysses)} | {plan.expert_tp * plan.ep_near}
    return folded((plan.tp, plan.cp, plan.dp), (plan.expert_tp, plan.ep), tuple(sorted(groups)))


@lru_cache(maxsize=4096)
def folded(attention: tuple[int, int, int], experts: tuple[int, int], groups: Sequence[int] = ()) -> Axes:
    """The axes of devices in two foldings: degrees of tp, cp and dp, and of etp and ep. ``groups``: sizes of the innermost
    groups at whose ends they are cut as well. Raises PlanError where not every end is a multiple of those inside it."""
    of_attention = tuple(itertools.accumulate(attention, lambda a, b: a * b))
    of_experts = (experts[0], experts[0] * experts[1], of_attention[-1])
    ends = sorted({1, *of_attention, *of_experts, *groups})
    for shorter, longer in itertools.pairwise(ends):
        if longer % shorter:
            raise PlanError(
                f"groups of {shorter} and of {longer} devices do not nest: tp, cp, dp = {attention}, etp, ep = {experts}",
                allowed="tensor, context, expert and sharing groups of which every one divides all larger ones",
                next="take degrees that are powers of one number, such as 2",
            )
    found = [
        _axis(shorter, longer, attention, of_attention, of_experts)
        for shorter, longer in itertools.pairwise(ends)
    ]
    if attention[2] == 1:  # a program has an axis dp, whatever its length
        found.append(MeshAxis(DATA, 1, of_attention[-1], DATA, EXPERT_DATA))
    return tuple(reversed(found))


def _axis(
    shorter: int, longer: int, degrees: Sequence[int], of_attention: Sequence[int], of_experts: Sequence[int]
) -> MeshAxis:
    """What lies between two cuts."""
    place = next(n for n, end in enumerate(of_attention) if longer <= end)
    own = (TENSOR, CONTEXT, DATA)[place]
    length = longer * degrees[place] // of_attention[place]
    name = own if length == degrees[place] else f"{own}{length}"
    experts = next(n for n, end in enumerate(of_experts) if longer <= end)
    return MeshAxis(name, longer // shorter, shorter, own, (EXPERT_TENSOR, EXPERT, EXPERT_DATA)[experts])


def names_of(axes: Iterable[MeshAxis], *roles: str) -> tuple[str, ...]:
    """Names of those that are parts of these axes, of either folding."""
    return tuple(axis.name for axis in axes if axis.attention in roles or axis.experts in roles)


def sizes_of(axes: Iterable[MeshAxis], names: Iterable[str]) -> tuple[int, ...]:
    """Lengths of the axes with these names."""
    sizes = {axis.name: axis.size for axis in axes}
    return tuple(sizes[name] for name in names)


def inner(axes: Sequence[MeshAxis], length: int) -> Axes:
    """The innermost of these axes that have this length together."""
    found: list[MeshAxis] = []
    for axis in reversed(axes):
        if length == 1:
            break
        found.insert(0, axis)
        length //= axis.size
    return tuple(found)


def collapsed_axes(plan: Plan) -> tuple[Axis, ...]:
    """Axes behind ``pp`` on which all devices have one list: dp, cp, tp, and their parts. Raises PlanError."""
    return tuple(Axis(axis.name, axis.size, materialised=False) for axis in mesh_axes(plan))


def data_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which devices hold the same parameters and different data."""
    return names_of(mesh_axes(plan), DATA, CONTEXT)


def context_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share every sequence."""
    return names_of(mesh_axes(plan), CONTEXT)


def tensor_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share every matrix of attention."""
    return names_of(mesh_axes(plan), TENSOR)


def heads_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that exchange heads; none where nobody does."""
    shared = [axis for axis in mesh_axes(plan) if axis.attention == CONTEXT]
    return tuple(axis.name for axis in inner(shared, plan.context_parallel.heads_degree))


def ring_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices whose queries are of different tokens while they attend."""
    own = heads_axes(plan)
    return tuple(name for name in context_axes(plan) if name not in own)


def shard_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share one copy of the optimizer's state; none without sharding."""
    return _shared_axes(plan, plan.sharing_degrees[2]) if plan.shared.divides_state else ()


def gradient_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share one copy of the gradients."""
    return _shared_axes(plan, plan.sharing_degrees[1]) if plan.shared.divides_gradients else ()


def value_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share one copy of the parameters."""
    return _shared_axes(plan, plan.sharing_degrees[0]) if plan.shared.divides_values else ()


def _shared_axes(plan: Plan, degree: int) -> tuple[str, ...]:
    copies = [axis for axis in mesh_axes(plan) if axis.attention in (DATA, CONTEXT)]
    return tuple(axis.name for axis in inner(copies, degree))


def expert_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices among which the experts of a layer are divided; none where ep is 1."""
    return names_of(mesh_axes(plan), EXPERT)


def routed_axes(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Of every exchange by which rows go to their experts: all at once, or among neighbours first."""
    return levels(mesh_axes(plan), plan.ep_near)


def levels(axes: Axes, ep_near: int) -> tuple[tuple[str, ...], ...]:
    """Of axes those along which rows are exchanged one behind the other."""
    own = [axis for axis in axes if axis.experts == EXPERT]
    near = inner(own, ep_near)
    far = tuple(axis for axis in own if axis not in near)
    return tuple(tuple(axis.name for axis in level) for level in (near, far) if level)


def expert_tensor_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share every matrix of an expert; none where experts are whole."""
    return names_of(mesh_axes(plan), EXPERT_TENSOR)


def gathered_axes(plan: Plan) -> tuple[str, ...]:
    """Those of them that have other tokens, so that rows are gathered along them: without sequence parallelism devices of a
    tensor-parallel group have the same."""
    axes = expert_tensor_axes(plan)
    return axes if plan.sequence_parallel else tuple(name for name in axes if name not in tensor_axes(plan))


def told_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which devices tell each other of the experts of their tokens, where they do: of those that share sequences,
    and along tp of those that look after a part of the tokens each (`InnerDegrees.told_axes`)."""
    along_tensor = tensor_axes(plan)
    if not plan.sequence_parallel:
        along_tensor = tuple(name for name in along_tensor if name not in expert_tensor_axes(plan))
    shared = (*context_axes(plan), *along_tensor)
    return tuple(axis.name for axis in mesh_axes(plan) if axis.name in shared)


def expert_data_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which devices hold the same part of the same experts, and different rows go through these."""
    return names_of(mesh_axes(plan), EXPERT_DATA)


def folds_experts(plan: Plan) -> bool:
    """Are the devices of experts others than those of attention, so that rows are sent to them?"""
    return plan.ep > 1 or plan.expert_tp != plan.tp


def device_order(plan: Plan) -> tuple[int, ...]:
    """Device numbers row-major over the program's axes (pp, then dp, cp, tp), as the plan's mesh order has them."""
    if plan.mesh_order == AXES:
        return plan.device_order
    degrees = dict(plan.mesh)
    places = itertools.product(*(range(degrees[axis]) for axis in AXES))
    return tuple(plan.device_at(**dict(zip(AXES, place, strict=True))) for place in places)


def num_members(plan: Plan, names: tuple[str, ...]) -> int:
    """Devices of a group along these axes."""
    return prod(sizes_of(mesh_axes(plan), names))
