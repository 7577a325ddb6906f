"""Fitting: the candidates of a space that fit by the closed form, and their steps.

Memory first: what does not fit is most of a large space, and needs no price. What was counted for it is not counted again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.closed_form import ClosedForm, closed_form
from meshwright.planner.form.cost_table import CostSources, tables_of
from meshwright.planner.search.variation.layer_plan import is_uneven
from meshwright.planner.space.space import Space

# Of the closed form's bytes above the estimate's: sums of parameters are rounded up per piece.
MEMORY_SLACK = 1e-4
MIXED_SLACK = (
    0.03  # where blocks are of several kinds: the form takes the largest moment of any for every device
)


@dataclass(frozen=True, eq=False)
class Fitting:
    """A space whose candidates' memory is known; where kinds of context parallelism are open, of the one that keeps least.

    Attributes:
        whole: all candidates; `memory` their bytes, without steps.
        most_bytes: of a device, with what the form may be off.
        numbers: of the rows that may fit, in rising order.
    """

    whole: Space
    memory: ClosedForm
    most_bytes: float
    numbers: NDArray[np.int64]
    sources: CostSources

    @classmethod
    def of(cls, whole: Space, capacity_bytes: int, sources: CostSources) -> Fitting:
        """Those that fit into so many bytes of a device, or miss them by no more than the form may be off.

        `sources`: of this space, or of one of which it is a part.
        """
        memory = closed_form(whole, tables_of(whole, is_priced=False, sources=sources))
        most_bytes = capacity_bytes * (1 + (MIXED_SLACK if is_uneven(whole.model) else MEMORY_SLACK))
        numbers = np.flatnonzero(memory.needed_bytes <= most_bytes)
        return cls(whole, memory, most_bytes, numbers, sources)

    def priced(self) -> tuple[NDArray[np.int64], Space, ClosedForm]:
        """Those that may fit, of open kinds each, with their bytes and steps, behind the row of each in the whole. One there
        has to be. Raises PlanError as `pricing_of`."""
        space = self.whole.taken(self.numbers)
        if not space.open_contexts:
            tables = tables_of(space, sources=self.sources)
            form = closed_form(space, tables, has_memory=False)
            return self.numbers, space, form.with_memory(self.memory.taken(self.numbers))
        rows, space = np.repeat(self.numbers, space.num_kinds), space.decided()
        form = closed_form(space, tables_of(space, sources=self.sources))
        fits = np.flatnonzero(form.needed_bytes <= self.most_bytes)
        return rows[fits], space.taken(fits), form.taken(fits)
