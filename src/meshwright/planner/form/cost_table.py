"""CostTables: what one block of each kind, the embedding and the head take and keep, once for every way to run them.

A way is all that these depend on: degrees inside a stage, microbatch, recompute, kind of sharding. Everything else of a
candidate (pipeline, chunks, data parallelism) is arithmetic on these rows: `closed_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.pricing import Pricing
from meshwright.planner.form.distinct import Answers, distinct
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
WAY = (
    *("tp", "cp", "context", "token_layout", "ulysses", "ep"),
    *("sequence_parallel", "microbatch_size", "recompute", "float8"),
)
EMBEDDING, HEAD = -2, -1  # places behind the kinds of blocks


@dataclass(frozen=True, eq=False)
class CostTables:
    """Rows by way (`way`, `run` and `group` are every candidate's), columns by part: kinds of blocks, then embedding, head.

    Attributes:
        run: every candidate's row of what passes take.
        forward, backward, split_backward, weight, again: seconds of one microbatch in F, in B, in I and W together, in W of
            these, and in R.
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
    weight: Floats
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


class CostSources:
    """What tables of one model on one cluster are made from, whatever part of the space they are of: what was asked for
    once is known to the next table as well.

    Args:
        extrapolate: as of `pricing_of`.
        is_priced: False leaves all seconds at zero.
    """

    def __init__(self, space: Space, *, extrapolate: bool = False, is_priced: bool = True) -> None:
        self.extrapolate = extrapolate
        self.counts, self.parts = _parts(space)
        self.prices = SpacePrices(space, extrapolate) if is_priced else None
        self.sites = Sites(space.cluster)
        self.passes = PassSeconds(self.parts, self.prices, self.sites)
        self.exchanges = ReductionSeconds(self.prices, self.sites)
        self._kept, self._sent = Answers[dict[str, Any]](), Answers[float]()

    def kept(self, space: Space) -> tuple[Ints, list[Ints], dict[str, Any]]:
        """Every candidate's way, what decides it, and what each way keeps."""
        is_zero3 = (space.sharding == SHARDINGS.index("zero3")).astype(np.int64)
        columns = [
            *(getattr(space, name) for name in WAY),
            space.expert_tp,
            is_zero3,
            *vocabulary_keys(space),
        ]
        way, first = distinct(columns)

        def kept(row: int) -> dict[str, Any]:
            alone = space.one_stage(row)
            return _kept(alone, space.plan(row) if space.vocabulary[row] else alone, self.parts)

        return way, columns, columns_of(self._kept.of(columns, first, kept))

    def sent_s(self, space: Space, sent_bytes: Floats, pricing: Pricing | None) -> tuple[Ints, Floats]:
        """Every candidate's row of messages to the next stage, and the seconds of each; `sent_bytes` of a device."""
        size, stride = sent_bytes.astype(np.int64), self.sites.told_apart(space.strides["pp"])
        send_row, first = distinct(columns := [size, stride, space.pp])

        def seconds(row: int) -> float:
            return sent_s(space, pricing, float(sent_bytes[row]), int(stride[row]), int(space.pp[row]))

        asked = self._sent if pricing else Answers[float]()  # without prices nothing is known of seconds
        return send_row, np.array(asked.of(columns, first, seconds))

    def computed_s(self, plan: Plan) -> float:
        """Seconds that the passes of one microbatch compute, over all stages; what they exchange aside."""
        of_part = self.passes.computed_s(plan)
        return float(of_part[:EMBEDDING] @ self.counts.sum(axis=0) + of_part[EMBEDDING] + of_part[HEAD])


def tables_of(
    space: Space, *, extrapolate: bool = False, is_priced: bool = True, sources: CostSources | None = None
) -> CostTables:
    """The tables of a space, every distinct way, run, group and boundary asked for once.

    Args:
        extrapolate: as of `pricing_of`.
        sources: of a space of which this is a part; its prices are taken, if this is priced.
        is_priced: False leaves all seconds at zero: memory needs none, and a space is smaller once it is known.

    Raises PlanError as `pricing_of`.
    """
    sources = sources or CostSources(space, extrapolate=extrapolate)
    way, columns, kept = sources.kept(space)
    inner, pricing = _inner_strides(space, sources.sites), None
    run, first = np.zeros_like(way), way[:0]
    if is_priced and sources.prices:
        run, first = distinct([way, *inner])
        pricing = sources.prices.of(space.plan(0))
    taken = sources.passes.of_all(space, [*columns, *inner], first, is_priced=is_priced)
    group, first = distinct(keys := _group_keys(space, sources.sites))
    exchanged = sources.exchanges.of_all(space, keys, first, is_priced=is_priced)
    send_row, send = sources.sent_s(space, kept["sent"][way], pricing)
    return CostTables(
        counts=sources.counts, run=run, way=way, group=group, step=stepped_s(space.plan(0), pricing),
        step_s=pricing.step_s if pricing else 0.0, send_row=send_row, send=send,
        expert_shards=_expert_shards(space)[first], **kept, **taken, **exchanged,
    )  # fmt: skip


def _expert_shards(space: Space) -> Ints:
    """Devices that share one copy of an expert's state, as `expert_sharing_degree`."""
    everybody = np.where(space.sharding_degree > 0, space.sharding_degree, space.dp * space.cp)
    shared = np.where(space.sharding > 0, everybody, 1)
    folded = np.maximum(space.tp, space.expert_tp * space.ep)
    return np.asarray(np.maximum(1, shared * space.tp // folded))


def _inner_strides(space: Space, sites: Sites) -> list[Ints]:
    """Steps between devices along the axes on which a stage exchanges: they decide which of its exchanges cross nodes."""
    strides = space.strides
    is_folded = (space.ep > 1) | (space.expert_tp != space.tp)
    along = [np.where(space.cp > 1, strides["cp"], 0), np.where(is_folded, strides["dp"], 0)]
    return [sites.told_apart(each) for each in (*along, vocabulary_strides(space))]


def _group_keys(space: Space, sites: Sites) -> list[Ints]:
    """What decides among whom gradients and parameters are exchanged, and how."""
    strides = space.strides
    is_sharded = (space.sharding > 0).astype(np.int64)
    along = [np.where(space.dp > 1, strides["dp"], 0), np.where(space.cp > 1, strides["cp"], 0)]
    keys = [space.tp, space.cp, space.ep, space.expert_tp, space.dp, is_sharded, space.sharding_degree]
    return [*keys, *(sites.told_apart(each) for each in along)]


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
