"""ForwardProgram: a step of one replica as a program of segments, priced for batch after batch and run on virtual time.

What a batch changes are works and the bytes of exchanges, never who waits for whom: the program is lowered and wired once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from meshwright.costs.cost import Cost
from meshwright.costs.roofline import Roofline
from meshwright.costs.serving_costs import serving_costs
from meshwright.ir.table import Exchange, Kind, Work
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.forward_only import ForwardOnly
from meshwright.lowering.lower import lower
from meshwright.lowering.place import place
from meshwright.lowering.segment.segmented import inner_degrees
from meshwright.schedules.order import registered
from meshwright.serving.simulated.asked_program import AskedProgram, asked_of
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.fetched.stage_fetches import StageFetches, stage_fetches
from meshwright.serving.simulated.forward_operators import ATTENTION, serving_operators
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.serving.weight.expert_place import ExpertPlace
from meshwright.serving.weight.weight_place import RESIDENT, weight_place
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.summing import RING
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.model.block import BlockKind
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator, merged, repeated, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bandwidth
from meshwright.stage.chain.chain import ChainStep, Segment
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.mesh import device_order

FLOAT8 = "float8"
ACTIVATIONS = "bfloat16"  # of results of linear layers in float8, and of keys and values
SUM = "all_reduce"  # of a chain's exchange
ATTENDING = {ATTENTION, "attention", "cached_attention"}  # a step, and kinds of operators
EVERYTHING = BatchShape.of([(0, 2)], 2, 8)  # a batch that has all kinds of them
LOWERED_TOKENS = 1024  # of the step that is lowered; bytes of exchanges are in proportion to their tokens


class StepTime(NamedTuple):
    """Seconds of a step through all stages, and of the stage that takes longest: the next step may begin so much later."""

    latency_s: float
    period_s: float


@dataclass(frozen=True, eq=False)
class ForwardProgram:
    """One replica's step. Attributes: model, cluster (its first devices), layout, the format of linear layers (of all else,
    too, unless it is float8), what an engine adds to kernels, where weights lie (a name in the slot `weights`), how the
    terms of tensor parallelism are summed (`specs/cluster/summing`), the format of keys and values (empty: as of
    activations), what prices works and messages (None: what the cluster says), and rows of the device whose experts have most
    over the mean, as a routing says (1: what chance makes of experts that are chosen alike).

    Where weights are fetched a step is one of a row of equal steps, with every stage always busy: blocks for the next one
    come during this one."""

    model: ModelSpec
    cluster: ClusterSpec
    layout: ReplicaLayout
    dtype: str = "bfloat16"
    overhead: StepOverhead = StepOverhead()
    weights: str = RESIDENT
    sums: str = RING
    cache_dtype: str = ""
    priced_by: Any = None
    expert_load: float = 1.0
    _known: dict[BatchShape, StepTime] = field(default_factory=dict, init=False, repr=False)
    _ready: dict[BatchShape, tuple[Work, ...]] = field(default_factory=dict, init=False, repr=False)
    _work_of_rows: dict[tuple[int, ...], Work] = field(default_factory=dict, init=False, repr=False)
    _cost_of_rows: dict[tuple[int, ...], Cost] = field(default_factory=dict, init=False, repr=False)

    def step(self, batch: BatchShape) -> StepTime:
        """Seconds of a batch's step. Of a batch without tokens none."""
        if not batch.num_tokens:
            return StepTime(0.0, 0.0)
        found = self._known.get(batch)
        if found is None:
            found = self._known[batch] = self._simulated(batch)
        return found

    def prepare(self, batches: Iterable[BatchShape]) -> None:
        """Ask for the kernels of many batches at once, where curves price them: a thousand shapes take little longer than
        one, and `step` then finds them."""
        costs = self.costs
        if hasattr(costs, "prepare"):
            self._ready.update({batch: self.works(batch) for batch in batches if batch not in self._known})
            works = (work for own in self._ready.values() for work in own)
            costs.prepare(dict.fromkeys((each, work.dtype) for work in works for each in work.operators))

    @cached_property
    def plan(self) -> Plan:
        """What each device has and computes. Raises PlanError where the model cannot be divided so."""
        between = ACTIVATIONS if self.dtype == FLOAT8 else self.dtype
        found = self.layout.plan(self.model, self.cluster, LOWERED_TOKENS, between)
        load = min(float(self.layout.ep), max(1.0, self.expert_load))
        return found if load == 1.0 else found.changed(workload=replace(found.workload, expert_load=load))

    @cached_property
    def lowered(self) -> Plan:
        """The plan that says who sends what. Raises PlanError where tp does not divide an expert's inner units."""
        return self.layout.lowered(self.plan)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its seconds rest on, for people."""
        shared = (
            (f"the {self.layout.attention_dp} groups that attend have equal parts of every batch",)
            if self.layout.attention_dp > 1
            else ()
        )
        layout, uneven = self.layout, self.expert_load > 1.0
        says = (
            f"the busiest has {self.expert_load:.2f} times the mean's rows"
            if uneven
            else "tokens choose them alike"
        )
        divided = (f"whole experts are on {layout.ep} devices; {says}",) if layout.ep > 1 else ()
        source = weight_place(self.weights).source
        fetched = (
            (
                f"weights come from {source.name} with {format_bandwidth(source.bytes_per_s)} to each device, "
                "one block after the other",
            )
            if source is not None
            else ()
        )
        return (*self._costs[1], *shared, *divided, *fetched)

    @property
    def costs(self) -> Any:
        """What prices its works and messages."""
        return self._costs[0]

    @property
    def cache_bytes(self) -> int:
        """Of a number of a key or value."""
        return dtype_bytes(self.cache_dtype or self.plan.dtype)

    def works(self, batch: BatchShape) -> tuple[Work, ...]:
        """Of the program's table of works: what each does for a batch."""
        return tuple(self._work_at(place, batch) for place in range(len(self.asked.steps)))

    def _work_at(self, place: int, batch: BatchShape) -> Work:
        """Of a place in the table. Where nothing attends, batches of as many rows are alike: it is made once."""
        if place in self._attending:
            return self._work(self.asked.steps[place], batch)
        key = (place, batch.num_tokens, batch.num_rows)
        found = self._work_of_rows.get(key)
        if found is None:
            found = self._work_of_rows[key] = self._work(self.asked.steps[place], batch)
        return found

    @cached_property
    def _attending(self) -> frozenset[int]:
        """Places in the table of works that attend: what these do depends on what a batch's tokens see."""
        kinds = {
            step: {each.kind for each in self.operators(step, EVERYTHING)} | {step.name}
            for steps in self.asked.steps
            for step in steps
        }
        return frozenset(
            place
            for place, steps in enumerate(self.asked.steps)
            if any(kinds[step] & ATTENDING for step in steps)
        )

    def parts_s(self, batch: BatchShape) -> Mapping[str, float]:
        """Seconds of a step by the names of the steps of its chain ("attention", "mlp", "add", ...), and of "exchanges"; of
        all stages together, without waiting and the host's time."""
        steps: dict[str, list[ChainStep]] = {}
        first = _first_alike(self.model)
        for own in self._segments:
            for each in (step for segment in own for step in segment.steps):
                steps.setdefault(each.name, []).append(_alike(each, first))
        found = {name: self._alone_s(batch, tuple(own)) for name, own in steps.items()}
        seconds = np.array([cost.seconds for cost in self._prices(batch)])[self.asked.question_of_row]
        sent = ~np.logical_or.reduce(self.asked.computes_of_lists)
        found["exchanges"] = float(seconds[sent].sum())
        return {name: self.overhead.device_factor * each for name, each in found.items()}

    def _prices(self, batch: BatchShape) -> list[Cost]:
        """Of every class of rows."""
        works = self._ready.pop(batch, None) or self.works(batch)
        share, rows = batch.num_tokens / LOWERED_TOKENS, (batch.num_tokens, batch.num_rows)
        found, known, attending = [], self._cost_of_rows, self._attending
        for number, each in enumerate(self.asked.questions):
            cost = None if each.work in attending else known.get((number, *rows))
            if cost is None:
                cost = each.answered(self.costs, works, share)
                if each.work not in attending:
                    known[number, *rows] = cost
            found.append(cost)
        return found

    def _simulated(self, batch: BatchShape) -> StepTime:
        asked, prices = self.asked, self._prices(batch)
        factor, host_s = self.overhead.device_factor, self.overhead.host_s
        # Of several stages one computes while the host works.
        beside_s = host_s if self.layout.pp == 1 else 0.0
        _, (start,), (end,) = replay(
            asked.wiring, np.array([cost.seconds for cost in prices]), np.array([cost.latency_s for cost in prices]),
            asked.question_of_row, host=self.cluster.machine.host,
        )  # fmt: skip
        spans = [factor * float(end[own].max() - start[own].min()) for own in asked.computes_of_lists]
        latency_s = host_s + factor * float(end.max())
        if self.fetches:
            waits = [
                each.wait_s(start, end, partial(self._alone_s, batch), factor, beside_s)
                for each in self.fetches
            ]
            spans = [span + wait for span, wait in zip(spans, waits, strict=True)]
            latency_s += sum(waits)
        return StepTime(latency_s, max(spans) + beside_s)

    def _alone_s(self, batch: BatchShape, steps: tuple[ChainStep, ...]) -> float:
        """Seconds of some steps of a chain without others."""
        cost: Cost = self.costs.cost(self._work(Counter(steps), batch), self.cluster.devices[0])
        return cost.seconds

    def operators(self, step: ChainStep, batch: BatchShape) -> tuple[Operator, ...]:
        """Kernels of one step of a chain for a batch, on one device."""
        return serving_operators(
            self.plan, step, batch, dtype_bytes(self.dtype), self.layout.attention_dp, self.cache_bytes
        )

    def _work(self, steps: Mapping[ChainStep, int], batch: BatchShape) -> Work:
        found: list[Operator] = []
        for step, count in steps.items():
            found += repeated(self.operators(step, batch), count)
        operators = merged(found)
        return Work(
            "F", batch.num_tokens, (1, batch.num_tokens), self.dtype, total_flops(operators), total_bytes(operators),
            operators=operators,
        )  # fmt: skip

    @cached_property
    def _costs(self) -> tuple[Any, tuple[str, ...]]:
        """What prices works and messages, and what it assumes."""
        if self.priced_by is not None:
            return self.priced_by, tuple(getattr(self.priced_by, "assumptions", ()))
        return serving_costs(self.cluster)

    @cached_property
    def asked(self) -> AskedProgram:
        """The program, wired, and what has to be priced of it."""
        program = lower(self.lowered, registered()[self.plan.schedule], step=False, in_segments=True)
        program = ForwardOnly()(program)
        by_stage = [frozenset(Counter(steps).items()) for steps in self.steps_of_stages]
        table = {own: number for number, own in enumerate(dict.fromkeys(by_stage))}
        of_stage = np.array([table[own] for own in by_stage])
        column = np.where(program.kinds == Kind.COMPUTE, of_stage[program.columns.stage], -1)
        works = tuple(Work("F", share=number) for number in range(len(table)))
        program = program.with_tables(works=works, exchanges=self._summed(program.tables.exchanges))
        program = program.with_columns(work=column)
        placement = place(program, self.cluster, device_order(self.lowered))
        asked = asked_of(wire(program), placement, tuple(dict(each) for each in table))
        if self.layout.attention_dp == 1:
            return asked
        attends = np.array(
            [any(step.name == ATTENTION for step in each.steps) for own in self._segments for each in own]
        )
        around = attends | np.append(attends[1:], False)  # what a segment sends, the next one reads
        rows = (program.kinds == Kind.COLLECTIVE) & around[program.columns.stage]
        return asked.in_groups(rows, self.layout.attention_dp)

    def _summed(self, exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
        """With the way in which sums are made. Raises PlanError where a library of the devices chooses it."""
        if self.sums == RING:
            return exchanges
        costs = self._costs[0]
        if not isinstance(costs, Roofline) or costs.links is not None:
            raise PlanError(
                f"sums={self.sums} on {self.cluster.name}, whose messages were measured as its library sends them",
                allowed=RING,
                next="leave it out: the library chooses for every size",
            )
        return tuple(
            each._replace(algorithm=f"{SUM}.{self.sums}") if each.algorithm == SUM else each
            for each in exchanges
        )

    @cached_property
    def _segments(self) -> tuple[tuple[Segment, ...], ...]:
        """Of every stage's chain; a stage of the program is one of them."""
        degrees = inner_degrees(self.lowered)
        return tuple(decoder_chain(self.model, layers, degrees).segments for layers in self.plan.stages())

    @cached_property
    def steps_of_stages(self) -> tuple[tuple[ChainStep, ...], ...]:
        """What each stage of the program, which is a segment, runs in order; of blocks of a kind the steps of the first."""
        first = _first_alike(self.model)
        return tuple(
            tuple(_alike(step, first) for step in each.steps) for own in self._segments for each in own
        )

    @cached_property
    def fetches(self) -> tuple[StageFetches, ...]:
        """Of every stage, where weights are fetched; none where all stay."""
        if self.weights == RESIDENT:
            return ()
        if isinstance(weight_place(self.weights), ExpertPlace):
            raise PlanError(
                f"weights={self.weights}: which experts a step fetches is known when it is routed, and a plan has no routing",
                allowed="weights whose blocks are fetched, whichever step it is",
                next="measure it: meshwright serve FOLDER --weights ..., or its hits on a routing (meshwright reproduce)",
            )
        if self.layout.attention_dp > 1:
            raise PlanError(
                f"weights={self.weights} with attention_dp={self.layout.attention_dp}",
                allowed="one of them: what a block has on a device is known of layers that are divided alike",
            )
        program, first = self.asked.wiring.program, _first_alike(self.model)
        computes = np.flatnonzero(program.kinds == Kind.COMPUTE)
        rows = computes[np.argsort(program.columns.stage[computes], kind="stable")].tolist()
        return stage_fetches(
            self.plan, weight_place(self.weights), dtype_bytes(self.dtype), self._segments, rows,
            lambda step: _alike(step, first),
        )  # fmt: skip


def _first_alike(model: ModelSpec) -> Mapping[int, int]:
    """Of every block the first of its kind."""
    first: dict[BlockKind, int] = {}
    return {block: first.setdefault(model.block_kind(block), block) for block in range(model.num_layers)}


def _alike(step: ChainStep, first: Mapping[int, int]) -> ChainStep:
    """The step of the first block of the same kind, without the names of values."""
    of = (step.of[0], first.get(step.of[1], step.of[1]))
    return ChainStep(step.name, first.get(step.block, step.block), (), (), of)
