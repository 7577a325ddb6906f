"""Expert placements: which expert stands in which slot of which device, layer by layer; some may stand in several.

Letters: L layers, E experts, S slots of a layer, G devices of an expert-parallel group, which have S / G slots each.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.whole_file import whole_file

SCHEMA = 1
KIND = "meshwright-expert-placement"
Loads = NDArray[np.float64]
Numbers = NDArray[np.int64]


class GroupShape(tuple[int, int]):
    """Devices of an expert-parallel group, and nodes that have as many of them each: (8, 2) are two nodes of four."""

    def __new__(cls, num_devices: int, num_nodes: int = 1) -> GroupShape:
        """Raises SpecError where nodes do not divide devices."""
        if min(num_devices, num_nodes) < 1 or num_devices % num_nodes:
            raise SpecError(
                f"{num_devices} devices on {num_nodes} nodes", allowed="as many devices on every node"
            )
        return super().__new__(cls, (num_devices, num_nodes))

    @property
    def num_devices(self) -> int:
        """G."""
        return self[0]

    @property
    def num_nodes(self) -> int:
        """Nodes, the first devices on the first."""
        return self[1]


@dataclass(frozen=True, eq=False)
class ExpertPlacement:
    """Which expert is in each slot.

    Args:
        experts: [L, S]; every expert of a layer once at least, and never twice on one device.
        num_devices: G; device g has slots g S / G to (g + 1) S / G.
        layers: which of the model's layers they are.

    Raises SpecError where it is no placement.
    """

    experts: Numbers
    num_devices: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        found = np.asarray(self.experts)
        if found.ndim != 2 or found.dtype.kind not in "iu" or len(found) != len(self.layers):
            raise SpecError(
                f"a placement of shape {found.shape} for {len(self.layers)} layers",
                allowed="numbers of experts [layers, slots]",
            )
        object.__setattr__(self, "experts", found.astype(np.int64))
        num_slots = found.shape[1]
        if self.num_devices < 1 or num_slots % self.num_devices:
            raise SpecError(
                f"{num_slots} slots on {self.num_devices} devices", allowed="as many on each device"
            )
        for layer, row in zip(self.layers, self.experts, strict=True):
            present = np.unique(row)
            if not np.array_equal(present, np.arange(self.num_experts)):
                raise SpecError(
                    f"layer {layer} has experts {present.tolist()[:8]} ...",
                    allowed=f"each of 0 to {self.num_experts - 1} in one slot at least",
                )
        each = np.sort(self.experts.reshape(len(found), self.num_devices, -1), 2)
        if (each[:, :, 1:] == each[:, :, :-1]).any():
            raise SpecError("an expert stands twice on one device", allowed="copies on different devices")

    @property
    def num_experts(self) -> int:
        """E."""
        return int(self.experts.max()) + 1

    @property
    def has_copies(self) -> bool:
        """Do some experts stand in several slots?"""
        return int(self.experts.shape[1]) > self.num_experts

    @cached_property
    def copies(self) -> Loads:
        """How many slots of each device have an expert, [L, G, E]: 0 or 1."""
        num_layers, num_slots = self.experts.shape
        found = np.zeros((num_layers, self.num_devices, self.num_experts))
        devices = np.arange(num_slots) // (num_slots // self.num_devices)
        for layer, row in enumerate(self.experts):
            found[layer, devices, row] = 1
        return found

    @property
    def devices(self) -> Numbers:
        """The device of every expert, [L, E]. Raises SpecError where experts have copies."""
        if self.has_copies:
            raise SpecError("experts of a placement stand on several devices", allowed="one without copies")
        found: Numbers = self.copies.argmax(1)
        return found

    def loads(self, trace: RoutingTrace) -> Loads:
        """Rows of every device, [L, G]; copies of an expert share its rows evenly. Raises SpecError for another model's."""
        self.check(trace)
        shares: Loads = self.copies / self.copies.sum(1, keepdims=True)
        found: Loads = np.einsum("lge,le->lg", shares, trace.counts.astype(float))
        return found

    def imbalances(self, trace: RoutingTrace) -> Loads:
        """Rows of the busiest device over the mean, of every layer: as many times an even split's its experts take."""
        loads = self.loads(trace)
        found: Loads = loads.max(1) / loads.mean(1)
        return found

    def moved_share(self, trace: RoutingTrace, num_groups: int = 0) -> float:
        """Share of moves from a layer's expert to the next one's that leave the device.

        `num_groups`: leave the group of neighbouring devices, of so many equal ones (nodes). Raises SpecError with copies.
        """
        self.check(trace)
        devices = self.devices // (self.num_devices // (num_groups or self.num_devices))
        total = moved = 0
        for layer, counts in enumerate(trace.transitions):
            leaves = devices[layer][:, None] != devices[layer + 1][None, :]
            moved, total = moved + int(counts[leaves].sum()), total + int(counts.sum())
        return moved / total if total else 0.0

    def moved_by_loads(self, trace: RoutingTrace) -> float:
        """`moved_share` of tokens whose experts in neighbouring layers know nothing of each other, with the loads of devices
        that they have: what moves say beyond it is affinity. Raises SpecError for another model's."""
        loads = self.loads(trace)
        shares = loads / loads.sum(1, keepdims=True)
        return float(1 - (shares[:-1] * shares[1:]).sum(1).mean()) if len(shares) > 1 else 0.0

    def check(self, trace: RoutingTrace) -> None:
        """Raise SpecError where the trace is of other layers or experts."""
        if (self.layers, self.num_experts) != (trace.layers, trace.num_experts):
            raise SpecError(
                f"a placement of {len(self.layers)} layers of {self.num_experts} experts, a trace of "
                f"{trace.num_layers} of {trace.num_experts}",
                allowed="both of one model",
            )

    def slots_in(
        self, model: ModelSpec, num_devices: int, *, takes_copies: bool = False
    ) -> tuple[tuple[int, ...], ...]:
        """Of every layer of a model its experts by slot, device after device; none of a layer without experts.

        Args:
            num_devices: of an expert-parallel group of the model's plan, its ep.
            takes_copies: may experts stand on several devices? What trains would have to add their gradients.

        Raises SpecError where experts are not divided or have copies that nobody takes, and for other layers, experts or
        devices.
        """
        kinds = {
            number: block.experts for number, block in enumerate(model.layers) if block.experts is not None
        }
        if not kinds or num_devices == 1:
            raise SpecError(
                f"a placement of experts for {model.name} "
                + ("with ep 1: every device has all of them" if kinds else "which has none"),
                allowed="a plan that divides experts among devices",
                next="plan with ep of 2 or more (--fix ep=2), or leave the placement out",
            )
        if self.has_copies and not takes_copies:
            raise SpecError(
                f"{self.experts.shape[1] - self.num_experts} copies of experts of every layer",
                allowed="a placement without copies, each expert on one device",
                next="place without copies: `meshwright place` by ex_flow, moe_tuner or round_robin",
            )
        needed, found = {kind.num_experts for kind in kinds.values()}, (self.layers, {self.num_experts})
        if found != (tuple(kinds), needed) or self.num_devices != num_devices:
            raise SpecError(
                f"a placement of {self.num_experts} experts of {len(self.layers)} layers on {self.num_devices} devices",
                allowed=f"of {' or '.join(map(str, sorted(needed)))} experts of the {len(kinds)} layers of {model.name} that "
                f"have some, on {num_devices} devices (ep)",
                next="record its routing (train --record-routing) and `meshwright place` it on so many devices",
            )
        rows = dict(zip(self.layers, self.experts.tolist(), strict=True))
        return tuple(tuple(rows.get(number, ())) for number in range(model.num_layers))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        told = {
            "kind": KIND, "schema": SCHEMA, "num_devices": self.num_devices, "layers": list(self.layers),
            "experts": self.experts.tolist(),
        }  # fmt: skip
        with whole_file(path) as part:
            part.write_text(json.dumps(told) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> ExpertPlacement:
        """Read what `save` wrote. Raises SpecError that names the file."""
        file = Path(path).expanduser()
        try:
            told: Any = json_of(file.read_text(encoding="utf-8"))
            if told["kind"] != KIND or told["schema"] > SCHEMA:
                raise ValueError(f"{told['kind']} of schema {told['schema']}")
            experts = np.array(told["experts"])
            return ExpertPlacement(experts, int(told["num_devices"]), tuple(map(int, told["layers"])))
        except SpecError as error:
            raise SpecError(f"{file}: {error.given}", allowed=error.allowed) from None
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            said = getattr(error, "strerror", None) or error
            raise SpecError(
                f"{file} is no expert placement ({said})", allowed=f"JSON that says {KIND}, schema {SCHEMA}"
            ) from None


class PlacesExperts(Protocol):
    """What fills the slot `expert_placement`."""

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """Where experts of the traced layers stand on these devices."""


@dataclass(frozen=True)
class ContiguousExperts:
    """Neighbouring experts on one device, as every framework has them where nobody says anything."""

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """The same in every layer. Raises SpecError where devices do not divide experts."""
        check_divided(trace, shape)
        return of_devices(
            np.tile(np.arange(trace.num_experts) * shape.num_devices // trace.num_experts, (trace.num_layers, 1)),
            shape, trace.layers,
        )  # fmt: skip


@dataclass(frozen=True)
class RoundRobinExperts:
    """Expert e on device e modulo the devices: what published placements are compared with."""

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """The same in every layer. Raises SpecError where devices do not divide experts."""
        check_divided(trace, shape)
        return of_devices(
            np.tile(np.arange(trace.num_experts) % shape.num_devices, (trace.num_layers, 1)),
            shape,
            trace.layers,
        )


def check_divided(trace: RoutingTrace, shape: GroupShape) -> None:
    """Raise SpecError where devices do not divide experts."""
    if trace.num_experts % shape.num_devices:
        raise SpecError(
            f"{trace.num_experts} experts on {shape.num_devices} devices",
            allowed="devices that divide the experts",
        )


def of_devices(devices: Numbers, shape: GroupShape, layers: tuple[int, ...]) -> ExpertPlacement:
    """The placement of the device of every expert, [L, E], as many on each; experts of a device rise."""
    return ExpertPlacement(np.argsort(devices, axis=1, kind="stable"), shape.num_devices, layers)
