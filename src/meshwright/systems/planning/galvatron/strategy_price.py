"""What a strategy takes and holds on a user's model and cluster: our kernels, exchanges and memory in place of profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.costs.pricing import pricing_of
from meshwright.ir.table import Exchange
from meshwright.planner.form.layer_costs import layer_costs
from meshwright.planner.space.site import members
from meshwright.prediction.memory_buffer import context_bytes
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.group.parameter_group import reduction_algorithm
from meshwright.stage.group.value_size import num_local_block_parameters
from meshwright.stage.mesh import data_axes, shard_axes
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.systems.planning.galvatron.cost import BACKWARD_OVER_FORWARD, Strategy, bias_s
from meshwright.systems.planning.galvatron.mechanism import layers_per_stage

Floats = NDArray[np.float64]
FORWARD_SHARE = 1 / (1 + BACKWARD_OVER_FORWARD)  # of a layer's seconds without recompute
NOTHING = Cost(0.0, compute_share=0.0)


@dataclass(frozen=True, eq=False)
class StrategyPrice:
    """A strategy for every layer of a model, for one microbatch.

    Attributes:
        plan: the strategy as a plan, nothing recomputed.
        layers_s: of every layer there and back, with all that is sent for every microbatch; shape (layers,).
        reducing_s: the same of the microbatch behind which gradients are reduced.
        layers_bytes: of every layer on a device of every stage; shape (stages, layers).
        ends_s, ends_bytes: of embedding, head, buffers and the fullest moment, on a device of every stage.
        room_bytes: what a device has for layers and ends.
    """

    plan: Plan
    strategy: Strategy
    layers_s: Floats
    reducing_s: Floats
    layers_bytes: Floats
    ends_s: Floats
    ends_bytes: Floats
    room_bytes: float


def plan_of(
    strategy: Strategy, num_samples: int, model: ModelSpec, cluster: ClusterSpec, workload: Workload, **choices: Any
) -> Plan:  # fmt: skip
    """A strategy for all layers as a plan with microbatches of so many samples over all replicas. Raises PlanError."""
    degrees: dict[str, Any] = {"pp": strategy.pp, "tp": strategy.tp, "cp": strategy.sp, "dp": strategy.dp}
    return Plan.of(
        model, cluster, workload, **degrees, **choices, microbatch_size=num_samples // strategy.dp,
        context="ulysses" if strategy.sp > 1 else Plan.context, sharding=strategy.sharding,
        sequence_parallel=strategy.tp > 1, layers_per_stage=layers_per_stage(model.num_layers, strategy.pp),
    )  # fmt: skip


def strategy_price(plan: Plan, strategy: Strategy, cluster: ClusterSpec) -> StrategyPrice:
    """A plan of the strategy, priced. Raises PlanError where the cluster's devices were never measured."""
    costs = layer_costs(plan, cluster, ("full",))["full"]
    is_again = strategy.is_recomputed
    computed, again = np.diff(costs.seconds), np.diff(costs.again) * is_again
    layers_s, reducing_s = _with_exchanges(plan, cluster, computed, again)
    sent_s = (
        2 * _sent(plan, cluster).seconds * plan.pp / plan.model.num_layers
    )  # there and back, a layer's share
    kept = np.diff(costs.saved) - np.diff(costs.freed) * is_again
    fixed = np.maximum(costs.fixed, costs.fixed_again) if is_again else costs.fixed
    context = 0.0 if cluster.machine.memory_rule == "bound" else context_bytes(plan)
    return StrategyPrice(
        plan, strategy, layers_s + sent_s, reducing_s + sent_s,
        layers_bytes=np.diff(costs.held) + costs.in_flight[:, None] * kept, ends_s=costs.end_s,
        ends_bytes=fixed + costs.in_flight * costs.end_saved, room_bytes=cluster.memory_bytes - context,
    )  # fmt: skip


