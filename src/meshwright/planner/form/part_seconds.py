"""Seconds of the parts of candidates: passes of one microbatch, exchanges of gradients and parameters, the optimizer's
step, messages between stages; each distinct one is priced once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.costs.pricing import Pricing, pricing_of
from meshwright.costs.step.step_costs import StepCosts
from meshwright.ir.table import Exchange, Work
from meshwright.planner.form.distinct import Answers
from meshwright.planner.form.vocabulary_share import share_seconds
from meshwright.planner.space.site import Sites
from meshwright.planner.space.space import Space
from meshwright.simulator.pricing import with_inner
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.operator import Operator
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.specs.sequence.context_parallel import ContextParallel
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.group.parameter_group import reduction_algorithm
from meshwright.stage.mesh import (
    data_axes,
    expert_axes,
    expert_data_axes,
    gathered_axes,
    heads_axes,
    num_members,
    ring_axes,
    routed_axes,
    shard_axes,
    tensor_axes,
)
from meshwright.stage.operator.encoder_decoder import core_backward, core_forward
from meshwright.stage.operator.layer import MicrobatchShape, local_sizes, step_operators
from meshwright.stage.piece import is_vocabulary_split
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.stage.stage_pass import pass_operators
from meshwright.stage.work import attending_shape, microbatch_shape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Bytes (or parameters) at which exchanges (or optimizer steps) are priced; between them a line in logarithms.
GRID = np.logspace(2, 13, 12)
EXCHANGES = ("reduce", "gather", "scatter", "reduce_expert", "gather_expert", "scatter_expert")
# Seconds of a microbatch, by part of the model.
TAKEN = ("forward", "backward", "split_backward", "weight", "again", "host_waits", "inside")
NUM_ENDS = 2  # of a model: embedding and head, the last of its parts
TAKEN_ONCE = ("received", "share_forward", "share_backward")
WITHIN_BACKWARD = ("selective", "selective_op")  # kinds of recompute that have no R of their own


class SpacePrices:
    """The pricing of the plans of a space, asked for once for each class of software and format."""

    def __init__(self, space: Space, extrapolate: bool) -> None:
        self._cluster, self._extrapolate = space.cluster, extrapolate
        self._known: dict[tuple[str, str], Pricing] = {}

    def of(self, plan: Plan) -> Pricing:
        """Raises PlanError as `pricing_of`."""
        key = (plan.software_class.name, plan.float8)
        if key not in self._known:
            self._known[key] = pricing_of(plan, self._cluster, extrapolate=self._extrapolate)
        return self._known[key]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows with the same names as one array each."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def one_stage(plan: Plan) -> Plan:
    """The plan with one stage: what a part takes does not depend on the pipeline around it."""
    devices = plan.dp * plan.cp * plan.tp
    if plan.num_devices == devices and plan.num_stages == 1 and not plan.recompute_blocks:
        return plan
    return plan.changed(
        pp=1, num_chunks=1, schedule="1f1b", num_devices=devices, layers_per_stage=(plan.model.num_layers,),
        recompute_blocks=(),
    )  # fmt: skip


class PassSeconds:
    """What the passes of one microbatch take, part by part; what ways have in common is asked for once."""

    def __init__(self, parts: Sequence[StageLayers], prices: SpacePrices | None, sites: Sites) -> None:
        self.sites = sites
        self._parts, self._prices = parts, prices
        self._works: dict[tuple[object, ...], list[tuple[Work, Cost]]] = {}
        self._built: dict[tuple[object, ...], list[Work]] = {}
        # that the works of a key name
        self._axes: dict[tuple[object, ...], tuple[tuple[str, ...], ...]] = {}
        self._costs: dict[tuple[object, ...], list[Cost]] = {}
        self._operators: dict[tuple[object, ...], list[tuple[Operator, ...]]] = {}
        self._known: dict[tuple[object, ...], tuple[Floats, Floats, Floats]] = {}
        self._cores: dict[tuple[object, ...], Floats] = {}
        self._split: dict[tuple[object, ...], dict[str, Any]] = {}
        self._asked = Answers[dict[str, Any]]()

    def of_all(
        self, space: Space, columns: Sequence[Ints], numbers: Ints, *, is_priced: bool = True
    ) -> dict[str, Any]:
        """Seconds of these candidates' passes, row by row; `columns` decide them. Nothing where nobody prices."""
        prices = self._prices
        if prices is None or not is_priced:
            nothing = np.zeros((1, len(self._parts)))
            return {**dict.fromkeys(TAKEN, nothing), **dict.fromkeys(TAKEN_ONCE, np.zeros(1))}
        return columns_of(self._asked.of(columns, numbers, lambda n: self._of(space.plan(n), prices)))

    def least_s(self, plan: Plan, name: str, ways: Sequence[ContextParallel] = ()) -> Floats:
        """What a pass computes at least, part by part, wherever the plan's devices stand: its operators, and what `_nearest`
        devices exchange inside. Selective recompute adds to it. `ways`: in which devices of cp may attend, of which the
        quickest counts; none: as the plan says."""
        assert self._prices is not None, "nobody asks without prices"
        pricing, found = self._prices.of(plan), np.zeros(len(self._parts))
        costs, key = pricing.costs, self._key_of_least(plan, name)
        priced = self._priced_works(plan, key, name, pricing)
        nearest = self._nearest(plan)
        ends = {said: nearest[own] for said, own in self._as_built(plan, key, name) if own in nearest}
        for place, (work, cost) in enumerate(priced):
            inner = tuple(each for each in work.inner if each.exchange.axes in ends)
            bare = Cost(cost.seconds - cost.slack_s)
            if inner:
                groups = [ends[each.exchange.axes] for each in inner]
                bare = with_inner(bare, work._replace(inner=inner), costs, costs, groups, None)
            found[place] = bare.seconds
        if len(ways) > 1:
            cores = [self._cores_s(plan, name, way, pricing) for way in ways]
            found += np.min(cores, axis=0) - self._cores_s(plan, name, plan.context_parallel, pricing)
        return found

    def _nearest(self, plan: Plan) -> dict[tuple[str, ...], tuple[int, ...]]:
        """By axes the devices of groups that stand as near to each other as in any order of the mesh: tensor-parallel ones
        always stand together, and those that have experts of a layer in the usual order, with no pipeline between them."""
        found = {tensor_axes(plan): self.sites.members(plan, tensor_axes(plan))}
        if self.sites.is_flat and plan.ep > 1:
            usual = plan if plan.mesh_order == AXES else plan.changed(mesh_order=AXES)
            found |= {axes: self.sites.members(usual, axes) for axes in routed_axes(usual)}
        return found

    def _cores_s(self, plan: Plan, name: str, way: ContextParallel, pricing: Pricing) -> Floats:
        """What attention's core alone computes, part by part, where devices of cp attend in this way."""
        shape = attending_shape(plan, way)
        key = (shape, name, plan.software_class.name, plan.float8)
        if key not in self._cores:
            found = np.zeros(len(self._parts))
            dims = (plan.microbatch_size, plan.workload.sequence_length)
            dtype = "float8" if plan.float8 else plan.dtype
            core = core_backward if name == "B" else core_forward
            for place, part in enumerate(self._parts[:-NUM_ENDS]):
                local = local_sizes(plan.model, plan.tp, plan.expert_tp, part.first_block)
                operators = core(plan.model.layers[part.first_block], local, shape)
                cost = pricing.costs.cost(Work(name, shape.num_tokens, dims, dtype, 0.0, 0.0, 1.0, operators))
                found[place] = cost.seconds - cost.slack_s
            self._cores[key] = found
        return self._cores[key]

    def prepare(self, plans: Iterable[Plan], names: Sequence[str]) -> None:
        """Price what these passes run at once, before each is asked for."""
        assert self._prices is not None, "nobody asks without prices"
        works: dict[int, tuple[Pricing, list[Work]]] = {}
        for plan in plans:
            pricing = self._prices.of(plan)
            for name in names:
                built = self._built_works(plan, self._key_of_least(plan, name), name)
                works.setdefault(id(pricing), (pricing, []))[1].extend(built)
        for pricing, own in works.values():
            if isinstance(pricing.costs, StepCosts):
                pricing.costs.prepare(own)

    def computed_s(self, plan: Plan) -> Floats:
        """Seconds that all passes of a microbatch compute, part by part."""
        assert self._prices is not None, "nobody asks without prices"
        pricing, names = self._prices.of(plan), ("F", "B", *(("R",) if plan.recompute == "full" else ()))
        passes = [self._priced_works(plan, self._key(plan, name), name, pricing) for name in names]
        return np.asarray(np.sum([[cost.seconds for _, cost in each] for each in passes], axis=0))

    def overhead_s(self, plan: Plan) -> float:
        """Seconds of a step that no pass takes."""
        return self._prices.of(plan).step_s if self._prices else 0.0

    def _of(self, plan: Plan, prices: SpacePrices) -> dict[str, Any]:
        pricing = prices.of(plan)
        forward, backward = self._pass(plan, "F", pricing), self._pass(plan, "B", pricing)
        nothing = (np.zeros(len(self._parts)),) * 3
        again = self._pass(plan, "R", pricing) if plan.recompute == "full" else nothing
        split, weight = backward[0], self._pass(plan, "W", pricing)[0]
        if plan.software_class.waits_for_routing and plan.model.num_experts:
            # the host launches what routing asks for in each half
            split = self._pass(plan, "I", pricing)[0] + weight
        found: dict[str, Any] = {
            "forward": forward[0],
            "backward": backward[0],
            "split_backward": split,
            "weight": weight,
            "again": again[0],
            "host_waits": forward[1] + backward[1] + again[1],
            "inside": forward[2] + backward[2] + again[2],
            "received": _received_s(plan, pricing),
            "share_forward": 0.0,
            "share_backward": 0.0,
        }
        return self._with_split_vocabulary(found, plan, pricing) if is_vocabulary_split(plan) else found

    def _with_split_vocabulary(self, found: dict[str, Any], plan: Plan, pricing: Pricing) -> dict[str, Any]:
        """What passes take where the vocabulary has its own: at the ends what is there besides the tables."""
        along = self.sites.members(plan, ("pp",))
        again = plan.recompute == "full"
        key = (*self._key(plan, ""), plan.vocabulary, plan.pp, along, again)
        if key not in self._split:
            self._split[key] = self._split_seconds(plan, pricing, again)
        own, blocks = self._split[key], len(self._parts) - NUM_ENDS
        for name in TAKEN:
            found[name] = np.concatenate([found[name][:blocks], own[name]])
        return found | {name: own[name] for name in ("share_forward", "share_backward")}

    def _split_seconds(self, plan: Plan, pricing: Pricing, again: bool) -> dict[str, Any]:
        """Of the ends, and of every device's share."""
        plan = plan.changed(recompute_blocks=())
        shape, nothing = microbatch_shape(plan), np.zeros(NUM_ENDS)

        def price(work: Work) -> float:
            cost = pricing.costs.cost(work) if work.operators else Cost(0.0)
            groups = [self.sites.members(plan, each.exchange.axes) for each in work.inner]
            return with_inner(cost, work, pricing.costs, pricing.costs, groups, None).seconds

        def ends(name: str) -> Floats:
            parts = self._parts[-NUM_ENDS:]
            works = [
                _work(plan, part, name, shape, pass_operators(plan, part, name, shape)) for part in parts
            ]
            return np.array([price(work) for work in works])

        forward, backward = share_seconds(plan, pricing, self.sites, price)
        both = ends("B")
        return {
            "forward": ends("F"), "backward": both, "split_backward": both, "weight": ends("W"),
            "again": ends("R") if again else nothing, "host_waits": nothing, "inside": nothing, "share_forward": forward,
            "share_backward": backward,
        }  # fmt: skip

    @staticmethod
    def _key(plan: Plan, name: str) -> tuple[object, ...]:
        # what is recomputed within a backward changes what it runs
        special = plan.recompute if name in ("B", "I") and plan.recompute in WITHIN_BACKWARD else ""
        context = plan.context_parallel if plan.cp > 1 else None
        return (context, plan.tp, plan.cp, plan.ep, plan.expert_tp, plan.sequence_parallel, plan.microbatch_size, plan.float8,
                plan.software_class.name, special, name)  # fmt: skip

    def _key_of_least(self, plan: Plan, name: str) -> tuple[object, ...]:
        return (*self._key(plan, name)[:-2], "", name)

    def _pass(self, plan: Plan, name: str, pricing: Pricing) -> tuple[Floats, Floats, Floats]:
        """As `simulator.price` prices rows of these works, with the exchanges inside where the plan puts them; and how much
        of that is the device waiting for its host, and what exchanges add."""
        key = self._key(plan, name)
        experts = self.sites.members(plan, expert_axes(plan))
        priced = self._priced_works(plan, key, name, pricing)
        ends = {said: self.sites.members(plan, own) for said, own in self._as_built(plan, key, name) if own}
        placed = (key, experts, *ends.values())
        if placed not in self._known:
            costs, found = pricing.costs, []
            for work, cost in priced:
                groups = [ends.get(each.exchange.axes, experts) for each in work.inner]
                seconds = with_inner(cost, work, costs, costs, groups, None).seconds
                bare = replace(cost, seconds=cost.seconds - cost.slack_s, slack_s=0.0)
                least = (
                    with_inner(bare, work, costs, costs, groups, None).seconds if cost.slack_s else seconds
                )
                found.append((seconds, seconds - least, seconds - cost.seconds))
            seconds, waits, inside = np.array(found).T
            self._known[placed] = (seconds, waits, inside)
        return self._known[placed]

    def _priced_works(
        self, plan: Plan, key: tuple[object, ...], name: str, pricing: Pricing
    ) -> list[tuple[Work, Cost]]:
        if key not in self._works:
            built, computed = self._built_works(plan, key, name), _computed(key)
            if computed not in self._costs:
                self._costs[computed] = [
                    pricing.costs.cost(work) if work.operators else Cost(0.0) for work in built
                ]
            self._works[key] = list(zip(built, self._costs[computed], strict=True))
        return self._works[key]

    def _built_works(self, plan: Plan, key: tuple[object, ...], name: str) -> list[Work]:
        """The works of a key; of its software only what R leaves out decides them."""
        alike = _without_software(plan, key, name)
        if alike not in self._built:
            alone, computed = one_stage(plan), _computed(alike)
            shape = microbatch_shape(alone)
            if computed not in self._operators:
                self._operators[computed] = [pass_operators(alone, part, name, shape) for part in self._parts]
            operators = zip(self._parts, self._operators[computed], strict=True)
            self._built[alike] = [_work(alone, part, name, shape, own) for part, own in operators]
            self._axes[alike] = _inner_axes(alone)
        return self._built[alike]

    def _as_built(
        self, plan: Plan, key: tuple[object, ...], name: str
    ) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Axes that the works of a key name, of the plan that they were made of, and what this plan calls them: an axis has
        the name of its length where it is a part of one, so they differ between degrees that a key does not tell apart."""
        yield from zip(self._axes[_without_software(plan, key, name)], _inner_axes(plan), strict=False)


def _without_software(plan: Plan, key: tuple[object, ...], name: str) -> tuple[object, ...]:
    """A key with what of its software decides a pass's works."""
    software = plan.software_class
    leaves_out = name == "R" and software.stops_early
    return tuple(leaves_out if one == software.name else one for one in key)


