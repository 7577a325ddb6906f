"""What a latency model of a placed plan is made of: f + w, messages, gradients and attained rates between nodes; and the
step simulated with every pipeline on its own links.

A node is the innermost level of the cluster; a plan's tensor-parallel groups lie in nodes, its mesh has the usual order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshwright.ir.table import Exchange, Kind
from meshwright.ir.timing.replay import wire
from meshwright.lowering.place import place
from meshwright.prediction.step_prediction import period_s, step_program
from meshwright.prediction.step_pricing import pricing_of
from meshwright.simulator.pricing import price
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.mesh import data_axes, device_order
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.systems.planning.node_placement import NodeOrderCost

PASSES = ("F", "R", "B")  # of a microbatch on a stage: f and w together


def order_cost(plan: Plan, cluster: ClusterSpec, num_reduced: int = 1) -> NodeOrderCost:
    """What an order of the cluster's nodes costs the plan: m/p T_pp, and T_dp between nodes.

    Raises PlanError where nodes do not run whole groups of one stage.
    """
    size, num_nodes = cluster.levels[0].num_devices, cluster.num_devices // cluster.levels[0].num_devices
    if plan.mesh_order != AXES or size % (plan.cp * plan.tp) or num_nodes % plan.pp:
        raise PlanError(
            f"{plan.product_text()} on {num_nodes} nodes of {size} does not put whole nodes on stages",
            allowed=f"mesh order {', '.join(AXES)}, cp x tp that divides a node, pp that divides the nodes",
        )
    message, trips = message_bytes(plan), plan.num_microbatches / plan.pp
    part = first_gradient_bytes(plan) / copies_in_node(plan, cluster)
    return NodeOrderCost(attained_rates(plan, cluster), plan.pp, message, trips, part, num_reduced)


def message_bytes(plan: Plan) -> float:
    """Activations of a microbatch that one device sends: each of a tensor-parallel group its share."""
    whole = boundary_bytes_per_token(plan.model, plan.dtype) * plan.tokens_per_microbatch
    return whole / (plan.cp * plan.tp)


def attained_rates(plan: Plan, cluster: ClusterSpec) -> tuple[tuple[float, ...], ...]:
    """Bytes per second that the plan's messages attain between the first devices of any two nodes."""
    costs, num_bytes, message = (
        pricing_of(plan, cluster).costs,
        message_bytes(plan),
        Exchange(("pp",), shift=1),
    )
    firsts = range(0, cluster.num_devices, cluster.levels[0].num_devices)
    return tuple(
        tuple(
            math.inf if a == b else num_bytes / costs.exchange_cost(message, num_bytes, (a, b)).seconds
            for b in firsts
        )
        for a in firsts
    )


def first_gradient_bytes(plan: Plan) -> float:
    """Gradients of the first stage on one device."""
    return sum(num_local_parameters(plan, plan.stages()[0])) * float(dtype_bytes(plan.gradient_dtype))


def inner_reduction_s(plan: Plan, cluster: ClusterSpec) -> float:
    """The part of T_dp between the copies within a node: 2 (k - 1) / k bytes over the node's links."""
    copies, rate = copies_in_node(plan, cluster), cluster.levels[0].bandwidth_bytes_per_s
    return 2 * (copies - 1) / copies * first_gradient_bytes(plan) / rate


def copies_in_node(plan: Plan, cluster: ClusterSpec) -> int:
    """Copies of one stage in a node; reducing between them first leaves each its part to reduce between nodes."""
    return cluster.levels[0].num_devices // plan.tp


def devices_of(plan: Plan, cluster: ClusterSpec, nodes: Sequence[int]) -> tuple[int, ...]:
    """Device numbers in mesh order (pp, dp, cp, tp): a node's devices are its copies of one stage, side by side."""
    size, num_pipelines = cluster.levels[0].num_devices, len(nodes) // plan.pp
    return tuple(
        nodes[pipeline * plan.pp + stage] * size + device
        for stage in range(plan.pp)
        for pipeline in range(num_pipelines)
        for device in range(size)
    )


def microbatch_s(plan: Plan, cluster: ClusterSpec) -> float:
    """f + w of the slowest stage: predicted seconds of its passes, exchanges inside included."""
    costs, made = pricing_of(plan, cluster).costs, step_program(plan, cluster)
    prices, program = made.priced(costs), made.wiring.program
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    chosen = (program.kinds == Kind.COMPUTE) & np.isin(names, PASSES)
    seconds = prices.seconds[prices.cost_of_row][chosen]
    busy = np.bincount(program.list_of_row[chosen], weights=seconds, minlength=program.num_lists)
    return float(busy.max()) / plan.num_microbatches


def simulated_step_s(plan: Plan, cluster: ClusterSpec) -> float:
    """Predicted seconds of a step with every pipeline on its own links: `predict_step` stands on the first one only."""
    pricing, program = pricing_of(plan, cluster), step_program(plan, cluster).wiring.program
    for axis in program.axes:
        if axis.name in data_axes(plan):
            program = program.expand(axis.name)
    wiring, placement = wire(program), place(program, cluster, device_order(plan))
    prices = price(wiring, pricing.costs, pricing.costs, placement)
    return period_s(wiring, prices) + pricing.step_s
