"""Ends a training whose numbers have become none, before its checkpoints push out the good ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.specs.error import ExecutionError

# Steps in a row that may be skipped because the norm of their gradients is not finite; a batch may do that, not ten of them.
MOST_SKIPPED = 10


class Divergence:
    """Watches the sums of one rank's steps; ``first_step`` is the number of the first.

    A step on gradients that are not finite is skipped where the plan knows their norm (it clips), and counted; elsewhere it
    has been taken, and no later one can mend it.
    """

    def __init__(self, first_step: int = 0) -> None:
        self._first_step, self._num_skipped = first_step, 0

    def see(self, iteration: int, sums: Mapping[str, float]) -> None:
        """Look at what `TrainingState.end_iteration` gave.

        Raises:
            ExecutionError: the training cannot be saved any more.
        """
        found = [name for name in ("loss", "squared_norm") if not math.isfinite(sums.get(name, 0.0))]
        if not found:
            self._num_skipped = 0
            return
        self._num_skipped += 1
        if sums.get("num_undone", 0) and self._num_skipped < MOST_SKIPPED:
            return
        what = f"the loss is {sums['loss']}" if "loss" in found else "a gradient is not finite"
        times = f", as {self._num_skipped} times before it" if self._num_skipped > 1 else ""
        raise ExecutionError(
            f"in step {self._first_step + iteration + 1} {what}{times}",
            next="lower the learning rate, clip gradients (--clip 1), or go on from the newest checkpoint, which is older",
        )
