"""Prices a program: one cost for every distinct work and device class, and for every distinct exchange between devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import CommunicationModel, Cost, CostModel
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind, Work
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.timing.wiring import Wiring
from meshwright.lowering.place import Placement
from meshwright.specs.plan.prediction import weakest

Ints = NDArray[Any]
Demand = tuple[str, float]  # (name of a resource, share of it while the instruction runs at full speed)


@dataclass(frozen=True, eq=False)
class Prices:
    """``costs[cost_of_row[i]]`` is the cost of row ``i``; ``demands`` are the links that the class occupies, by share."""

    costs: tuple[Cost, ...]
    demands: tuple[tuple[Demand, ...], ...]
    cost_of_row: Ints

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds by class."""
        return np.array([cost.seconds for cost in self.costs])

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Latency by class."""
        return np.array([cost.latency_s for cost in self.costs])


def price(
    wiring: Wiring,
    computes: CostModel,
    messages: CommunicationModel,
    placement: Placement | None,
    *,
    has_demands: bool = True,
) -> Prices:
    """Ask the models once for every class of row.

    Rows without work and exchange cost nothing. Without a placement devices are numbered as the lists are, and all alike;
    exchanges inside works then cost nothing, as nobody knows between which devices they are. `has_demands`: False for who
    runs the program without contention, and does not ask which links are occupied.
    """
    program = wiring.program
    device_class, specs = _device_classes(program, placement)
    sizes = bytes_moved(wiring)
    key = _keys(program, device_class, sizes, flat=placement is None)
    classes, first, of_row = _distinct(key)
    costs, demands = [], []
    for row in first.tolist():
        spec = specs[device_class[program.list_of_row[row]]]
        cost, demand = _price_row(program, row, computes, messages, placement, spec, sizes, has_demands)
        costs.append(cost)
        demands.append(demand)
    return Prices(tuple(costs), tuple(demands), of_row)


def _device_classes(program: Program, placement: Placement | None) -> tuple[Ints, list[Any]]:
    """Class of every list's device and the spec of every class.

    Lists are of one class where their devices are alike and, if works exchange inside, stand at the same place in their
    nodes, and so do the members of their groups.
    """
    if placement is None:
        return np.zeros(program.num_lists, dtype=np.int64), [None]
    exchanges = tuple(dict.fromkeys(inner.exchange for work in program.tables.works for inner in work.inner))
    node_sizes = tuple(level.num_devices for level in placement.cluster.levels[:-1])
    known: dict[tuple[Any, ...], int] = {}
    classes = np.zeros(program.num_lists, dtype=np.int64)
    specs: list[Any] = []
    for device in range(program.num_lists):
        number = placement.of_list(program, device)
        spec = placement.cluster.devices[number]
        key: tuple[Any, ...] = (spec.name, number if placement.cluster.is_routed else 0)
        for exchange in exchanges:
            ends = np.array(placement.ends(program, device, Kind.COLLECTIVE, exchange))
            for size in node_sizes:
                key += (number % size, *(ends // size - number // size).tolist())
        if key not in known or specs[known[key]] != spec:
            known[key] = len(specs)
            specs.append(spec)
        classes[device] = known[key]
    return classes, specs


def bytes_moved(wiring: Wiring) -> NDArray[np.float64]:
    """Bytes of the value that each exchange moves: of its run-time size the expected ones; 0 for all other rows."""
    program = wiring.program
    result = np.zeros(program.num_rows)
    has_bytes = bool(wiring.deps.space.bytes.any()) if program.tables.value_bytes else False
    expected = {size.name: size.expected for size in program.tables.sizes}
    if has_bytes:
        codes = moved_codes(program)
        moves = codes >= 0
        result[moves] = wiring.deps.space.bytes[codes[moves]]
    for number, exchange in enumerate(program.tables.exchanges):
        if exchange.size:
            result[program.columns.exchange == number] = expected[exchange.size]
    return result


def _keys(program: Program, device_class: Ints, sizes: NDArray[np.float64], flat: bool) -> Ints:
    """A number for every row; rows of equal number cost the same."""
    c = program.columns
    is_exchange = c.exchange >= 0
    _, size_number = (
        np.unique(sizes, return_inverse=True) if sizes.any() else (None, np.zeros(1, dtype=np.int64))
    )
    lists = program.list_of_row
    key = (c.work.astype(np.int64) + 1) * (int(device_class.max()) + 1) + device_class[lists]
    # a direction of an exchange class between two given devices; without a cluster all lists are alike
    where = np.zeros(1, dtype=np.int64) if flat else lists.astype(np.int64)
    exchange_key = (
        (c.exchange.astype(np.int64) * 3 + program.kinds) * (int(size_number.max()) + 1) + size_number
    ) * program.num_lists + where
    return np.where(is_exchange, exchange_key + int(key.max(initial=-1)) + 1, key)


def _distinct(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct keys, a row of each, and the place of every row's key, in linear time (keys are dense)."""
    size = int(key.max(initial=-1)) + 1
    first = np.full(size, -1, dtype=np.int64)
    first[key[::-1]] = np.arange(len(key) - 1, -1, -1)
    classes = np.flatnonzero(first >= 0)
    number = np.zeros(size, dtype=np.int32)
    number[classes] = np.arange(len(classes), dtype=np.int32)
    return classes, first[classes], number[key]


