"""CostTables: what one block of each kind, the embedding and the head take and keep, once for every way to run them.

A way is all that these depend on: degrees inside a stage, microbatch, recompute, kind of sharding. Everything else of a
candidate (pipeline, chunks, data parallelism) is arithmetic on these rows: `closed_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.part_seconds import (
    PassSeconds,
    ReductionSeconds,
    SpacePrices,
    columns_of,
    sent_s,
    stepped_s,
)
from meshwright.planner.form.vocabulary_share import share_parameters, vocabulary_keys, vocabulary_strides
from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.site import Sites
from meshwright.planner.space.space import Space
from meshwright.prediction import memory_buffer as buffer
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.stage.saved.saved import (
    boundary_bytes_per_token,
    stage_saved_bytes,
)
from meshwright.stage.saved.size import pending_bytes_per_token
from meshwright.stage.work import stage_works

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# What decides what a device keeps (besides expert_tp, and ZeRO-3 or not); and what decides how long its passes take.
WAY = ("tp", "cp", "context", "ep", "sequence_parallel", "microbatch_size", "recompute", "float8")
EMBEDDING, HEAD = -2, -1  # places behind the kinds of blocks
BYTES = (
    *("saved", "saved_whole", "pending", "dense", "expert", "transient", "gathered", "ends", "ends_reduced", "loss"),
    *("table_gradient", "messages", "sent", "share", "share_gathered", "waiting"),
)  # fmt: skip
MOST_CODES = 4_000_000  # combinations that are counted by their place; more of them are sorted


@dataclass(frozen=True, eq=False)
class CostTables:
    """Rows by way (`way`, `run` and `group` are every candidate's), columns by part: kinds of blocks, then embedding, head.

    Attributes:
        run: every candidate's row of what passes take.
        forward, backward, split_backward, again: seconds of one microbatch in F, in B, in I and W together, and in R.
        host_waits: of these, seconds in which the device waits for its host; of several blocks together it may wait less.
        inside: of these, seconds of exchanges inside that nothing hides.
        received: seconds until a boundary that tensor-parallel devices received in shares is whole.
        way: every candidate's row of what is kept.
        saved, saved_whole: bytes that one microbatch in flight keeps: by the plan's recompute, and by none.
        dense, expert: parameters on one device before sharding.
        transient, gathered, loss, table_gradient: bytes of moments, as in `memory_estimate`, of blocks; `ends` and
            `ends_reduced` what the embedding, the head, and both on one device add to what is gathered and to moments;
            `messages` of a boundary, of which `sent` is what one device sends; `pending` from I to W.
        share, share_gathered, waiting: of a split vocabulary on every device of a pipeline: parameters, bytes of them whole
            (and of their gradients before a reduction), and what one microbatch keeps between its passes.
        share_forward, share_backward: seconds of these passes on every device, with its forwards and with its backwards.
        counts: kinds of the model's blocks, one row a block.
        group: every candidate's row of the exchanges of gradients and parameters.
        reduce, gather, scatter, and those of experts: seconds by group and `GRID` bytes, of all copies of a gradient, of what
            is shared, and of gradients among those that share.
        expert_shards: devices that share one copy of an expert's state, by group.
        step: seconds of an optimizer's step by `GRID` parameters; `step_s` of a step beside its instructions.
        send, send_row: seconds of one message to the next stage, and every candidate's row of it.
    """

    counts: Ints
    run: Ints
    forward: Floats
    backward: Floats
    split_backward: Floats
    again: Floats
    host_waits: Floats
    inside: Floats
    received: Floats
    share_forward: Floats
    share_backward: Floats
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
    share: Floats
    share_gathered: Floats
    waiting: Floats
    group: Ints
    reduce: Floats
    gather: Floats
    reduce_expert: Floats
    gather_expert: Floats
    scatter: Floats
    scatter_expert: Floats
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


class CostSources:
    """What tables of one model on one cluster are made from, whatever part of the space they are of: what was asked for
    once is known to the next table as well.

    Args:
        extrapolate: as of `pricing_of`.
        is_priced: False leaves all seconds at zero.
    """

    def __init__(self, space: Space, *, extrapolate: bool = False, is_priced: bool = True) -> None:
        self.counts, self.parts = _parts(space)
        self.prices = SpacePrices(space, extrapolate) if is_priced else None
        sites = Sites(space.cluster)
        self.passes = PassSeconds(self.parts, self.prices, sites)
        self.exchanges = ReductionSeconds(self.prices, sites)

    def computed_s(self, plan: Plan) -> float:
        """Seconds that the passes of one microbatch compute, over all stages; what they exchange aside."""
        of_part = self.passes.computed_s(plan)
        return float(of_part[:EMBEDDING] @ self.counts.sum(axis=0) + of_part[EMBEDDING] + of_part[HEAD])


def tables_of(
    space: Space, *, extrapolate: bool = False, is_priced: bool = True, known: CostTables | None = None,
    sources: CostSources | None = None,
) -> CostTables:  # fmt: skip
    """The tables of a space, every distinct way, run, group and boundary asked for once.

    Args:
        extrapolate: as of `pricing_of`.
        sources: of a space of which this is a part; its prices are taken, if this is priced.
        is_priced: False leaves all seconds at zero: memory needs none, and a space is smaller once it is known.
        known: tables of the same candidates without prices; their bytes are not counted again.

    Raises PlanError as `pricing_of`.
    """
    sources = sources or CostSources(space, extrapolate=extrapolate)
    way, kept = (
        _bytes(space, sources.parts)
        if known is None
        else (known.way, {name: getattr(known, name) for name in BYTES})
    )
    prices = sources.prices if is_priced else None
    run, first = (
        distinct([way, *_inner_strides(space), vocabulary_strides(space)])
        if prices
        else (np.zeros_like(way), way[:0])
    )
    taken = sources.passes.of_all(space, first, is_priced=is_priced)
    group, first = distinct(_group_keys(space))
    exchanged = sources.exchanges.of_all(space, first, is_priced=is_priced)
    strides = space.strides
    send_row, sent = distinct([kept["sent"][way].astype(np.int64), strides["pp"], space.pp])
    some = space.plan(0)
    pricing = prices.of(some) if prices else None
    send = [
        sent_s(space, pricing, float(kept["sent"][way[n]]), int(strides["pp"][n]), int(space.pp[n]))
        for n in sent
    ]
    return CostTables(
        counts=sources.counts, run=run, way=way, group=group, step=stepped_s(some, pricing),
        step_s=pricing.step_s if pricing else 0.0, send_row=send_row, send=np.array(send),
        expert_shards=_expert_shards(space)[first], **kept, **taken, **exchanged,
    )  # fmt: skip


def _bytes(space: Space, parts: Sequence[StageLayers]) -> tuple[Ints, dict[str, Any]]:
    """Every candidate's way, and what each way keeps."""
    is_zero3 = (space.sharding == SHARDINGS.index("zero3")).astype(np.int64)
    columns = [*(getattr(space, name) for name in WAY), space.expert_tp, is_zero3, *vocabulary_keys(space)]
    way, first = distinct(columns)
    found = []
    for n in first.tolist():
        alone = space.one_stage(n)
        found.append(_kept(alone, space.plan(n) if space.vocabulary[n] else alone, parts))
    return way, columns_of(found)


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


def distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
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
    parts = [StageLayers(_inner(model, block), 1, has_embedding=False, has_head=False) for block, _ in kinds]
    ends = [StageLayers(0, 0, True, False), StageLayers(model.num_layers, 0, False, True)]
    return counts, [*parts, *ends]


def _inner(model: ModelSpec, block: int) -> int:
    """Of blocks of the kind of this one, its first, the one that stands for all; of a decoder behind an encoder the last:
    with the first goes the table of its tokens, which candidates are ranked without."""
    if model.layers[block].half != "decoder":
        return block
    return max(b for b in range(model.num_layers) if model.block_kind(b) == model.block_kind(block))


def _kept(plan: Plan, split: Plan, parts: Sequence[StageLayers]) -> dict[str, Floats | float]:
    """Bytes and parameters of one way, without its pipeline; `split`: with it, where the vocabulary is split along it."""
    length, model = plan.workload.sequence_length, plan.model
    blocks = StageLayers(0, model.num_layers, has_embedding=False, has_head=False)
    *works, whole = stage_works(plan, (*parts[:EMBEDDING], blocks))
    *ends, both, last, first = stage_works(
        split, (*parts[EMBEDDING:], StageLayers(0, 0, True, True), blocks, split.stages()[0])
    )
    works, share = [*works, *ends], float(share_parameters(split))
    tokens, context = whole.num_tokens, whole.context
    uncut = context._replace(recompute="none")
    boundary = tokens * float(boundary_bytes_per_token(model, plan.dtype))
    transient = (
        buffer.recomputed_bytes(whole) + buffer.inner_gradient_bytes(whole)
        + buffer.weight_gradient_bytes(whole) + buffer.exchange_bytes(whole)
        + buffer.reduction_bytes(whole)
    )  # fmt: skip
    return {
        "saved": np.array([tokens * stage_saved_bytes(model, part, context, length) for part in parts]),
        "saved_whole": np.array([tokens * stage_saved_bytes(model, part, uncut, length) for part in parts]),
        "pending": np.array([tokens * pending_bytes_per_token(split, part) / plan.tp for part in parts]),
        "dense": np.array(
            [work.block_parameters.dense + work.num_end_parameters for work in works], dtype=float
        ),
        "expert": np.array([work.block_parameters.expert for work in works], dtype=float),
        "transient": transient,
        "gathered": buffer.gathered_bytes(whole),
        "ends": np.array([buffer.gathered_bytes(part) for part in (*ends, both)]),
        "ends_reduced": np.array([buffer.reduction_bytes(part) for part in (*ends, both)]),
        "loss": buffer.loss_bytes(last),
        "table_gradient": buffer.table_gradient_bytes(first),
        "messages": buffer.NUM_MESSAGES * boundary / (plan.tp if plan.sequence_parallel else 1),
        "sent": boundary / plan.tp,
        "share": share,
        "share_gathered": share * dtype_bytes(plan.dtype) if plan.shared.divides_values else 0.0,
        "waiting": buffer.waiting_bytes(split),
    }
