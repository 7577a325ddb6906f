"""Expectation: what a step will be, by the closed form and how far it was off for pipelines that were simulated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.distinct import distinct
from meshwright.planner.space.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Of pipelines of which none was simulated yet: less than the form was ever off for their schedule, or, where none with that
# schedule was either, for any, so that one of each is simulated before all of them are given up.
HOPE, HOPE_OF_SCHEDULE = 0.97, 0.99
MOST_NUMBERS = 20_000  # of the closed form's best, among which the next is looked for


class Expectation:
    """Numbers of candidates, the one with the least expected step first; simulated steps are told as they are found.

    The form is off by about as much for all pipelines with one schedule, as many devices and as many chunks.

    Attributes:
        next_s: seconds expected of the number that was given last, and less than those of all behind it.
    """

    def __init__(self, space: Space, step_s: Floats, order: Ints) -> None:
        self.next_s = 0.0
        self._numbers = order[:MOST_NUMBERS]
        chosen = self._numbers
        self._form_s, self._schedule = step_s[chosen], space.schedule[chosen]
        columns = [space.schedule[chosen], space.pp[chosen], space.num_chunks[chosen]]
        self._shape = distinct(columns)[0] if len(chosen) else chosen
        self._of_shape: dict[int, float] = {}  # least simulated step over the form's
        self._of_schedule: dict[int, float] = {}

    def __iter__(self) -> Iterator[int]:
        is_left = np.ones(len(self._numbers), dtype=bool)
        while is_left.any():
            expected = np.where(is_left, self._expected_s(), np.inf)
            place = int(expected.argmin())
            is_left[place], self._place = False, place
            self.next_s = float(expected[place])
            yield int(self._numbers[place])

    def tell(self, simulated_s: float) -> None:
        """The simulated step of the number that was given last."""
        ratio = simulated_s / float(self._form_s[self._place])
        for known, key in ((self._of_shape, self._shape), (self._of_schedule, self._schedule)):
            own = int(key[self._place])
            known[own] = min(ratio, known.get(own, np.inf))

    def _expected_s(self) -> Floats:
        least = min([1.0, *self._of_schedule.values()])
        ratio = np.full(len(self._numbers), HOPE * least)
        for schedule, found in self._of_schedule.items():
            ratio[self._schedule == schedule] = HOPE_OF_SCHEDULE * found
        for shape, found in self._of_shape.items():
            ratio[self._shape == shape] = found
        return np.asarray(ratio * self._form_s)
