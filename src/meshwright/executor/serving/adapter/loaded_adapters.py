"""LoadedAdapters: the numbers of adapters that a runner has. 0 is the model's own weights."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.specs.error import ExecutionError

OWN_WEIGHTS = 0


class LoadedAdapters:
    """No number is given twice."""

    def __init__(self) -> None:
        self._numbers, self._last = {OWN_WEIGHTS}, OWN_WEIGHTS

    def add(self) -> int:
        """The next one's."""
        self._last += 1
        self._numbers.add(self._last)
        return self._last

    def drop(self, number: int) -> None:
        """It is not there any more. Raises ExecutionError where it was not."""
        self.check((number,))
        self._numbers -= {number} - {OWN_WEIGHTS}

    def check(self, numbers: Sequence[int]) -> None:
        """Raise ExecutionError for one that is not there: its sequence would get the model's own words."""
        for number in numbers:
            if number not in self._numbers:
                raise ExecutionError(
                    f"adapter {number} is not loaded", allowed=", ".join(map(str, sorted(self._numbers)))
                )
