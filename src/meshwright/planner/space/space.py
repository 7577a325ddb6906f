"""Space: every configuration of a training step that a cluster allows, as columns of whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.space.axis import AXES, HANDED_ON, LAYERS, MESH_ORDERS, ONE_VALUE, SHARDINGS, named
from meshwright.planner.space.check import FROM_ZERO, check_degrees, check_names, words_of
from meshwright.planner.space.degrees import (
    ContextKind,
    ContextKinds,
    Degrees,
    layouts,
    pipelines,
    split_of,
    way_of,
)
from meshwright.planner.space.least_memory import LeastMemory
from meshwright.planner.space.microbatch import MicrobatchSizes
from meshwright.schedules.order import registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import AXES as MESH
from meshwright.specs.plan.plan import RECOMPUTES, Plan
from meshwright.specs.plan.token_part import shares_of
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import (
    ASKED_FOR,
    CONTEXTS,
    FULL_SCORES,
    TOKEN_LAYOUTS,
    ContextParallel,
)

Ints = NDArray[Any]  # of columns 32 bits are enough: a large space is mostly the memory that it takes
MOST_CANDIDATES = 3_000_000  # two gigabytes of columns and sums; a larger space is made coarser


class Fineness(NamedTuple):
    """How finely is tried what changes a plan least.

    Attributes:
        num_partial: numbers of blocks of a stage that are run again where not all are.
        nodes_that_share: nodes whose devices share one copy of what is sharded, where not all devices do.
        orders: of the mesh, as numbers of `MESH_ORDERS`; None: all.
        left_out: what is not tried, for people.
        counts: of samples of a microbatch, and of chunks of a device, where nobody asks for others; None: all.
        has_plain_tensor: tensor-parallel devices that compute between their products all the same, too, where they could
            share that.
    """

    num_partial: int
    nodes_that_share: tuple[int, ...]
    orders: tuple[int, ...] | None
    left_out: str
    counts: tuple[int, ...] | None = None
    has_plain_tensor: bool = True

    def has(self, layout: Degrees) -> bool:
        """Is the layout's order tried?"""
        return self.orders is None or layout.mesh_order in self.orders


