"""Placement: which device of a cluster every list of a program runs on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError


@dataclass(frozen=True, eq=False)
class Placement:
    """``devices[coordinates along all axes]`` is a device number of the cluster."""

    cluster: ClusterSpec
    devices: NDArray[np.int64]
    axes: tuple[str, ...]

    def of_list(self, program: Program, device: int) -> int:
        """Device of a list; of a collapsed axis the first coordinate stands for all."""
        coordinates = program.coordinates(device)
        return int(self.devices[tuple(coordinates.get(axis, 0) for axis in self.axes)])

    def copies(self, program: Program, exchange: Exchange) -> Iterator[dict[str, int]]:
        """Coordinates of all copies of an exchange along the collapsed axes that it does not run along."""
        axes = [axis for axis in program.axes if not axis.materialised and axis.name not in exchange.axes]
        for coordinates in itertools.product(*(range(axis.size) for axis in axes)):
            yield {axis.name: coordinate for axis, coordinate in zip(axes, coordinates, strict=True)}

    def ends(
        self,
        program: Program,
        device: int,
        kind: Kind,
        exchange: Exchange,
        copy: Mapping[str, int] | None = None,
    ) -> tuple[int, ...]:
        """Devices at the ends of an exchange that a list takes part in: (source, target), or the group's members.

        ``copy``: coordinates along collapsed axes (0 where it is left out).
        """
        at = {**dict.fromkeys(self.axes, 0), **(copy or {}), **program.coordinates(device)}
        first = exchange.axes[0]
        if kind in (Kind.SEND, Kind.RECEIVE) and exchange.ends is not None:
            return tuple(self._at({**at, first: coordinate}) for coordinate in exchange.ends[:2])
        if kind in (Kind.SEND, Kind.RECEIVE):
            shift = exchange.shift if kind == Kind.SEND else -exchange.shift
            own, other = self._at(at), self._at({**at, **_shifted(program, exchange.axes, at, shift)})
            return (own, other) if kind == Kind.SEND else (other, own)
        members = [at]
        for axis in exchange.axes:
            everybody = range(program.axis(axis).size)
            chosen = exchange.ends if axis == first and exchange.ends is not None else everybody
            members = [{**member, axis: coordinate} for member in members for coordinate in chosen]
        return tuple(self._at(member) for member in members)

    def _at(self, coordinates: dict[str, int]) -> int:
        return int(self.devices[tuple(coordinates[axis] for axis in self.axes)])


def _shifted(program: Program, axes: Sequence[str], at: Mapping[str, int], shift: int) -> dict[str, int]:
    """Coordinates along axes that are numbered as one, so many further on, around their end."""
    sizes = [program.axis(axis).size for axis in axes]
    number = np.ravel_multi_index([at[axis] for axis in axes], sizes)
    found = np.unravel_index((number + shift) % math.prod(sizes), sizes)
    return {axis: int(coordinate) for axis, coordinate in zip(axes, found, strict=True)}


def place(program: Program, cluster: ClusterSpec, device_order: tuple[int, ...] = ()) -> Placement:
    """Put the program's devices, row-major over its axes, on those of the cluster in this order.

    Raises:
        PlanError: the program needs more devices than there are, or the order names a device twice.
    """
    shape = tuple(axis.size for axis in program.axes)
    order: Any = device_order or range(cluster.num_devices)
    if program.num_devices > len(order) or len(set(order)) != len(order):
        raise PlanError(
            f"the program runs on {program.num_devices} devices, the cluster {cluster.name} gives {len(set(order))}",
            allowed="a device of its own for every coordinate of the axes",
        )
    devices = np.array(list(order)[: program.num_devices], dtype=np.int64).reshape(shape)
    return Placement(cluster, devices, tuple(axis.name for axis in program.axes))