def _price_row(
    program: Program, row: int, computes: CostModel, messages: CommunicationModel, placement: Placement | None, spec: Any,
    sizes: NDArray[np.float64], has_demands: bool,
) -> tuple[Cost, tuple[Demand, ...]]:  # fmt: skip
    """The cost of one row, and what it occupies of links."""
    view = program.row(row)
    if view.exchange is None:
        work: Work | None = view.work
        share = 1.0 if view.kind == Kind.COMPUTE else 0.0
        if work is None:
            return Cost(compute_share=share), ()
        cost = computes.cost(work, spec)
        if placement is None or not work.inner:
            return cost, ()
        groups = [
            placement.ends(program, view.device, Kind.COLLECTIVE, inner.exchange) for inner in work.inner
        ]
        return with_inner(cost, work, computes, messages, groups, spec), ()
    ends = placement.ends(program, view.device, view.kind, view.exchange) if placement else (0, 1)
    cost = messages.exchange_cost(view.exchange, float(sizes[row]), ends)
    if placement is None or cost.seconds <= 0 or not has_demands:
        return cost, ()
    demands = _demands(placement, messages, view.exchange, float(sizes[row]), ends, cost)
    if any(_is_shared(placement, link) for link in demands):
        copies = placement.copies(program, view.exchange)
        next(copies)  # the first is the one that was just asked
        for copy in copies:
            others = placement.ends(program, view.device, view.kind, view.exchange, copy)
            for link, share in _demands(
                placement, messages, view.exchange, float(sizes[row]), others, cost
            ).items():
                if link in demands:
                    demands[link] += share
    return cost, tuple(demands.items())


def with_inner(
    cost: Cost, work: Work, computes: CostModel, messages: CommunicationModel, ends: Sequence[tuple[int, ...]], spec: Any,
) -> Cost:  # fmt: skip
    """The cost of a work with the exchanges inside it; `ends` are the devices of each.

    What runs beside operators of one kind adds the seconds that these do not cover and, of those that they do, the share of
    the device that the exchange needs: as in the event engine, both are slowed in proportion.
    """
    beside: dict[str, float] = {}
    taken: dict[str, float] = {}  # of the seconds beside, those of the device
    bases = [cost.basis]
    for inner, devices in zip(work.inner, ends, strict=True):
        one = messages.exchange_cost(inner.exchange, inner.bytes, devices)
        seconds = one.seconds * inner.count
        beside[inner.beside] = beside.get(inner.beside, 0.0) + seconds
        taken[inner.beside] = taken.get(inner.beside, 0.0) + one.compute_share * seconds
        bases.append(one.basis)
    added = beside.pop("", 0.0)
    for kind, seconds in beside.items():
        own = tuple(operator for operator in work.operators if operator.kind == kind)
        covered = computes.cost(work._replace(operators=own, inner=()), spec).seconds if own else 0.0
        hidden = min(seconds, covered)
        added += seconds - hidden + (taken[kind] * hidden / seconds if seconds else 0.0)
    added = max(0.0, added - cost.slack_s)
    return replace(cost, seconds=cost.seconds + added, slack_s=0.0, basis=weakest(*bases))


def _demands(
    placement: Placement, messages: CommunicationModel, exchange: Exchange, num_bytes: float, ends: tuple[int, ...],
    cost: Cost,
) -> dict[str, float]:  # fmt: skip
    """Share of every link that one exchange needs; by itself it never needs more than all of one: its cost says so."""
    demands: dict[str, float] = {}
    for flow in messages.flows(exchange, num_bytes, ends):
        for link in placement.cluster.path(flow.source, flow.target):
            share = min(1.0, flow.bytes / (cost.seconds * link.bandwidth_bytes_per_s)) * cost.link_share
            demands[link.group] = min(1.0, demands.get(link.group, 0.0) + share)
    return demands


def _is_shared(placement: Placement, group: str) -> bool:
    """Is a link no device's own? Then the copies of an exchange along collapsed axes meet on it."""
    return not any(end.startswith("device ") for end in group.split(" -> "))
