"""The fitted constants of collectives that come with the package: read, checked and handed out by chip.

The file is `profiles/collectives_nccl.json`, written by `python -m benchmarks.fit.fit_collectives`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from meshwright.costs.collective.curve import NetworkCurve, NodeCurve, Pipe
from meshwright.costs.collective.expert import ExpertCurve
from meshwright.specs.error import SpecError

PROFILE_SCHEMA = 2
PROFILE_FILE = "collectives_nccl.json"
LARGE_BYTES = 1 << 20  # errors are told apart above and below one MiB


@dataclass(frozen=True, slots=True)
class Spread:
    """Errors |predicted / measured - 1| on rows that were not fitted: their 80th percentile, averaged over sources."""

    small: float
    large: float

    def at(self, num_bytes: float) -> float:
        """The one for a message of this size."""
        return self.large if num_bytes > LARGE_BYTES else self.small


@dataclass(frozen=True)
class ChipCollectives:
    """One measured chip: its curve, and the range of the rows behind it."""

    curve: NodeCurve
    spread: Spread
    most_members: int
    most_bytes: float


@dataclass(frozen=True)
class NetworkCollectives:
    """One measured kind of network: its curve, and the 80th percentile of errors on rows that were not fitted."""

    curve: NetworkCurve
    spread: float


@dataclass(frozen=True)
class CollectiveProfile:
    """All fitted constants. `networks`: by fabric of a cluster; `expert`: by kernel, "dispatch" and "combine", on H100."""

    chips: Mapping[str, ChipCollectives]
    networks: Mapping[str, NetworkCollectives]
    expert: Mapping[str, ExpertCurve]
    sources: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """What stands in the file."""
        return {
            "schema": PROFILE_SCHEMA,
            "sources": list(self.sources),
            "units": "seconds, bytes, bytes per second; spreads are relative",
            "chips": {name: asdict(chip) for name, chip in self.chips.items()},
            "networks": {name: asdict(network) for name, network in self.networks.items()},
            "expert": {name: asdict(curve) for name, curve in self.expert.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CollectiveProfile:
        """From what stands in the file. Raises SpecError for another schema or a missing entry."""
        if document.get("schema") != PROFILE_SCHEMA:
            raise SpecError(
                f"collectives of schema {document.get('schema')!r}",
                allowed=f"schema {PROFILE_SCHEMA}",
                next="write it again with this version: python -m benchmarks.fit.fit_collectives",
            )
        try:
            return cls(
                chips={name: _chip(entry) for name, entry in document["chips"].items()},
                networks={name: _network(entry) for name, entry in document["networks"].items()},
                expert={name: ExpertCurve(**entry) for name, entry in document["expert"].items()},
                sources=tuple(document["sources"]),
            )
        except (KeyError, TypeError) as error:
            raise SpecError(
                f"collectives lack or do not know an entry: {error}", allowed="what to_document writes"
            ) from error


@cache
def packaged_profile() -> CollectiveProfile:
    """The constants that come with the package."""
    text = (resources.files("meshwright.costs") / "profiles" / PROFILE_FILE).read_text(encoding="utf-8")
    return CollectiveProfile.from_document(json.loads(text))


def _network(entry: Mapping[str, Any]) -> NetworkCollectives:
    return NetworkCollectives(NetworkCurve(**entry["curve"]), float(entry["spread"]))


def _chip(entry: Mapping[str, Any]) -> ChipCollectives:
    curve = dict(entry["curve"])
    pipes = ("ring_low", "ring_bulk", "direct_low", "direct_bulk", "message", "switch")
    for name in pipes:
        curve[name] = None if curve[name] is None else Pipe(**curve[name])
    return ChipCollectives(
        NodeCurve(**curve), Spread(**entry["spread"]), int(entry["most_members"]), float(entry["most_bytes"])
    )
