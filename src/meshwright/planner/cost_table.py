"""CostTables: what one block of each kind, the embedding and the head take and keep, once for every way to run them.

A way is all that these depend on: degrees inside a stage, microbatch, recompute, kind of sharding. Everything else of a
candidate (pipeline, chunks, data parallelism) is arithmetic on these rows: `closed_form`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.ir.table import Exchange, Work
from meshwright.lowering.inner_exchange import inner_exchanges
from meshwright.lowering.mesh import collapsed_axes, data_axes, expert_axes, expert_data_axes, shard_axes
from meshwright.lowering.saved_size import saving_context
from meshwright.lowering.value_size import (
    num_local_block_parameters,
    num_local_end_parameters,
)
from meshwright.lowering.work import microbatch_shape, pass_operators
from meshwright.planner import memory_buffer as buffer
from meshwright.planner.axis import SHARDINGS
from meshwright.planner.layout import mesh_strides
from meshwright.planner.space import Space
from meshwright.planner.step_pricing import StepPricing, pricing_of
from meshwright.simulator.pricing import with_inner
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.layer_operator import step_operators
from meshwright.specs.layers import StageLayers
from meshwright.specs.plan import Plan
from meshwright.specs.saved import (
    boundary_bytes_per_token,
    pending_gradient_bytes_per_token,
    stage_saved_bytes,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# What decides what a device keeps (besides expert_tp, and ZeRO-3 or not); and what decides how long its passes take.
WAY = ("tp", "cp", "ep", "sequence_parallel", "microbatch_size", "recompute", "float8")
# Bytes (or parameters) at which exchanges (or optimizer steps) are priced; between them a line in logarithms.
GRID = np.logspace(2, 13, 12)
EMBEDDING, HEAD = -2, -1  # places behind the kinds of blocks
BYTES = (
    *("saved", "saved_whole", "pending", "dense", "expert", "transient", "gathered", "ends", "ends_reduced", "loss"),
    *("table_gradient", "messages", "sent"),
)  # fmt: skip
MOST_CODES = 4_000_000  # combinations that are counted by their place; more of them are sorted


@dataclass(frozen=True, eq=False)
class CostTables:
    """Rows by way (`way`, `run` and `group` are every candidate's), columns by part: kinds of blocks, then embedding, head.

    Attributes:
        run: every candidate's row of what passes take.
        forward, backward, again: seconds of one microbatch in F, in B (I and W take no less together), and in R.
        received: seconds until a boundary that tensor-parallel devices received in shares is whole.
        way: every candidate's row of what is kept.
        saved, saved_whole: bytes that one microbatch in flight keeps: by the plan's recompute, and by none.
        dense, expert: parameters on one device before sharding.
        transient, gathered, loss, table_gradient: bytes of moments, as in `memory_estimate`, of blocks; `ends` and
            `ends_reduced` what the embedding, the head, and both on one device add to what is gathered and to moments;
            `messages` of a boundary, of which `sent` is what one device sends; `pending` from I to W.
        counts: kinds of the model's blocks, one row a block.
        group: every candidate's row of the exchanges of gradients and parameters.
        reduce, gather, reduce_expert, gather_expert: seconds by group and `GRID` bytes.
        expert_shards: devices that share one copy of an expert's state, by group.
        step: seconds of an optimizer's step by `GRID` parameters; `step_s` of a step beside its instructions.
        send, send_row: seconds of one message to the next stage, and every candidate's row of it.
    """

    counts: Ints
    run: Ints
    forward: Floats
    backward: Floats
    again: Floats
    received: Floats
    way: Ints
    saved: Floats
    saved_whole: Floats
    pending: Floats
    dense: Floats
    expert: Floats
    transient: Floats
    gathered: Floats
    ends: Floats
    ends_reduced: Floats
    loss: Floats
    table_gradient: Floats
    messages: Floats
    sent: Floats
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

    def taken(self, chosen: Ints) -> CostTables:
        """Those of the candidates with these numbers."""
        return replace(
            self,
            run=self.run[chosen],
            way=self.way[chosen],
            group=self.group[chosen],
            send_row=self.send_row[chosen],
        )


def tables_of(
    space: Space, *, extrapolate: bool = False, is_priced: bool = True, known: CostTables | None = None
) -> CostTables:
    """The tables of a space, every distinct way, run, group and boundary asked for once.

    Args:
        extrapolate: as of `pricing_of`.
        is_priced: False leaves all seconds at zero: memory needs none, and a space is smaller once it is known.
        known: tables of the same candidates without prices; their bytes are not counted again.

    Raises PlanError as `pricing_of`.
    """
    counts, parts = _parts(space)
    way, kept = (
        _bytes(space, parts) if known is None else (known.way, {name: getattr(known, name) for name in BYTES})
    )
    prices = _Prices(space, extrapolate) if is_priced else None
    run, first = _distinct([way, *_inner_strides(space)]) if prices else (np.zeros_like(way), way[:0])
    seconds = _Seconds(parts, prices, _Sites(space.cluster))
    taken = seconds.of_all(space, first)
    group, first = _distinct(_group_keys(space))
    exchanged = _Exchanges(prices, seconds.sites).of_all(space, first)
    strides = space.strides
    send_row, sent = _distinct([kept["sent"][way].astype(np.int64), strides["pp"], space.pp])
    some = space.plan(0)
    pricing = prices.of(some) if prices else None
    send = [
        _sent_s(space, pricing, float(kept["sent"][way[n]]), int(strides["pp"][n]), int(space.pp[n]))
        for n in sent
    ]
    return CostTables(
        counts=counts, run=run, way=way, group=group, step=_stepped(some, pricing),
        step_s=pricing.step_s if pricing else 0.0, send_row=send_row, send=np.array(send),
        expert_shards=_expert_shards(space)[first], **kept, **taken, **exchanged,
    )  # fmt: skip


def _bytes(space: Space, parts: Sequence[StageLayers]) -> tuple[Ints, dict[str, Any]]:
    """Every candidate's way, and what each way keeps."""
    is_zero3 = (space.sharding == SHARDINGS.index("zero3")).astype(np.int64)
    way, first = _distinct([*(getattr(space, name) for name in WAY), space.expert_tp, is_zero3])
    return way, _columns([_kept(_alone(space.plan(int(n))), parts) for n in first])


def _expert_shards(space: Space) -> Ints:
    """Devices that share one copy of an expert's state, as `expert_sharing_degree`."""
    everybody = np.where(space.sharding_degree > 0, space.sharding_degree, space.dp * space.cp)
    shared = np.where(space.sharding > 0, everybody, 1)
    own = np.where(
        (space.ep > 1) & (space.expert_tp == 1), space.ep // np.minimum(space.tp, space.ep), space.ep
    )
    return np.asarray(np.maximum(1, shared // np.maximum(1, own)))


def _inner_strides(space: Space) -> list[Ints]:
    """Steps between devices along the axes on which a stage exchanges: they decide which of its exchanges cross nodes."""
    strides = space.strides
    return [np.where(space.cp > 1, strides["cp"], 0), np.where(space.ep > 1, strides["dp"], 0)]


def _group_keys(space: Space) -> list[Ints]:
    """What decides among whom gradients and parameters are exchanged, and how."""
    strides = space.strides
    is_sharded = (space.sharding > 0).astype(np.int64)
    along = [np.where(space.dp > 1, strides["dp"], 0), np.where(space.cp > 1, strides["cp"], 0)]
    return [space.tp, space.cp, space.ep, space.dp, is_sharded, space.sharding_degree, *along]


class _Prices:
    """The pricing of the plans of a space, asked for once for each class of software and format."""

    def __init__(self, space: Space, extrapolate: bool) -> None:
        self._cluster, self._extrapolate = space.cluster, extrapolate
        self._known: dict[tuple[str, str], StepPricing] = {}

    def of(self, plan: Plan) -> StepPricing:
        """Raises PlanError as `pricing_of`."""
        key = (plan.software_class.name, plan.float8)
        if key not in self._known:
            self._known[key] = pricing_of(plan, self._cluster, extrapolate=self._extrapolate)
        return self._known[key]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows with the same names as one array each."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number of every row's combination, and the first row of each."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        top = int(column.max()) + 1
        if top * (int(code.max()) + 1) > MOST_CODES:  # then only those that occur are numbered
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        if top * (int(code.max()) + 1) > MOST_CODES:
            values, column = np.unique(column, return_inverse=True)
            column, top = column.reshape(-1), len(values)
        code = code * top + column
    if int(code.max()) < MOST_CODES:  # dense enough to count
        number = np.full(int(code.max()) + 1, -1, dtype=np.int64)
        number[code[::-1]] = np.arange(len(code) - 1, -1, -1)
        first = number[number >= 0]
        number[number >= 0] = np.arange(len(first))
        return number[code], first
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return inverse.reshape(-1), first


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
        pp=1, num_chunks=1, schedule="1f1b", num_devices=devices, layers_per_stage=(plan.model.num_layers,),
        recompute_blocks=(),
    )  # fmt: skip


def _kept(plan: Plan, parts: Sequence[StageLayers]) -> dict[str, Floats | float]:
    """Bytes and parameters of one way."""
    tokens, length, model = buffer.local_tokens(plan), plan.workload.sequence_length, plan.model
    context = saving_context(plan)
    uncut = context._replace(recompute="none")
    local = [num_local_block_parameters(plan, part) for part in parts]
    ends = [num_local_end_parameters(plan, part) for part in parts]
    whole = StageLayers(0, model.num_layers, has_embedding=False, has_head=False)
    both = StageLayers(0, 0, has_embedding=True, has_head=True)
    boundary = tokens * float(boundary_bytes_per_token(model, plan.dtype))
    transient = (
        buffer.recomputed_bytes(plan, whole) + buffer.inner_gradient_bytes(plan, whole)
        + buffer.weight_gradient_bytes(plan, whole) + buffer.exchange_bytes(plan, whole)
        + buffer.reduction_bytes(plan, whole)
    )  # fmt: skip
    return {
        "saved": np.array([tokens * stage_saved_bytes(model, part, context, length) for part in parts]),
        "saved_whole": np.array([tokens * stage_saved_bytes(model, part, uncut, length) for part in parts]),
        "pending": np.array(
            [tokens * pending_gradient_bytes_per_token(model, part, plan.dtype) / plan.tp for part in parts]
        ),
        "dense": np.array([each.dense + end for each, end in zip(local, ends, strict=True)], dtype=float),
        "expert": np.array([each.expert for each in local], dtype=float),
        "transient": transient,
        "gathered": buffer.gathered_bytes(plan, whole),
        "ends": np.array([buffer.gathered_bytes(plan, part) for part in (*parts[EMBEDDING:], both)]),
        "ends_reduced": np.array([buffer.reduction_bytes(plan, part) for part in (*parts[EMBEDDING:], both)]),
        "loss": buffer.loss_bytes(plan),
        "table_gradient": buffer.table_gradient_bytes(plan, both),
        "messages": buffer.NUM_MESSAGES * boundary / (plan.tp if plan.sequence_parallel else 1),
        "sent": boundary / plan.tp,
    }


class _Seconds:
    """What the passes of one microbatch take, part by part; what ways have in common is asked for once."""

    def __init__(self, parts: Sequence[StageLayers], prices: _Prices | None, sites: _Sites) -> None:
        self.sites = sites
        self._parts, self._prices = parts, prices
        self._works: dict[tuple[object, ...], list[tuple[Work, Cost]]] = {}
        self._known: dict[tuple[object, ...], Floats] = {}

    def of_all(self, space: Space, numbers: Ints) -> dict[str, Any]:
        """Seconds of these candidates' passes, row by row; nothing where nobody prices."""
        if self._prices is None:
            nothing = np.zeros((1, len(self._parts)))
            return {"forward": nothing, "backward": nothing, "again": nothing, "received": np.zeros(1)}
        return _columns([self._of(space.plan(int(n)), self._prices) for n in numbers])

    def _of(self, plan: Plan, prices: _Prices) -> dict[str, Floats | float]:
        pricing = prices.of(plan)
        return {
            "forward": self._pass(plan, "F", pricing),
            "backward": self._pass(plan, "B", pricing),
            "again": self._pass(plan, "R", pricing)
            if plan.recompute == "full"
            else np.zeros(len(self._parts)),
            "received": _received_s(plan, pricing),
        }

    def _pass(self, plan: Plan, name: str, pricing: StepPricing) -> Floats:
        """As `simulator.price` prices rows of these works, with the exchanges inside where the plan puts them."""
        # of the choices for recompute only the attention core's changes what a backward runs
        special = plan.recompute if name == "B" and plan.recompute == "selective" else ""
        key = (plan.tp, plan.cp, plan.ep, plan.expert_tp, plan.sequence_parallel, plan.microbatch_size, plan.float8,
               plan.software_class.name, special, name)  # fmt: skip
        experts = self.sites.members(plan, expert_axes(plan))
        ends: dict[tuple[str, ...], tuple[int, ...]] = {
            (axis,): self.sites.members(plan, (axis,)) for axis in ("tp", "cp")
        }
        placed = (key, experts, *ends.values())
        if placed not in self._known:
            works = self._priced_works(plan, key, name, pricing)
            self._known[placed] = np.array(
                [
                    with_inner(
                        cost, work, pricing.costs, pricing.costs,
                        [ends.get(each.exchange.axes, experts) for each in work.inner], None,
                    ).seconds
                    for work, cost in works
                ]
            )  # fmt: skip
        return self._known[placed]

    def _priced_works(
        self, plan: Plan, key: tuple[object, ...], name: str, pricing: StepPricing
    ) -> list[tuple[Work, Cost]]:
        if key not in self._works:
            works = [_work(_alone(plan), part, name) for part in self._parts]
            self._works[key] = [
                (work, pricing.costs.cost(work) if work.operators else Cost(0.0)) for work in works
            ]
        return self._works[key]


def _work(plan: Plan, part: StageLayers, name: str) -> Work:
    """One pass of one part."""
    shape = microbatch_shape(plan)
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    dtype = "float8" if plan.float8 else plan.dtype
    operators = pass_operators(plan, part, name, shape)
    return Work(
        name,
        shape.num_tokens,
        dims,
        dtype,
        0.0,
        0.0,
        1.0,
        operators,
        inner_exchanges(plan, part, name, shape),
    )


def _received_s(plan: Plan, pricing: StepPricing) -> float:
    if plan.tp == 1 or plan.sequence_parallel:
        return 0.0
    boundary = buffer.local_tokens(plan) * float(boundary_bytes_per_token(plan.model, plan.dtype))
    exchange = Exchange(("tp",), algorithm="all_gather")
    return pricing.costs.exchange_cost(exchange, boundary, tuple(range(plan.tp))).seconds


def members(plan: Plan, axes: Sequence[str]) -> Ints:
    """Devices of the group along these axes in which the first device is, in the order of their coordinates."""
    found = np.zeros(1, dtype=np.int64)
    steps = mesh_strides(dict(plan.mesh))
    inside = 1  # along dp, of the axes into which it is cut
    for axis in reversed(collapsed_axes(plan)):
        step = steps[axis.name] if axis.name in steps and axis.name != "dp" else steps["dp"] * inside
        inside *= axis.size if axis.name.startswith("dp") else 1
        if axis.name in axes:
            found = (step * np.arange(axis.size)[:, None] + found).reshape(-1)
    return found


class _Sites:
    """Groups of devices, one for all that lie alike on the nodes of a cluster: exchanges cannot tell them apart."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._node, self._is_flat = (
            cluster.levels[0].num_devices,
            len(cluster.levels) <= 2 and not cluster.links,
        )
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._asked: dict[tuple[object, ...], tuple[int, ...]] = {}

    def members(self, plan: Plan, axes: Sequence[str]) -> tuple[int, ...]:
        """Devices of a group that lies as the plan's along these axes."""
        key = (plan.mesh, plan.ep, plan.sharing_degree, tuple(axes))
        if key not in self._asked:
            self._asked[key] = self._alike(members(plan, axes))
        return self._asked[key]

    def _alike(self, found: Ints) -> tuple[int, ...]:
        if not self._is_flat:
            return tuple(found.tolist())
        counts = np.bincount(found // self._node)
        counts = counts[counts > 0]
        key = (len(counts), int(counts.min()), int(counts.max()))
        if key not in self._known:
            self._known[key] = tuple(found.tolist())
        return self._known[key]


class _Exchanges:
    """Seconds of reductions and gathers by `GRID` bytes, each distinct one asked for once."""

    def __init__(self, prices: _Prices | None, sites: _Sites) -> None:
        self._prices, self._sites = prices, sites
        self._known: dict[tuple[str, tuple[int, ...]], Floats] = {}

    def of_all(self, space: Space, numbers: Ints) -> dict[str, Any]:
        """Of these candidates' groups, row by row; of one device 0. Nothing where nobody prices."""
        if self._prices is None:
            nothing = np.zeros((1, len(GRID)))
            return dict.fromkeys(("reduce", "gather", "reduce_expert", "gather_expert"), nothing)
        return _columns([self._of(space.plan(int(n))) for n in numbers])

    def _of(self, plan: Plan) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        shards = set(shard_axes(plan))
        for suffix, axes in (("", data_axes(plan)), ("_expert", expert_data_axes(plan))):
            sharing = tuple(axis for axis in axes if axis in shards)
            is_whole = sharing == tuple(axes)
            algorithm = "ring" if not shards else "reduce_scatter" if is_whole else "all_reduce.two_level"
            found["reduce" + suffix] = self._seconds(plan, algorithm, axes)
            found["gather" + suffix] = self._seconds(plan, "all_gather", sharing)
        return found

    def _seconds(self, plan: Plan, algorithm: str, axes: Sequence[str]) -> Floats:
        assert self._prices is not None, "nobody asks without prices"
        if not axes:
            return np.zeros(len(GRID))
        ends = self._sites.members(plan, axes)
        key = (algorithm, ends)
        if key not in self._known:
            costs, exchange = self._prices.of(plan).costs, Exchange(tuple(axes), algorithm=algorithm)
            sizes = GRID if len(ends) > 1 else ()
            found = [costs.exchange_cost(exchange, size, ends).seconds for size in sizes]
            self._known[key] = np.array(found or [0.0] * len(GRID))
        return self._known[key]


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


def _sent_s(space: Space, pricing: StepPricing | None, num_bytes: float, stride: int, pp: int) -> float:
    """Seconds of one message to the next stage: the slowest of the first node's boundaries."""
    if pricing is None or pp == 1:
        return 0.0
    node = space.cluster.levels[0].num_devices
    last = max(0, min(pp - 1, node // stride) - 1) * stride if stride < node else 0
    crossing = (node // stride - 1) * stride if stride < node and pp > node // stride else last
    exchange = Exchange(("pp",), (0, 1))
    pairs = sorted({(0, stride), (crossing, crossing + stride)})
    return max(pricing.costs.exchange_cost(exchange, num_bytes, pair).seconds for pair in pairs)
