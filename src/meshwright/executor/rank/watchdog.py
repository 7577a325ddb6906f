"""The watchdog: every rank publishes the row it is at; who stands still for too long is named, with its instruction.

A small shared file holds one page for the job (the iteration to stop at) and for each rank its position; writing
it costs a fraction of a microsecond and no system call.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from meshwright.ir.program import Program

# Of a rank: iteration, row, row waited for, rows that an evaluation has reached (0: none runs), bytes of checkpoints.
NUM_FIELDS = 5
NEVER = 1 << 62
NOT_STARTED = -1
# Opening a corpus and drawing the first values of billions of parameters take minutes, whatever a step takes.
PREPARATION_S = 900.0


class SharedPositions:
    """The shared file of a job, seen by the parent and by every rank."""

    def __init__(self, path: Path, num_ranks: int, is_new: bool = False) -> None:
        size = 8 * (1 + NUM_FIELDS * num_ranks)
        if is_new:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self._map).cast("q")
        self.num_ranks = num_ranks
        if is_new:
            self.numbers[0] = NEVER
            for rank in range(num_ranks):
                self.numbers[1 + NUM_FIELDS * rank] = NOT_STARTED

    def close(self) -> None:
        """Give the memory back."""
        self.numbers.release()
        self._map.close()

    def stop_after(self, num_iterations: int) -> None:
        """No rank begins an iteration from `num_iterations` on."""
        self.numbers[0] = num_iterations

    def of(self, rank: int) -> tuple[int, int, int]:
        """Iteration, row, and row waited for (-1: none) of a rank."""
        first = 1 + NUM_FIELDS * rank
        iteration, row, waited = self.numbers[first : first + 3].tolist()
        return iteration, row, waited - 1

    def is_evaluating(self, rank: int) -> bool:
        """Does a rank find the held-out loss?"""
        return bool(self.numbers[1 + NUM_FIELDS * rank + 3])

    def furthest(self) -> int:
        """The highest iteration that any rank has begun; -1 before the first."""
        return max(self.of(rank)[0] for rank in range(self.num_ranks))


def text_of_position(program: Program, shared: SharedPositions, rank: int) -> str:
    """Where a rank is, in words."""
    iteration, row, waited = shared.of(rank)
    if iteration < 0:
        return "has not begun"
    first = int(program.offsets[rank])
    if first == int(program.offsets[rank + 1]):
        return "has an empty list"
    if shared.is_evaluating(rank):
        return f"finds the held-out loss after iteration {iteration}"
    text = f"iteration {iteration}, {program.text_of(first + row)} (position {row})"
    return text if waited < 0 else f"{text}, which waits for {program.text_of(first + waited)}"


class Position:
    """Where one rank is; written by its host thread. ``begun``: iterations before the first of its interpreter."""

    def __init__(self, shared: SharedPositions, rank: int, begun: int = 0) -> None:
        self._shared, self._rank, self._begun = shared, rank, begun
        self._numbers, self._first = shared.numbers, 1 + NUM_FIELDS * rank

    def behind(self, begun: int) -> Position:
        """The same rank in a program that begins behind so many iterations."""
        return Position(self._shared, self._rank, begun)

    def of_evaluation(self) -> EvaluationPosition:
        """The same rank while it runs another program: rows are counted, so that the watchdog sees it move."""
        return EvaluationPosition(self._shared, self._rank)

    def end_evaluation(self) -> None:
        """The rank is back in the job's own program."""
        self._numbers[self._first + 3] = 0

    def set_bytes(self, num_bytes: int) -> None:
        """So many bytes of checkpoints were written or read: the watchdog sees that a slow disk is no hang."""
        self._numbers[self._first + 4] = num_bytes

    def set(self, iteration: int, row: int) -> None:
        """The host has reached a row."""
        numbers, first = self._numbers, self._first
        numbers[first] = self._begun + iteration
        numbers[first + 1] = row
        numbers[first + 2] = 0

    def waiting(self, row: int) -> None:
        """The host waits for another row to complete."""
        self._numbers[self._first + 2] = row + 1

    def may_begin(self, iteration: int) -> bool:
        """Publish that an iteration begins, then look whether the parent wants it."""
        self.set(iteration, 0)
        return bool(self._numbers[0] > iteration)


class EvaluationPosition(Position):
    """Where a rank is that evaluates: its iteration and row stay those of the training."""

    def set(self, iteration: int, row: int) -> None:
        """One row more."""
        self._numbers[self._first + 3] += 1

    def waiting(self, row: int) -> None:
        """Rows of another program have no name in the job's."""


class Watchdog:
    """Knows for how long no rank has moved. ``timeout_s`` is a number the caller derived from the predicted step; until all
    have begun it is at least `PREPARATION_S`."""

    def __init__(self, shared: SharedPositions, timeout_s: float) -> None:
        self.shared, self.timeout_s = shared, timeout_s
        self._last = self._snapshot()
        self._moved_s = time.monotonic()

    def is_expired(self) -> bool:
        """Has no rank moved for longer than it may? Ranks that prepare the job count as standing."""
        now = self._snapshot()
        if now != self._last:
            self._last, self._moved_s = now, time.monotonic()
        return time.monotonic() - self._moved_s > self.limit_s

    @property
    def limit_s(self) -> float:
        """For how long nobody may move now."""
        have_begun = all(self.shared.of(rank)[0] >= 0 for rank in range(self.shared.num_ranks))
        return self.timeout_s if have_begun else max(self.timeout_s, PREPARATION_S)

    def _snapshot(self) -> list[int]:
        numbers: list[int] = self.shared.numbers.tolist()
        return numbers