def _inner_axes(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Along which a stage exchanges inside: always in one order, which tells what each is for."""
    return (tensor_axes(plan), ring_axes(plan), heads_axes(plan), gathered_axes(plan), *routed_axes(plan))


def _computed(key: tuple[object, ...]) -> tuple[object, ...]:
    """Of a pass's key what decides its operators: of how devices of cp attend, what each of them attends to, merges and
    copies."""
    own = key[0]
    if not isinstance(own, ContextParallel):
        return key
    arrangement = own.arrangement if own.ring_degree > 1 else ""
    return (arrangement, own.ring_degree, own.travels, own.heads_degree, own.has_full_scores, *key[1:])


def _work(
    plan: Plan, part: StageLayers, name: str, shape: MicrobatchShape, operators: tuple[Operator, ...]
) -> Work:
    """One pass of one part."""
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    dtype = "float8" if plan.float8 else plan.dtype
    inner = inner_exchanges(plan, part, name, shape)
    return Work(name, shape.num_tokens, dims, dtype, 0.0, 0.0, 1.0, operators, inner)


def _received_s(plan: Plan, pricing: Pricing) -> float:
    if plan.tp == 1 or plan.sequence_parallel:
        return 0.0
    boundary = microbatch_shape(plan).num_tokens * float(boundary_bytes_per_token(plan.model, plan.dtype))
    exchange = Exchange(("tp",), algorithm="all_gather")
    return pricing.costs.exchange_cost(exchange, boundary, tuple(range(plan.tp))).seconds


class ReductionSeconds:
    """Seconds of reductions and gathers by `GRID` bytes, each distinct one asked for once."""

    def __init__(self, prices: SpacePrices | None, sites: Sites) -> None:
        self._prices, self._sites = prices, sites
        self._known: dict[tuple[str, tuple[int, ...]], Floats] = {}
        self._asked = Answers[dict[str, Floats]]()

    def of_all(
        self, space: Space, columns: Sequence[Ints], numbers: Ints, *, is_priced: bool = True
    ) -> dict[str, Any]:
        """Of these candidates' groups, row by row; `columns` decide them; of one device 0. Nothing where nobody prices."""
        if self._prices is None or not is_priced:
            nothing = np.zeros((1, len(GRID)))
            return dict.fromkeys(EXCHANGES, nothing)
        return columns_of(self._asked.of(columns, numbers, lambda n: self._of(space.plan(n))))

    def _of(self, plan: Plan) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        shards = shard_axes(plan)
        for suffix, axes in (("", data_axes(plan)), ("_expert", expert_data_axes(plan))):
            sharing = tuple(axis for axis in axes if axis in shards)
            copies = [axis for axis in axes if num_members(plan, (axis,)) > 1]
            found["reduce" + suffix] = self._seconds(plan, reduction_algorithm(sharing, copies), axes)
            found["gather" + suffix] = self._seconds(plan, "all_gather", sharing)
            found["scatter" + suffix] = self._seconds(plan, "reduce_scatter", sharing)
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


def stepped_s(plan: Plan, pricing: Pricing | None) -> Floats:
    """Seconds of an optimizer's step by `GRID` parameters."""
    found: list[float] = []
    if pricing is None:
        return np.zeros(len(GRID))
    for size in GRID:
        operators = step_operators(int(size), plan.master_dtype or plan.dtype, plan.update_rule)
        work = Work("STEP", 0, (int(size),), plan.dtype, 0.0, 0.0, 1.0, operators)
        found.append(pricing.costs.cost(work, None).seconds)
    return np.array(found)


def sent_s(space: Space, pricing: Pricing | None, num_bytes: float, stride: int, pp: int) -> float:
    """Seconds of one message to the next stage: the slowest of the first node's boundaries."""
    if pricing is None or pp == 1:
        return 0.0
    node = space.cluster.levels[0].num_devices
    last = max(0, min(pp - 1, node // stride) - 1) * stride if stride < node else 0
    crossing = (node // stride - 1) * stride if stride < node and pp > node // stride else last
    exchange = Exchange(("pp",), (0, 1))
    pairs = sorted({(0, stride), (crossing, crossing + stride)})
    return max(pricing.costs.exchange_cost(exchange, num_bytes, pair).seconds for pair in pairs)
