"""DocumentPrices: what a step's rows cost for any documents that its microbatches hold, between steps of documents all alike.

Of a document of l tokens attention costs each of its tokens about a + b l, and all else a constant. So a row is priced for
some lengths, at which all documents have it, and a microbatch takes the mean over its tokens of what the length of a token's
document costs, on the line between the two nearest of these: exactly so where every document has one of these lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.prediction.step_program import StepProgram, step_program
from meshwright.schedules.order import Schedule
from meshwright.simulator.pricing import Prices
from meshwright.specs.sequence.drawn_rows import DrawnRows
from meshwright.stage.work import document_step

Floats = NDArray[np.float64]

RATIO, LEAST, MOST_NODES = (
    4,
    16,
    6,
)  # between the lengths that are priced; the shortest one; how many there are


def priced_lengths(sequence_length: int, step: int = 1) -> tuple[int, ...]:
    """Lengths of documents at which a step is priced, rising: a whole sequence, a fourth of it, a sixteenth, ... ``step``: of
    shorter ones, of which they are multiples."""
    found = [sequence_length // RATIO**number // step * step for number in range(1, MOST_NODES)]
    return (*sorted({length for length in found if length >= LEAST}), sequence_length)


@dataclass(frozen=True, eq=False)
class DocumentPrices:
    """A step's prices where all documents are alike (`base`), and of every row of its program the seconds ``[K, rows]`` at K
    lengths of documents, ``lengths``."""

    made: StepProgram
    base: Prices
    lengths: tuple[int, ...]
    row_s: Floats

    @classmethod
    def of(cls, made: StepProgram, costs: Any, schedule: Schedule, in_segments: bool) -> DocumentPrices:
        """Lowers and prices the step once for every length: the programs are alike but for what their works are."""
        plan, found = made.plan, []
        lengths = priced_lengths(plan.workload.sequence_length, document_step(plan))
        for length in lengths:
            alike = plan.changed(workload=replace(plan.workload, lengths=((length, 1.0),)))
            own = step_program(alike, made.cluster, schedule, in_segments=in_segments)
            prices = own.priced(costs)
            found.append(prices.seconds[prices.cost_of_row])
        return cls(made, made.priced(costs), lengths, np.stack(found))

    def shares(self, drawn: DrawnRows, sequence_length: int) -> Floats:
        """Of every drawn row the shares [rows, K] of its tokens that cost as documents of each of these lengths do."""
        nodes, own = np.array(self.lengths, float), drawn.lengths.astype(float)
        length = np.clip(own, nodes[0], nodes[-1])
        above = np.minimum(np.searchsorted(nodes, length), len(nodes) - 1)
        below = np.maximum(above - 1, 0)
        part = (length - nodes[below]) / np.maximum(
            nodes[above] - nodes[below], 1.0
        )  # 0 where there is one node
        found = np.zeros(drawn.num_rows * len(nodes))
        for node, tokens in ((below, (1 - part) * own), (above, part * own)):
            found += np.bincount(drawn.rows * len(nodes) + node, weights=tokens, minlength=len(found))
        return found.reshape(drawn.num_rows, len(nodes)) / sequence_length

    @cached_property
    def by_microbatch(self) -> NDArray[np.bool_]:
        """Rows whose seconds depend on the documents: they compute something of one microbatch."""
        spread = self.row_s.max(axis=0) - self.row_s.min(axis=0)
        depends: NDArray[np.bool_] = (spread > 0) & (self.made.wiring.program.columns.microbatch >= 0)
        return depends

    def seconds(self, shares: Floats) -> Floats:
        """Of every row, where `shares` [lists or 1, microbatches, K] are those of what each list's microbatches hold."""
        program = self.made.wiring.program
        found = self.base.seconds[self.base.cost_of_row]
        rows = np.flatnonzero(self.by_microbatch)
        lists = program.list_of_row[rows] if len(shares) > 1 else 0
        own = shares[lists, program.columns.microbatch[rows]]
        found[rows] = np.einsum("rk,kr->r", own, self.row_s[:, rows])
        return found

    def prices(self, row_s: Floats) -> Prices:
        """The prices in which every row takes so many seconds."""
        different, number = np.unique(row_s, return_inverse=True)
        keys = self.base.cost_of_row.astype(np.int64) * len(different) + number
        kept, of_row = np.unique(keys, return_inverse=True)
        classes, seconds = kept // len(different), different[kept % len(different)]
        pairs = list(zip(classes.tolist(), seconds.tolist(), strict=True))
        costs = tuple(replace(self.base.costs[each], seconds=taken) for each, taken in pairs)
        demands = tuple(self.base.demands[each] for each, _ in pairs)
        return Prices(costs, demands, of_row.astype(self.base.cost_of_row.dtype))
