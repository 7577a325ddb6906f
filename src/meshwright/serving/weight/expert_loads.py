"""ExpertLoads: how many rows of tokens came to every expert of a served model, and to every device that has some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class SlotRows(NamedTuple):
    """Of a layer on one of the devices among which its experts are divided: the expert in every slot, and its rows so far."""

    layer: int
    device: int
    experts: tuple[int, ...]
    num_rows: tuple[int, ...]


@runtime_checkable
class RoutingRunner(Protocol):
    """What a runner of a model that may have experts has beside `Runner`."""

    def slot_rows(self) -> list[SlotRows]:
        """Of every layer with experts and every device that has some, all steps that have ended."""
        ...


@dataclass(frozen=True)
class ExpertLoads:
    """Of a model's layers with experts. ``by_expert``: rows of each, copies together; ``by_device``: of each device of ep."""

    layers: tuple[int, ...]
    by_expert: tuple[tuple[int, ...], ...]
    by_device: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rows: Iterable[SlotRows]) -> ExpertLoads | None:
        """From what devices have counted; None where there are no experts."""
        of_layers: dict[int, list[SlotRows]] = {}
        for each in rows:
            of_layers.setdefault(each.layer, []).append(each)
        if not of_layers:
            return None
        layers = tuple(sorted(of_layers))
        return cls(
            layers,
            tuple(_by_expert(of_layers[layer]) for layer in layers),
            tuple(_by_device(of_layers[layer]) for layer in layers),
        )

    @property
    def num_rows(self) -> int:
        """Of all layers: tokens times the experts that each goes to."""
        return sum(map(sum, self.by_device))

    @property
    def busiest_expert(self) -> float:
        """Rows of a layer's busiest expert over the mean, mean of the layers; 1 where nothing came."""
        return _busiest(self.by_expert)

    @property
    def busiest_device(self) -> float:
        """Of devices alike: the others wait for the busiest at the sum that ends a layer."""
        return _busiest(self.by_device)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "layers": list(self.layers),
            "rows_by_expert": [list(rows) for rows in self.by_expert],
            "rows_by_device": [list(rows) for rows in self.by_device],
            "busiest_expert": self.busiest_expert,
            "busiest_device": self.busiest_device,
        }

    def __str__(self) -> str:
        num_devices = len(self.by_device[0])
        apart = f", busiest of {num_devices} devices {self.busiest_device:.2f} x" if num_devices > 1 else ""
        return (
            f"experts: {self.num_rows:,} rows in {len(self.layers)} layers; busiest expert {self.busiest_expert:.2f} x the "
            f"mean{apart}"
        )


def _by_expert(rows: Iterable[SlotRows]) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for each in rows:
        for expert, number in zip(each.experts, each.num_rows, strict=True):
            found[expert] = found.get(expert, 0) + number
    return tuple(found[expert] for expert in sorted(found))


def _by_device(rows: Iterable[SlotRows]) -> tuple[int, ...]:
    return tuple(sum(each.num_rows) for each in sorted(rows, key=lambda each: each.device))


def _busiest(layers: tuple[tuple[int, ...], ...]) -> float:
    shares = [max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0 for rows in layers]
    return sum(shares) / len(shares)