WIDTHS = (10, 5, 1, 2, 3)  # axes of each independent choice
# The first under which there are few enough candidates; pp inside dp is the order that most stacks offer besides theirs.
PP_INSIDE = (0, MESH_ORDERS.index("dp-pp-cp-tp"))
FINENESS = (
    Fineness(12, (1, 8), None, ""),
    Fineness(8, (), None, "copies shared by a part of the devices"),
    Fineness(4, (), PP_INSIDE, "copies shared by a part of the devices, most orders of the mesh"),
    Fineness(
        1,
        (),
        (0,),
        "copies shared by a part of the devices, other orders of the mesh, most partial recompute",
    ),
)
# Where there are still too many with a row: experts multiply the ways to run a block, each of which is priced, by themselves.
COARSEST = FINENESS[-1]._replace(
    left_out=f"{FINENESS[-1].left_out}, microbatches and chunks in counts other than 1, 2, 4 and 8, "
    "tensor parallelism without sequence parallelism",
    counts=(1, 2, 4, 8),
    has_plain_tensor=False,
)
INTERLACED = (
    ("vocabulary", "interlaced"),
    ("schedule", "1f1b"),
)  # this one has an order of its own with that schedule only
# What software that shards does beside computes where nobody says otherwise.
OVERLAPS: Mapping[str, tuple[str, ...]] = {
    "none": ("reduce",), "zero1": ("reduce", "gather"), "zero2": ("reduce", "gather"), "zero3": ("reduce", "gather"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Space:
    """Candidates as columns of equal length; of the axes in `names` a column counts in their values.

    `model`, `cluster`, `workload` and `formats` (other fields of a plan) are the same for all. `recompute_blocks` of
    every stage are run again (0: all), its first ones; `sharding_degree` as `Plan`'s. `left_out` says what was not tried;
    `num_beyond_memory` more candidates have microbatches that are too large for any device. A row whose (tp, cp) is in
    `open_contexts` stands for a candidate of each of these kinds of context parallelism, itself the first (`decided`).
    """

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    formats: Mapping[str, Any]
    names: Mapping[str, tuple[Any, ...]]
    left_out: str
    num_beyond_memory: int
    open_contexts: Mapping[tuple[int, int], tuple[ContextKind, ...]]
    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    pp: Ints
    dp: Ints
    mesh_order: Ints
    context: Ints
    token_layout: Ints
    ulysses: Ints
    schedule: Ints
    num_chunks: Ints
    layers: Ints
    recompute: Ints
    recompute_blocks: Ints
    microbatch_size: Ints
    sharding: Ints
    sharding_degree: Ints
    sequence_parallel: Ints
    float8: Ints
    vocabulary: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def num_candidates(self) -> int:
        """With those whose microbatches are too large for any device, and of open kinds each."""
        return len(self) + self.num_beyond_memory + int((self.num_kinds - 1).sum())

    @cached_property
    def num_kinds(self) -> Ints:
        """Candidates that every row stands for."""
        if not self.open_contexts:
            return np.ones(len(self), dtype=np.int64)
        most = np.array(list(self.open_contexts)).max(axis=0)
        found = np.ones(most + 1, dtype=np.int64)
        for degrees, kinds in self.open_contexts.items():
            found[degrees] = len(kinds)
        return np.asarray(found[self.tp, self.cp])

    @cached_property
    def num_microbatches(self) -> Ints:
        """Of one pipeline in a step."""
        return self.workload.global_batch // (self.dp * self.microbatch_size)

    @cached_property
    def strides(self) -> Mapping[str, Ints]:
        """Steps between devices that are neighbours along every axis of the mesh."""
        degrees = {axis: getattr(self, axis) for axis in MESH}
        found = {axis: np.ones(len(self), dtype=np.int64) for axis in MESH}
        for number in np.unique(self.mesh_order).tolist():
            own, step = self.mesh_order == number, np.ones(len(self), dtype=np.int64)
            for axis in reversed(MESH_ORDERS[number].split("-")):
                found[axis] = np.where(own, step, found[axis])
                step = step * degrees[axis]
        return found

    @cached_property
    def expert_tp(self) -> Ints:
        """Devices that share one expert's matrices, as `Plan.expert_tp`."""
        as_attention = np.where(self.dp * self.cp % self.ep == 0, self.tp, 1)
        return np.where(self.etp > 0, self.etp, as_attention)

    def overlap(self, sharding: int) -> tuple[str, ...]:
        """What runs beside computes under this sharding."""
        return tuple(self.formats.get("overlap", OVERLAPS[SHARDINGS[sharding]]))

    def layers_per_stage(self, number: int) -> tuple[int, ...]:
        """Blocks of every stage of a candidate."""
        num_stages = int(self.pp[number] * self.num_chunks[number])
        return split_of(self.model.num_layers, num_stages, LAYERS[int(self.layers[number])])

    def plan(self, number: int) -> Plan:
        """The candidate as a plan."""
        chosen, counts = self._choices(number), self.layers_per_stage(number)
        if blocks := int(self.recompute_blocks[number]):
            chosen["recompute_blocks"] = tuple(min(blocks, count) for count in counts)
        return Plan.of(self.model, self.cluster, self.workload, **chosen, layers_per_stage=counts)

    def one_stage(self, number: int, **others: Any) -> Plan:
        """The candidate without its pipeline, on which what a part of the model takes and keeps does not depend (the tables
        of a split vocabulary aside), with other choices."""
        chosen = self._choices(number) | others
        devices = chosen["dp"] * chosen["cp"] * chosen["tp"]
        chosen |= {"pp": 1, "num_chunks": 1, "schedule": Plan.schedule, "num_devices": devices}
        chosen["vocabulary"] = Plan.vocabulary
        return Plan.of(self.model, self.cluster, self.workload, **chosen)

    def _choices(self, number: int) -> dict[str, Any]:
        """Fields of a candidate's plan, besides the blocks of its stages."""
        chosen: dict[str, Any] = {name: int(getattr(self, name)[number]) for name in AXES}
        for name, values in self.names.items():
            chosen[name] = values[chosen[name]]
        del chosen["layers"], chosen["recompute_blocks"]
        chosen["mesh_order"] = tuple(chosen["mesh_order"].split("-"))
        return {**chosen, **self.formats, "overlap": self.overlap(int(self.sharding[number]))}

    def attending(self, tp: int, cp: int) -> tuple[ContextParallel, ...]:
        """The ways in which rows of these degrees say that their devices may attend; none where each row says its own."""
        return tuple(way_of(cp, each) for each in self.open_contexts.get((tp, cp), ()))

    def decided(self) -> Space:
        """Every candidate with a row of its own: one behind the other those that had one together."""
        number = np.repeat(np.arange(len(self)), self.num_kinds)
        found = replace(self.taken(number), open_contexts={})
        place = np.arange(len(number)) - np.repeat(np.cumsum(self.num_kinds) - self.num_kinds, self.num_kinds)
        for (tp, cp), kinds in self.open_contexts.items():
            own = np.flatnonzero((found.tp == tp) & (found.cp == cp))
            of_kind = np.array(kinds)[place[own]].T
            found.context[own], found.token_layout[own], found.ulysses[own] = of_kind
        return found

    @classmethod
    def joined(cls, spaces: Sequence[Space]) -> Space:
        """Parts of one space, one behind the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in spaces]) for name in AXES
        }
        return replace(spaces[0], **columns)

    def taken(self, chosen: Ints | NDArray[np.bool_]) -> Space:
        """The candidates with these numbers, in this order."""
        columns = {name: getattr(self, name)[chosen] for name in AXES}
        whole = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in AXES}
        return Space(**whole, **columns)


def space_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] | None = None,
    capacity_bytes: int | None = None,
    is_open: bool = False,
) -> Space:
    """All candidates of a model on all devices of a cluster, in a fixed order.

    Args:
        fix: fields of a plan that are decided already: any of `AXES`, of which a tuple or list allows several values, and
            of `HANDED_ON`. Of `ONE_VALUE` others than the first are tried only where they are fixed.
        forbid: axes that must stay at one ("cp", "interleaved_1f1b") or values that must not be taken ("zero3", "full").
        microbatch_sizes: sequences of a microbatch to try; None: every divisor of a pipeline's batch.
        capacity_bytes: of a device: what certainly needs more is counted and has no row, unless all do; None: such are only
            microbatches that are too large by themselves.
        is_open: with one row for all kinds of context parallelism (`Space.open_contexts`).

    Raises:
        PlanError: an unknown name, something both fixed and forbidden, or no candidate: says which rule leaves none.
    """
    names, formats = named(), {name: value for name, value in (fix or {}).items() if name in HANDED_ON}
    wanted = {name: _values(name, value) for name, value in (fix or {}).items() if name not in HANDED_ON}
    if len(shares_of(formats.get("token_parts", 1))) > 1:
        wanted.setdefault("recompute_blocks", (0,))  # parts are of stages all of whose blocks are alike
        if formats.get("parts_of") == "sequence":
            wanted.setdefault("cp", (1,))  # which cuts sequences otherwise
    if FULL_SCORES in wanted.get("context", ()):
        wanted.setdefault("recompute", ("none", "full"))  # whole rows of scores are read by two backwards
    check_names(wanted, tuple(forbid), names, formats)
    check_degrees(model, cluster, workload, wanted)
    is_split = Plan.vocabulary not in wanted.get("vocabulary", (Plan.vocabulary,))
    asked = wanted.get("microbatch_size", microbatch_sizes)
    sizes = MicrobatchSizes(model, cluster, workload, asked, formats, is_vocabulary_split=is_split)
    limits = _limits({**{name: names[name][:1] for name in ONE_VALUE}, **wanted}, forbid, names)
    least = None if capacity_bytes is None else LeastMemory(model, cluster, workload, formats, capacity_bytes)
    allowed = [CONTEXTS[number] for number in limits.pop("context", range(len(CONTEXTS)))]
    if "context" not in wanted:
        allowed = [kind for kind in allowed if kind not in ASKED_FOR]
    laid_out = [TOKEN_LAYOUTS[number] for number in limits.pop("token_layout", ())]
    contexts = ContextKinds(
        model,
        workload.sequence_length,
        allowed,
        laid_out,
        [int(each) for each in limits.pop("ulysses", ())],
        0 if {"context", "token_layout"} & wanted.keys() else cluster.levels[0].num_devices,
    )
    choices = _Choices(model, cluster, workload, sizes, limits, names, least, "mesh_order" in wanted)
    every = [each for each in layouts(model, cluster, workload, wanted, contexts) if choices.allows(each)]
    kinds: dict[tuple[int, int], tuple[ContextKind, ...]] = {}
    if is_open:
        kinds = {
            degrees: contexts.of(*degrees) for degrees in dict.fromkeys((each.tp, each.cp) for each in every)
        }
        every = [
            each
            for each in every
            if (each.context, each.token_layout, each.ulysses) == kinds[each.tp, each.cp][0]
        ]
    fineness, tried, counted = choices.counted(every)
    found = [rows for rows, _ in counted if rows.size]
    if not found and least is not None:
        return space_of(
            model,
            cluster,
            workload,
            fix=fix,
            forbid=forbid,
            microbatch_sizes=microbatch_sizes,
            is_open=is_open,
        )
    if not found:
        raise PlanError(
            f"no plan puts a batch of {workload.global_batch} and {model.num_layers} layers on {cluster.num_devices} "
            f"devices with {words_of(wanted, forbid)}",
            allowed="degrees whose product is the number of devices, dp x microbatch_size that divides the batch, "
            "at most as many stages as layers",
            next="change the batch or the number of devices, or fix and forbid less",
        )
    columns = dict(zip(AXES, np.concatenate(found, axis=1), strict=True))
    num_beyond = sum(
        number * len(kinds.get((each.tp, each.cp), (0,)))
        for each, (_, number) in zip(tried, counted, strict=True)
    )
    return Space(model, cluster, workload, formats, names, fineness.left_out, num_beyond, kinds, **columns)


def _values(name: str, given: Any) -> tuple[Any, ...]:
    """The values that are allowed of what is fixed; an order of the mesh may also be said as `Plan.mesh_order`."""
    if name == "mesh_order" and not isinstance(given, str) and sorted(map(str, given)) == sorted(MESH):
        return ("-".join(given),)
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def _limits(
    wanted: Mapping[str, Sequence[Any]], forbid: Sequence[str], names: Mapping[str, tuple[Any, ...]]
) -> dict[str, Ints]:
    """Numbers that an axis may take, of those that are limited at all."""
    found: dict[str, Ints] = {}
    for axis in AXES:
        values = names.get(axis)
        allowed = wanted.get(axis, values)
        if axis in forbid:
            allowed = values[:1] if values else (0 if axis in FROM_ZERO else 1,)
        elif values and allowed is not None:
            allowed = [value for value in allowed if value not in forbid]
        if allowed is not None and (axis in wanted or axis in forbid or len(allowed) < len(values or ())):
            found[axis] = np.array([values.index(v) if values else v for v in allowed], dtype=np.int64)
    return found


class _Choices(NamedTuple):
    """Everything that is chosen on a layout."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    sizes: MicrobatchSizes
    limits: Mapping[str, Ints]
    names: Mapping[str, tuple[Any, ...]]
    least: LeastMemory | None
    is_order_fixed: bool

    def has(self, layout: Degrees, fineness: Fineness) -> bool:
        """Is the layout's order tried? One that is fixed always is."""
        return self.is_order_fixed or fineness.has(layout)

    def allows(self, layout: Degrees) -> bool:
        """Are its degrees and its order among those that may be taken?"""
        return all(
            getattr(layout, name) in self.limits[name] for name in Degrees._fields if name in self.limits
        )

    def counted(self, every: Sequence[Degrees]) -> tuple[Fineness, list[Degrees], list[tuple[Ints, int]]]:
        """The finest under which there are few enough candidates, the layouts that it has, and the `rows` of each."""
        for fineness in (self._finest(every), COARSEST):
            tried = [each for each in every if self.has(each, fineness)]
            counted, num_rows = list[tuple[Ints, int]](), 0
            for each in tried:
                counted.append(self.rows(each, fineness))
                num_rows += counted[-1][0].shape[1]
                if num_rows > MOST_CANDIDATES and fineness is not COARSEST:
                    break
            else:
                break
        return fineness, tried, counted

    def _finest(self, every: Sequence[Degrees]) -> Fineness:
        """The finest, but for the coarsest, under which there are few enough before their memory is looked at."""
        for fineness in FINENESS[:-1]:
            num_candidates = 0
            for each in (one for one in every if self.has(one, fineness)):
                num_candidates += prod(map(len, self._tables(each, fineness)))
                if num_candidates > MOST_CANDIDATES:
                    break
            else:
                return fineness
        return FINENESS[-1]

    def rows(self, layout: Degrees, fineness: Fineness) -> tuple[Ints, int]:
        """All candidates of one layout that may fit, a column of each of `AXES`; and how many more there are, which no
        device has the memory for."""
        first, pipeline, few, sharding, parallel = self._tables(layout, fineness)
        sizes = np.concatenate([few[:, 0], np.array(self._sizes_on(layout, fineness)[1], dtype=np.int64)])
        offered = self._is_offered(layout, pipeline[:, 0][:, None, None], sizes[:, None], sharding[:, 0])
        fits = np.arange(len(sizes))[:, None] < len(few)
        if self.least is not None:
            fits = fits & self.least.allows(layout, sizes, sharding)
        chosen = np.nonzero(offered & fits)
        columns = np.empty((len(AXES), len(chosen[0]), len(parallel)), dtype=np.int32)
        inner = zip((pipeline, few, sharding), chosen, strict=True)
        middle = [column[places] for table, places in inner for column in table.T]
        outer, last = len(first.T), len(parallel.T)
        columns[:outer], columns[outer:-last] = first.T[:, None], np.array(middle)[:, :, None]
        columns[-last:] = parallel.T[:, None]
        found = columns.reshape(len(AXES), -1)
        return found[:, self._has_passes(found)], int(offered.sum() - len(chosen[0])) * len(parallel)

    def _has_passes(self, columns: Ints) -> NDArray[np.bool_]:
        """Which of these candidates' vocabularies have passes of their own, if they are split?"""
        interlaced, schedule = (self.names[name].index(word) for name, word in INTERLACED)
        split, order = (columns[AXES.index(name)] for name, _ in INTERLACED)
        return np.asarray((split != interlaced) | (order == schedule))

    def _is_offered(self, layout: Degrees, schedule: Ints, size: Ints, sharding: Ints) -> NDArray[np.bool_]:
        """Is there a sense, and a software, for these together? Arrays that broadcast."""
        # in a pipeline a device would reduce whole stages after every microbatch of every other: nobody offers it
        keep = (sharding != SHARDINGS.index("zero2")) | (layout.pp == 1)
        # parameters would be gathered for I, and again for W, which PyTorch's sharding does not know
        splits = np.array([registered()[name].splits_backward for name in self.names["schedule"]])
        keep = keep & ((sharding != SHARDINGS.index("zero3")) | ~splits[schedule])
        is_gpipe = np.array([name == "gpipe" for name in self.names["schedule"]])
        is_one = layout.dp * size == self.workload.global_batch
        return np.asarray(keep & ~(is_gpipe[schedule] & is_one))  # of one microbatch it is 1F1B

    def _vocabularies(self, layout: Degrees) -> list[int]:
        """Only a pipeline has stages among which a vocabulary is split."""
        return [each for each in self.limits["vocabulary"].tolist() if layout.pp > 1 or not each]

    def _sizes_on(self, layout: Degrees, fineness: Fineness) -> tuple[list[int], list[int]]:
        """As `MicrobatchSizes.on`, those of them that are tried."""
        few, more = self.sizes.on(layout)
        if fineness.counts is None or self.sizes.is_asked:
            return few, more
        some = [size for size in few if size in fineness.counts]
        return some or few[:1], [size for size in more if size in fineness.counts]

    def _asked(self, axis: str) -> tuple[int, ...]:
        """What a user asks for of an axis of which only some numbers are tried otherwise."""
        return tuple(self.limits[axis].tolist()) if axis in self.limits else ()

    def _tables(self, layout: Degrees, fineness: Fineness) -> list[Ints]:
        """What is allowed of each independent choice: its axes side by side, in the order of `AXES`."""
        node = self.cluster.levels[0].num_devices
        divides = self.workload.sequence_length % (layout.cp * layout.tp) == 0
        parallel = (0, 1) if layout.tp > 1 and divides else (0,)
        if not fineness.has_plain_tensor and "sequence_parallel" not in self.limits:
            parallel = parallel[-1:]
        tables: list[Sequence[tuple[int, ...]]] = [
            [tuple(layout)],
            _pipeline_rows(
                self.model.num_layers,
                layout.pp,
                self.names["schedule"],
                fineness.num_partial,
                self._asked("recompute_blocks"),
                None if "num_chunks" in self.limits else fineness.counts,
            ),
            [(size,) for size in self._sizes_on(layout, fineness)[0]],
            _sharding_rows(layout, node, fineness.nodes_that_share, self._asked("sharding_degree")),
            [
                (each, *others)
                for each in parallel
                for others in product(self.limits["float8"].tolist(), self._vocabularies(layout))
            ],
        ]
        found, column = [], 0
        for table, width in zip(tables, WIDTHS, strict=True):
            rows = np.array(table, dtype=np.int64).reshape(len(table), width)
            found.append(_within(rows, AXES[column : column + width], self.limits))
            column += width
        return found


def _within(table: Ints, axes: Sequence[str], limits: Mapping[str, Ints]) -> Ints:
    """The rows whose values are allowed."""
    keep = np.ones(len(table), dtype=bool)
    for place, name in enumerate(axes):
        if name in limits:
            keep &= np.isin(table[:, place], limits[name])
    return table[keep]


@lru_cache(maxsize=256)
def _pipeline_rows(
    num_layers: int, pp: int, schedules: tuple[str, ...], num_partial: int, asked: tuple[int, ...] = (),
    counts: tuple[int, ...] | None = None,
) -> list[tuple[int, ...]]:  # fmt: skip
    """(schedule, chunks, split, recompute, blocks that are run again) of a pipeline; `asked`: such numbers of blocks;
    `counts`: of chunks, those that are tried."""
    found: list[tuple[int, ...]] = []
    for chunks, split in pipelines(num_layers, pp):
        if counts is not None and chunks not in counts:
            continue
        most = max(split_of(num_layers, pp * chunks, LAYERS[split]))
        for number, name in enumerate(schedules):
            one = registered()[name]
            if (
                (one.num_chunks > 1) != (chunks > 1)
                or not one.takes_chunks(chunks)
                or not one.takes_devices(pp)
                or (pp == 1 and name != "1f1b")
            ):
                continue
            for recompute, word in enumerate(RECOMPUTES):
                some = sorted({*_partial(most, num_partial), *(each for each in asked if 0 < each < most)})
                blocks = [0, *some] if word == "full" else [0]
                found += [(number, chunks, split, recompute, each) for each in blocks]
    return found


def _partial(most: int, num_partial: int) -> list[int]:
    """Numbers of blocks of a stage below all, spread evenly."""
    count = min(num_partial, most - 1)
    return sorted({most * (k + 1) // (count + 1) for k in range(count)} - {0, most})


def _sharding_rows(
    layout: Degrees, node: int, nodes_that_share: Sequence[int], asked: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """(sharding, devices that share one copy; 0: all); `asked`: such numbers of devices."""
    copies = layout.dp * layout.cp
    if copies == 1:
        return [(0, 0)]
    some = [
        nodes * node // layout.tp
        for nodes in nodes_that_share
        if node % layout.tp == 0 and nodes * node // layout.tp > 1
    ]
    more = sorted({*some, *(each for each in asked if each > 1)})
    degrees = [0, *(each for each in more if _is_nested(layout, each) and each < copies)]
    return [(0, 0)] + [(number, degree) for number in range(1, len(SHARDINGS)) for degree in degrees]


def _is_nested(layout: Degrees, shared: int) -> bool:
    """Do groups of so many devices divide dp x cp, and nest with those that share experts?"""
    if shared % layout.cp or layout.dp * layout.cp % shared:
        return False
    group, matrices = layout.tp * shared, layout.expert_tp
    return all(group % each == 0 or each % group == 0 for each in (matrices, matrices * layout.ep))
