"""Fitting: the candidates of a space that fit by the closed form, and their steps.

Memory first: what does not fit is most of a large space, and needs no price. What was counted for it is not counted again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.closed_form import ClosedForm, closed_form
from meshwright.planner.form.cost_table import CostSources, CostTables, tables_of
from meshwright.planner.search.layer_plan import is_uneven
from meshwright.planner.space.space import Space

# Of the closed form's bytes above the estimate's: sums of parameters are rounded up per piece.
MEMORY_SLACK = 1e-4
MIXED_SLACK = (
    0.03  # where blocks are of several kinds: the form takes the largest moment of any for every device
)


@dataclass(frozen=True, eq=False)
class Fitting:
    """A space whose candidates' memory is known.

    Attributes:
        whole: all candidates; `memory` their bytes, without steps.
        numbers: of those that may fit, in rising order.
    """

    whole: Space
    memory: ClosedForm
    numbers: NDArray[np.int64]
    tables: CostTables
    sources: CostSources | None

    @classmethod
    def of(cls, whole: Space, capacity_bytes: int, sources: CostSources | None = None) -> Fitting:
        """Those that fit into so many bytes of a device, or miss them by no more than the form may be off.

        `sources`: of a space of which this is a part.
        """
        tables = tables_of(whole, is_priced=False, sources=sources)
        memory = closed_form(whole, tables)
        slack = MIXED_SLACK if is_uneven(whole.model) else MEMORY_SLACK
        return cls(
            whole,
            memory,
            np.flatnonzero(memory.needed_bytes <= capacity_bytes * (1 + slack)),
            tables,
            sources,
        )

    def priced(self, *, extrapolate: bool = False) -> tuple[Space, ClosedForm]:
        """Those that may fit, at least one, and their steps. Raises PlanError as `pricing_of`."""
        space = self.whole.taken(self.numbers)
        known = self.tables.taken(self.numbers)
        tables = tables_of(space, extrapolate=extrapolate, known=known, sources=self.sources)
        return space, closed_form(space, tables, has_memory=False)
