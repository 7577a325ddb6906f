"""Auto-search: how many nano-batches of which sizes, then which share of the device each of their kernels has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import NETWORK
from meshwright.systems.serving.nano_flow.nano_batch import DECODES, TILE, Cut, LinePeriod
from meshwright.systems.serving.nano_flow.pipeline import NanoPipeline, Slot

GRID = tuple(tenth / 10 for tenth in range(1, 11))  # shares that are tried: those of the paper's table
# Where the search for shares begins: as in the paper's figure 6.
FIRST = {"decodes": 0.4, "small": 0.4, "network": 0.2}
FOUR = 4  # nano-batches near attention where two are not enough
NUM_REFINED = 4  # cuts of each number of nano-batches whose shares are searched
HALVES = (0.4, 0.5, 0.6)  # where a nano-batch is cut once more
ENOUGH = 1e-4  # of a step: what another round has to win


class FoundPipeline(NamedTuple):
    """What the search ends with: how a batch is cut, the share of each kernel that has one, and seconds of the batch that it
    was found for."""

    cut: Cut
    shares: Mapping[Slot, float]
    seconds: float


@dataclass(frozen=True, eq=False)
class PipelineSearch:
    """For one line, with at most so many nano-batches near attention."""

    period: LinePeriod
    most: int = 4

    def run(self, batch: BatchShape) -> FoundPipeline | None:
        """The fastest pipeline that was found; None where a batch has not two tiles."""
        found = []
        for cuts in self._structures(batch):
            shared = (self._with_shares(cut, batch) for cut in cuts[:NUM_REFINED])
            cut, shares, _ = min(shared, key=lambda each: each.seconds)
            found.append(self._lowered(cut, batch, shares, [(slot,) for slot in shares]))
        return min(found, key=lambda each: each.seconds, default=None)

    def _structures(self, batch: BatchShape) -> Iterator[list[Cut]]:
        """Cuts in two and in four, each best first, as if kernels did not disturb each other: all sizes of two nano-batches,
        and halves of the best of these near attention."""
        num_tiles = -(-batch.num_tokens // TILE)
        if num_tiles < 2:
            return
        sizes = (tile * TILE / batch.num_tokens for tile in range(1, num_tiles))
        twos = self._ranked(
            (Cut((one, 1 - one), (1, 1), is_even) for one in sizes for is_even in (True, False)), batch
        )
        yield twos
        if min(self.most, num_tiles) >= FOUR:
            yield self._ranked((four for two in twos[:NUM_REFINED] for four in _in_halves(two)), batch)

    def _ranked(self, cuts: Iterable[Cut], batch: BatchShape) -> list[Cut]:
        return sorted(cuts, key=lambda cut: self._pipeline(cut, batch).seconds(None))

    def _pipeline(self, cut: Cut, batch: BatchShape) -> NanoPipeline:
        return NanoPipeline(self.period, cut, batch)

    def _with_shares(self, cut: Cut, batch: BatchShape) -> FoundPipeline:
        """With the best share of each kind of kernel."""
        kinds: dict[str, list[Slot]] = {}
        for slot in self._pipeline(cut, batch).slots:
            kinds.setdefault(self._kind(slot), []).append(slot)
        shares = {slot: FIRST[kind] for kind, slots in kinds.items() for slot in slots}
        return self._lowered(cut, batch, shares, kinds.values())

    def _kind(self, slot: Slot) -> str:
        place = self.period.line.places[slot[0]]
        return "network" if place.resource == NETWORK else DECODES if place.name == DECODES else "small"

    def _lowered(
        self, cut: Cut, batch: BatchShape, shares: Mapping[Slot, float], together: Iterable[Iterable[Slot]]
    ) -> FoundPipeline:
        """One share of `together` after the other is changed to the best, until none gets better."""
        pipeline, best = self._pipeline(cut, batch), dict(shares)
        best_s, sets = pipeline.seconds(best), list(together)
        while True:
            before_s = best_s
            for slots in sets:
                for share in GRID:
                    tried = best | dict.fromkeys(slots, share)
                    seconds = pipeline.seconds(tried)
                    if seconds < best_s:
                        best_s, best = seconds, tried
            if best_s >= before_s * (1 - ENOUGH):
                return FoundPipeline(cut, best, best_s)


def _in_halves(cut: Cut) -> Iterator[Cut]:
    """Each of two nano-batches cut once more where attention is near: before, at and behind its middle."""
    one, other = cut.shares
    for first in HALVES:
        for second in HALVES:
            shares = (one * first, one * (1 - first), other * second, other * (1 - second))
            yield cut._replace(shares=shares, joined=(2, 2))