def beside_s(compute_s: Floats, messages: Sequence[Cost]) -> Floats:
    """Seconds of computes with messages beside them, shape (layers,): these take their share of the device, and what is
    longer ends alone."""
    seconds = np.array([each.seconds for each in messages])
    taken = np.array([each.seconds * each.compute_share for each in messages])
    return np.asarray(np.maximum(seconds, compute_s + taken))


def _with_exchanges(
    plan: Plan, cluster: ClusterSpec, computed: Floats, again: Floats
) -> tuple[Floats, Floats]:
    """Seconds of every layer with what a microbatch gathers and scatters, and with the sum of gradients behind the last."""
    forward, backward = computed * FORWARD_SHARE, computed * (1 - FORWARD_SHARE) + again
    parameters, gradients = _layer_bytes(plan, plan.dtype), _layer_bytes(plan, plan.gradient_dtype)
    sharing = shard_axes(plan)
    copies = data_axes(plan)
    if not plan.shared.divides_gradients:
        algorithm = reduction_algorithm(sharing, copies)
        summed = _messages(plan, cluster, algorithm, copies, gradients)
        return computed + again, forward + beside_s(backward, summed)
    scattered = _messages(plan, cluster, "reduce_scatter", sharing, gradients)
    backward_s = beside_s(backward, scattered)
    if plan.shared.divides_values:
        gathered = _messages(plan, cluster, "all_gather", sharing, parameters)
        both = [Cost(a.seconds + b.seconds, compute_share=max(a.compute_share, b.compute_share))
                for a, b in zip(gathered, scattered, strict=True)]  # fmt: skip
        forward, backward_s = beside_s(forward, gathered), beside_s(backward, both)
    return forward + backward_s, forward + backward_s


def _layer_bytes(plan: Plan, dtype: str) -> list[float]:
    """Of every layer's parameters on one device, before they are shared."""
    single = (StageLayers(block, 1, False, False) for block in range(plan.model.num_layers))
    return [float(sum(num_local_block_parameters(plan, each)) * dtype_bytes(dtype)) for each in single]


def _messages(
    plan: Plan, cluster: ClusterSpec, algorithm: str, axes: Sequence[str], sizes: Sequence[float]
) -> list[Cost]:
    """What exchanges of these sizes among the devices along the axes take, each distinct size priced once."""
    ends = tuple(members(plan, axes).tolist()) if axes else ()
    costs, exchange = pricing_of(plan, cluster).costs, Exchange(tuple(axes), algorithm=algorithm)

    @cache
    def priced(size: float) -> Cost:
        return costs.exchange_cost(exchange, size, ends) if len(ends) > 1 else NOTHING

    return [priced(size) for size in sizes]


def _boundary_bytes(plan: Plan) -> float:
    """Hidden states of a microbatch of one replica."""
    return plan.tokens_per_microbatch * float(boundary_bytes_per_token(plan.model, plan.dtype))


def _sent(plan: Plan, cluster: ClusterSpec) -> Cost:
    """A device's part of the hidden states on its way to the next stage."""
    if plan.pp == 1:
        return NOTHING
    ends = (0, cluster.num_devices // plan.pp)
    size = _boundary_bytes(plan) / (plan.tp * plan.cp)
    return pricing_of(plan, cluster).costs.exchange_cost(Exchange(("pp",), (0, 1)), size, ends)


def switch_s(former: StrategyPrice, latter: StrategyPrice, cluster: ClusterSpec) -> float:
    """Seconds between two neighbouring layers: where they are spread over different numbers of devices the wider group's
    hidden states are gathered there and back, else the bias that orders equals."""
    one, other = former.strategy, latter.strategy
    if one.width == other.width:
        return bias_s(one, other)
    wider = max(former, latter, key=lambda each: each.strategy.width).plan
    axes = ("tp",) if wider.tp > 1 else ("cp",)
    return 2 * _messages(wider, cluster, "all_gather", axes, [_boundary_bytes(wider)])[0].seconds
