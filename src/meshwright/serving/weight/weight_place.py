"""What fills the slot `weights`: which blocks of a replica's weights are fetched when they are needed, and from where.

A stage's weights are blocks in the order in which a step uses them: "embedding", "layers.0.attention",
"layers.0.feed_forward", ..., "head". What is not fetched lies where it computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.slot import resolve

EMBEDDING, HEAD = "embedding", "head"
ATTENTION, FEED_FORWARD = "attention", "feed_forward"
RESIDENT = "resident"
DISK, PEER = "disk", "peer"
LEAST_WINDOW = 2  # one block computes while the next one comes
# Parameters of a layer that its attention uses; all others are of the part behind it.
OF_ATTENTION = frozenset(
    (
        *("attention_norm", "qkv", "query_norm", "key_norm", "sinks", "latent_attention"),
        *("attention_output", "attention_result_norm"),
    )
)
_OF_LAYER = re.compile(r"layers\.(\d+)\.(\w+)")


@dataclass(frozen=True)
class WeightSource:
    """Whence blocks come: "disk" is the files of the model, "peer" the memory of a neighbour that computes for no replica.
    `bytes_per_s`: at which rate to one device, on paper; an engine takes what it gets."""

    name: str
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0.0 < self.bytes_per_s < float("inf"):
            raise SpecError(
                f"weights come from {self.name} with {self.bytes_per_s!r} bytes/s", allowed="above 0"
            )


@runtime_checkable
class WeightPlace(Protocol):
    """The protocol. ``window``: so many of the fetched blocks are on a device at once: that which computes, and those that
    come ahead of it. ``source``: whence; None where nothing is fetched."""

    @property
    def window(self) -> int:
        """See above."""
        ...

    @property
    def source(self) -> WeightSource | None:
        """See above."""
        ...

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        """Which of a stage's blocks, in the order of their use, are fetched for every step."""
        ...


@dataclass(frozen=True)
class Resident:
    """All weights lie where they compute."""

    @property
    def window(self) -> int:
        """Of nothing."""
        return 0

    @property
    def source(self) -> None:
        """None."""
        return

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        """None of them."""
        return ()


@dataclass(frozen=True)
class FetchedBlocks:
    """What a place says of some blocks, as plain data that every process can be told."""

    blocks: tuple[str, ...] = ()
    window: int = 0
    source: str = ""

    @classmethod
    def of(cls, data: Any) -> FetchedBlocks:
        """From what `asdict` made, perhaps by way of JSON."""
        return cls(tuple(data["blocks"]), int(data["window"]), str(data["source"]))


NOTHING_FETCHED = FetchedBlocks()


def weight_place(reference: str) -> WeightPlace:
    """What stands behind a name in the slot. Raises PlanError where nobody knows it, or it is no such place."""
    found = Resident() if reference == RESIDENT else resolve("weights", reference)
    if not isinstance(found, WeightPlace):
        raise PlanError(f"weights are {reference}", allowed="what has window, source and fetched(blocks)")
    return found


def fetched_blocks(place: WeightPlace, stages: Sequence[Sequence[str]]) -> FetchedBlocks:
    """Of the blocks of some stages. Raises SpecError where the place names blocks that are not there, or its window is too
    small for one to come while another computes."""
    chosen = [name for blocks in stages for name in _checked(place, blocks)]
    if not chosen or place.source is None:
        return NOTHING_FETCHED
    if place.window < LEAST_WINDOW:
        raise SpecError(
            f"a window of {place.window} blocks",
            allowed=f"{LEAST_WINDOW} or more: one computes, the next one comes",
        )
    return FetchedBlocks(tuple(chosen), place.window, place.source.name)


def stage_blocks(layers: range, has_embedding: bool, has_head: bool) -> tuple[str, ...]:
    """The blocks of a stage with these layers, in the order of their use."""
    parts = (f"layers.{number}.{part}" for number in layers for part in (ATTENTION, FEED_FORWARD))
    return (*((EMBEDDING,) if has_embedding else ()), *parts, *((HEAD,) if has_head else ()))


def block_of(parameter: str) -> str:
    """The block that a parameter belongs to, by our name of it; a tied table is the embedding's, and the head's once more."""
    found = _OF_LAYER.match(parameter)
    if found is None:
        return EMBEDDING if parameter.split(".")[0] in ("embedding", "positions") else HEAD
    return f"layers.{found[1]}.{ATTENTION if found[2] in OF_ATTENTION else FEED_FORWARD}"


def _checked(place: WeightPlace, blocks: Sequence[str]) -> Sequence[str]:
    chosen = set(place.fetched(blocks))
    if unknown := sorted(chosen - set(blocks)):
        raise SpecError(f"blocks {', '.join(unknown)} are to be fetched", allowed=", ".join(blocks))
    return [name for name in blocks if name in chosen]
