"""CostTables: what one block of each kind, the embedding and the head take and keep, once for every way to run them.

A way is all that these depend on: degrees inside a stage, microbatch, recompute, kind of sharding. Everything else of a
candidate (pipeline, chunks, data parallelism) is arithmetic on these rows: `closed_form`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.table import Exchange, Work
from meshwright.lowering.inner_exchange import inner_exchanges
from meshwright.lowering.mesh import collapsed_axes, data_axes, expert_data_axes
from meshwright.lowering.saved_size import saving_context
from meshwright.lowering.value_size import (
    expert_sharing_degree,
    num_local_block_parameters,
    num_local_end_parameters,
)
from meshwright.lowering.work import microbatch_shape, pass_operators
from meshwright.planner import memory_buffer as buffer
from meshwright.planner.space import SHARDINGS, Space
from meshwright.planner.step_pricing import StepPricing, pricing_of
from meshwright.simulator.pricing import with_inner
from meshwright.specs.layer_operator import step_operators
from meshwright.specs.layers import StageLayers
from meshwright.specs.plan import Plan
from meshwright.specs.saved import boundary_bytes_per_token, stage_saved_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WAY = (
    "tp",
    "cp",
    "ep",
    "sequence_parallel",
    "microbatch_size",
    "recompute",
)  # and expert_tp, and zero3 or not
GROUP = ("tp", "cp", "ep", "dp")
# Bytes (or parameters) at which exchanges (or optimizer steps) are priced; between them a line in logarithms.
GRID = np.logspace(2, 13, 12)
EMBEDDING, HEAD = -2, -1  # places behind the kinds of blocks


@dataclass(frozen=True, eq=False)
class CostTables:
    """Rows by way (`way` is every candidate's), columns by part: kinds of blocks, then embedding, then head.

    Attributes:
        forward, backward, again: seconds of one microbatch in F, B and R, exchanges inside included.
        received: seconds until a boundary that tensor-parallel devices received in shares is whole.
        saved: bytes that one microbatch in flight keeps.
        dense, expert: parameters on one device before sharding.
        transient, loss, table_gradient, whole_ends: bytes of moments, as in `memory_estimate`; `messages` of a boundary,
            of which `sent` is what one device sends.
        counts: kinds of the model's blocks, one row a block.
        group: every candidate's row of the exchanges of gradients and parameters.
        reduce, gather, reduce_expert, gather_expert: seconds by group and `GRID` bytes.
        step: seconds of an optimizer's step by `GRID` parameters.
        expert_shards: devices that share one copy of an expert's state, by group.
        pricing: of the plans of the space, by zero3 or not.
    """

    way: Ints
    forward: Floats
    backward: Floats
    again: Floats
    received: Floats
    saved: Floats
    dense: Floats
    expert: Floats
    transient: Floats
    gathered: Floats
    loss: Floats
    table_gradient: Floats
    messages: Floats
    sent: Floats
    counts: Ints
    group: Ints
    reduce: Floats
    gather: Floats
    reduce_expert: Floats
    gather_expert: Floats
    expert_shards: Ints
    step: Floats
    step_s: float
    send: Floats
    send_row: Ints


def tables_of(space: Space, *, extrapolate: bool = False, is_priced: bool = True) -> CostTables:
    """The tables of a space, every distinct way, group and boundary asked for once.

    Args:
        extrapolate: as of `pricing_of`.
        is_priced: False leaves all seconds at zero: memory needs none, and a space is smaller once it is known.

    Raises PlanError as `pricing_of`.
    """
    is_sharded = (space.sharding == SHARDINGS.index("zero3")).astype(np.int64)
    way, first = _distinct([*(getattr(space, name) for name in WAY), space.expert_tp, is_sharded])
    group, of_group = _distinct([*(getattr(space, n) for n in GROUP), (space.sharding > 0).astype(np.int64)])
    counts, parts = _parts(space)
    plans = [_alone(space.plan(int(n))) for n in first]
    groups = [_alone(space.plan(int(n))) for n in of_group]
    kept = _columns([_kept(plan, parts) for plan in plans])
    prices = _Prices(space, extrapolate) if is_priced else None
    known: dict[tuple[object, ...], float] = {}
    taken = _columns([_taken_s(plan, prices.of(plan) if prices else None, parts, known) for plan in plans])
    exchanged = _columns([_exchanged(plan, prices.of(plan) if prices else None) for plan in groups])
    stride = space.dp * space.cp * space.tp
    send_row, of_send = _distinct([kept["sent"][way].astype(np.int64), stride])
    pairs = [(float(kept["sent"][way[n]]), int(stride[n])) for n in of_send.tolist()]
    pricing = prices.of(groups[0]) if prices else None
    return CostTables(
        way=way, counts=counts, group=group, step=_stepped(groups[0], pricing),
        step_s=pricing.step_s if pricing else 0.0, send_row=send_row,
        send=np.array([_sent_s(space, pricing, size, each) for size, each in pairs]),
        expert_shards=np.array([expert_sharing_degree(plan) for plan in groups]), **kept, **taken, **exchanged,
    )  # fmt: skip


class _Prices:
    """The pricing of the plans of a space, asked for once for each class of software."""

    def __init__(self, space: Space, extrapolate: bool) -> None:
        self._cluster, self._extrapolate = space.cluster, extrapolate
        self._known: dict[str, StepPricing] = {}

    def of(self, plan: Plan) -> StepPricing:
        """Raises PlanError as `pricing_of`."""
        name = plan.software_class.name
        if name not in self._known:
            self._known[name] = pricing_of(plan, self._cluster, extrapolate=self._extrapolate)
        return self._known[name]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows with the same names as one array each."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number of every row's combination, and the first row of each."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = code * len(values) + inverse.reshape(-1)
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def _parts(space: Space) -> tuple[Ints, list[StageLayers]]:
    """Kind of every block, and one stage for each kind, for the embedding and for the head."""
    model = space.model
    kinds = model.block_kinds(0, model.num_layers)
    numbers = {model.block_kind(block): place for place, (block, _) in enumerate(kinds)}
    counts = np.zeros((model.num_layers, len(kinds)), dtype=np.int64)
    for block in range(model.num_layers):
        counts[block, numbers[model.block_kind(block)]] = 1
    parts = [StageLayers(block, 1, has_embedding=False, has_head=False) for block, _ in kinds]
    ends = [StageLayers(0, 0, True, False), StageLayers(model.num_layers, 0, False, True)]
    return counts, [*parts, *ends]


def _alone(plan: Plan) -> Plan:
    """The plan with one stage: what a part takes does not depend on the pipeline around it."""
    devices = plan.dp * plan.cp * plan.tp
    return plan.changed(
        pp=1, num_chunks=1, schedule="1f1b", num_devices=devices, layers_per_stage=(plan.model.num_layers,)
    )


def _kept(plan: Plan, parts: Sequence[StageLayers]) -> dict[str, Floats | float]:
    """Bytes and parameters of one way."""
    tokens, length, context = buffer.local_tokens(plan), plan.workload.sequence_length, saving_context(plan)
    local = [num_local_block_parameters(plan, part) for part in parts]
    ends = [num_local_end_parameters(plan, part) for part in parts]
    whole = StageLayers(0, plan.model.num_layers, True, True)
    boundary = tokens * float(boundary_bytes_per_token(plan.model, plan.dtype))
    transient = (
        buffer.recomputed_bytes(plan, whole) + buffer.inner_gradient_bytes(plan, whole)
        + buffer.weight_gradient_bytes(plan, whole) + buffer.exchange_bytes(plan, whole)
        + buffer.reduction_bytes(plan, whole)
    )  # fmt: skip
    return {
        "saved": np.array([tokens * stage_saved_bytes(plan.model, part, context, length) for part in parts]),
        "dense": np.array([each.dense + end for each, end in zip(local, ends, strict=True)], dtype=float),
        "expert": np.array([each.expert for each in local], dtype=float),
        "transient": transient,
        "gathered": buffer.gathered_bytes(plan, whole),
        "loss": buffer.loss_bytes(plan),
        "table_gradient": buffer.table_gradient_bytes(plan, whole),
        "messages": buffer.NUM_MESSAGES * boundary / (plan.tp if plan.sequence_parallel else 1),
        "sent": boundary / plan.tp,
    }


def _taken_s(
    plan: Plan,
    pricing: StepPricing | None,
    parts: Sequence[StageLayers],
    known: dict[tuple[object, ...], float],
) -> dict[str, Floats | float]:
    """Seconds of one way, nothing where nobody prices; `known` are seconds that ways have in common."""
    received = 0.0
    if pricing and plan.tp > 1 and not plan.sequence_parallel:
        boundary = buffer.local_tokens(plan) * float(boundary_bytes_per_token(plan.model, plan.dtype))
        exchange = Exchange(("tp",), algorithm="all_gather")
        received = pricing.costs.exchange_cost(exchange, boundary, tuple(range(plan.tp))).seconds

    def seconds(part: StageLayers, name: str) -> float:
        # of the choices for recompute only the attention core's changes what B runs
        special = plan.recompute if name == "B" and plan.recompute == "selective" else ""
        key = (plan.tp, plan.cp, plan.ep, plan.expert_tp, plan.sequence_parallel, plan.microbatch_size,
               plan.software_class.name, special, name, part)  # fmt: skip
        if pricing and key not in known:
            known[key] = _seconds(plan, part, name, pricing)
        return known.get(key, 0.0)

    is_again = plan.recompute == "full"
    return {
        "forward": np.array([seconds(part, "F") for part in parts]),
        "backward": np.array([seconds(part, "B") for part in parts]),
        "again": np.array([seconds(part, "R") if is_again else 0.0 for part in parts]),
        "received": received,
    }


def _seconds(plan: Plan, part: StageLayers, name: str, pricing: StepPricing) -> float:
    """One pass of one part, as `simulator.price` prices a row of it."""
    shape = microbatch_shape(plan)
    operators = pass_operators(plan, part, name, shape)
    inner = inner_exchanges(plan, part, name, shape)
    if not operators and not inner:
        return 0.0
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    dtype = "float8" if plan.float8 else plan.dtype
    work = Work(name, shape.num_tokens, dims, dtype, 0.0, 0.0, 1.0, operators, inner)
    cost = pricing.costs.cost(work, None) if operators else None
    if cost is None:
        return sum(
            each.count * pricing.costs.exchange_cost(each.exchange, each.bytes, members(plan, each.exchange.axes)).seconds
            for each in inner
        )  # fmt: skip
    ends = [members(plan, each.exchange.axes) for each in inner]
    return with_inner(cost, work, pricing.costs, pricing.costs, ends, None).seconds


def members(plan: Plan, axes: Sequence[str]) -> tuple[int, ...]:
    """Devices of the group along these axes in which device 0 of the first stage is."""
    found = np.zeros(1, dtype=np.int64)
    stride = plan.dp * plan.cp * plan.tp
    for axis in collapsed_axes(plan):
        stride //= axis.size
        if axis.name in axes:
            found = (found[:, None] + stride * np.arange(axis.size)).reshape(-1)
    return tuple(found.tolist())


def _exchanged(plan: Plan, pricing: StepPricing | None) -> dict[str, Floats]:
    """Seconds of reductions and gathers of a group, by `GRID` bytes; of one device 0."""
    algorithm = "reduce_scatter" if plan.sharding != "none" else "ring"
    whole = members(plan, data_axes(plan))
    few = members(plan, expert_data_axes(plan))
    found: dict[str, Floats] = {}
    for suffix, axes, ends in (("", data_axes(plan), whole), ("_expert", expert_data_axes(plan), few)):
        for name, kind in (("reduce", algorithm), ("gather", "all_gather")):
            is_needed = len(ends) > 1 and (name == "reduce" or plan.sharding != "none")
            exchange = Exchange(tuple(axes) or ("dp",), algorithm=kind)
            found[name + suffix] = np.zeros(len(GRID))
            if pricing and is_needed:
                found[name + suffix] = np.array(
                    [pricing.costs.exchange_cost(exchange, size, ends).seconds for size in GRID]
                )
    return found


def _stepped(plan: Plan, pricing: StepPricing | None) -> Floats:
    """Seconds of an optimizer's step by `GRID` parameters."""
    found: list[float] = []
    if pricing is None:
        return np.zeros(len(GRID))
    for size in GRID:
        operators = step_operators(int(size), plan.master_dtype or plan.dtype)
        work = Work("STEP", 0, (int(size),), plan.dtype, 0.0, 0.0, 1.0, operators)
        found.append(pricing.costs.cost(work, None).seconds)
    return np.array(found)


def _sent_s(space: Space, pricing: StepPricing | None, num_bytes: float, stride: int) -> float:
    """Seconds of one message to the next stage: the slowest of the first node's boundaries."""
    if pricing is None or stride >= space.cluster.num_devices:
        return 0.0
    node = space.cluster.levels[0].num_devices
    last = max(0, (node // stride) * stride - stride) if stride < node < space.cluster.num_devices else 0
    ends = {(0, stride), (last, last + stride)}
    exchange = Exchange(("pp",), (0, 1))
    return max(pricing.costs.exchange_cost(exchange, num_bytes, pair).seconds for pair in sorted(ends))
