"""Mesh: the axes of a plan's program, where groups cut its data-parallel axis, and which device stands at which place.

Data-parallel devices that share sharded state, or experts, may be fewer than all: then the axis is cut, and its inner
part is an axis of its own, named by its length ("dp8": the innermost 8 of dp); so is cp's, where whole experts are
divided over fewer devices than tp x cp, or where neighbours along it exchange heads inside a ring. What is replicated,
sharded or exchanged along whole axes only is then a matter of names.
"""

from __future__ import annotations

import itertools
from math import prod

from meshwright.ir.program import Axis
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import AXES, Plan


def collapsed_axes(plan: Plan) -> tuple[Axis, ...]:
    """Axes behind ``pp`` on which all devices have one list: dp and its inner parts, cp, tp. Raises PlanError."""
    tensor = (Axis("tp", plan.tp, materialised=False),) if plan.tp > 1 else ()
    return (*_data_parallel(plan), *_context_parallel(plan), *tensor)


def data_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which devices hold the same parameters and different data."""
    return tuple(axis.name for axis in _data_parallel(plan)) + context_axes(plan)


def context_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that share every sequence."""
    return tuple(axis.name for axis in _context_parallel(plan))


def heads_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices that exchange heads; none where nobody does."""
    if plan.context_parallel.heads_degree == 1:
        return ()
    return _within(_context_parallel(plan), plan.context_parallel.heads_degree)


def ring_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices whose queries are of different tokens while they attend."""
    own = heads_axes(plan)
    return tuple(name for name in context_axes(plan) if name not in own)


def has_experts_along_context(plan: Plan) -> bool:
    """Are whole experts on fewer devices than share a sequence?"""
    return _context_length(plan) > 1


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
    return _inner_axes(plan, degree // plan.cp) + context_axes(plan)


def expert_axes(plan: Plan) -> tuple[str, ...]:
    """Axes of the devices among which the experts of a layer are divided; none where ep is 1."""
    if plan.ep == 1:
        return ()
    tensor = ("tp",) if plan.expert_tp == 1 and plan.tp > 1 else ()
    if length := _context_length(plan):
        return _within(_context_parallel(plan), length) + tensor
    return _inner_axes(plan, _expert_length(plan)) + context_axes(plan) + tensor


def expert_data_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which devices hold the same experts and different data."""
    own = expert_axes(plan)
    return tuple(name for name in data_axes(plan) if name not in own)


def _expert_length(plan: Plan) -> int:
    """Length along dp of a group that shares experts."""
    if _context_length(plan):
        return 1
    inside = plan.cp * (plan.tp if plan.expert_tp == 1 else 1)
    if plan.ep % inside:
        raise PlanError(
            f"ep({plan.ep}) does not fill cp({plan.cp}){f' x tp({plan.tp})' if plan.expert_tp == 1 else ''}",
            allowed="an expert degree that is a multiple of it: experts are divided from the inside out",
        )
    return plan.ep // inside


def _context_length(plan: Plan) -> int:
    """Length along cp of a group that shares whole experts, where that is less than cp; else 0."""
    is_inside = plan.etp == 1 and plan.ep > 1 and plan.ep < plan.cp * plan.tp and plan.ep % plan.tp == 0
    return plan.ep // plan.tp if is_inside else 0


def _context_parallel(plan: Plan) -> tuple[Axis, ...]:
    """The axis cp, cut where a group that shares experts, or heads, is shorter."""
    if plan.cp == 1:
        return ()
    cuts = {cut for cut in (_context_length(plan), plan.ulysses) if cut > 1}
    lengths = [plan.cp, *sorted(cuts, reverse=True), 1]
    for longer, shorter in itertools.pairwise(lengths):
        if longer % shorter:
            raise PlanError(
                f"groups of {shorter} and of {longer} devices along cp({plan.cp}) do not nest",
                allowed="groups that share experts or heads and divide each other",
            )
    return tuple(
        Axis("cp" if longer == plan.cp else f"cp{longer}", longer // shorter, materialised=False)
        for longer, shorter in itertools.pairwise(lengths)
    )


def _inner_axes(plan: Plan, length: int) -> tuple[str, ...]:
    """Names of the innermost axes of dp that have this length together."""
    return _within(_data_parallel(plan), length)


def _within(axes: tuple[Axis, ...], length: int) -> tuple[str, ...]:
    """Names of the innermost of these axes that have this length together."""
    names: list[str] = []
    for axis in reversed(axes):
        if length == 1:
            break
        names.insert(0, axis.name)
        length //= axis.size
    return tuple(names)


def _data_parallel(plan: Plan) -> tuple[Axis, ...]:
    """The axis dp, cut where a group that is shorter begins."""
    cuts = {_expert_length(plan)} if plan.ep > 1 else set()
    for degree in {one for one in plan.sharing_degrees if one > 1}:
        if degree % plan.cp:
            raise PlanError(
                f"sharding_degree({degree}) does not fill cp({plan.cp})",
                allowed="a multiple of cp: state is divided from the inside out",
            )
        cuts.add(degree // plan.cp)
    lengths = [plan.dp, *sorted((cut for cut in cuts if 1 < cut < plan.dp), reverse=True), 1]
    for longer, shorter in itertools.pairwise(lengths):
        if longer % shorter:
            raise PlanError(
                f"groups of {shorter} and of {longer} devices along dp({plan.dp}) do not nest",
                allowed="groups that share state or experts and divide each other",
            )
    return tuple(
        Axis("dp" if longer == plan.dp else f"dp{longer}", longer // shorter, materialised=False)
        for longer, shorter in itertools.pairwise(lengths)
    )


def device_order(plan: Plan) -> tuple[int, ...]:
    """Device numbers row-major over the program's axes (pp, then dp, cp, tp), as the plan's mesh order has them."""
    if plan.mesh_order == AXES:
        return plan.device_order
    degrees = dict(plan.mesh)
    places = itertools.product(*(range(degrees[axis]) for axis in AXES))
    return tuple(plan.device_at(**dict(zip(AXES, place, strict=True))) for place in places)


def num_members(plan: Plan, names: tuple[str, ...]) -> int:
    """Devices of a group along these axes."""
    sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
    return prod(sizes[name] for name in names)
