"""Where the passes of a split vocabulary stand, by the times of the computes alone (`SplitVocabulary` says the rule)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import (
    LOOKUP,
    SCATTER,
    SHARE_INPUT_GRAD,
    SHARE_OUTPUT,
    SUM_INPUT,
    SUM_OUTPUT_GRAD,
    SUM_SOFTMAX,
    S,
    T,
)
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind
from meshwright.ir.timing.replay import replay_program
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.effect import (
    SHARE_INPUT_GRAD_HERE,
    SHARE_OUTPUT_HERE,
    SUM_BOTH,
    SUM_BOTH_HERE,
    SUM_INPUT_HERE,
    SUM_OUTPUT_GRAD_HERE,
    T_WHOLE,
)

# In units of a forward, for the order only: which compute runs when an output is ready.
TEXTBOOK_SECONDS = (("F", 1.0), ("R", 1.0), ("I", 1.0), ("W", 1.0), ("B", 2.0))
DIGITS, TOLERANCE = 9, 1e-9  # to which times are equal that are sums of the same few numbers
BACKWARDS = ("B", "I")


class Event(NamedTuple):
    """A new row: its list, the position it stands before, and what orders rows at one position: when, then what."""

    device: int
    position: int
    time_s: float
    rank: int
    microbatch: int
    effect: Effect


def names_of(program: Program) -> NDArray[Any]:
    """The name of every row."""
    names: NDArray[Any] = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    return names


class Places:
    """Where everything goes, by the times of the computes alone."""

    def __init__(
        self, program: Program, has_two: bool, seconds: Mapping[str, float], shares: Sequence[float]
    ) -> None:
        self.program, self.has_two = program, has_two
        self.path = program.tables.paths[0]
        self.num_microbatches = len(program.tables.microbatches)
        c, names = program.columns, names_of(program)
        self.start, self.end = compute_times(program, names, seconds, shares)
        self.starts = np.split(self.start, program.offsets[1:-1])
        is_backward, last = np.isin(names, BACKWARDS), len(self.path) - 1
        self.first_forward = self._by_microbatch((names == "F") & (c.hop == 0))
        self.last_forward = self._by_microbatch((names == "F") & (c.hop == last))
        self.first_backward = self._by_microbatch(is_backward & (c.hop == 0))
        self.last_backward = self._by_microbatch(is_backward & (c.hop == last))
        # the first backward of a microbatch, or of a later one, on a device: S, and T of two barriers, stand before it
        self.limit = np.full((program.num_lists, self.num_microbatches), program.num_rows)
        rows = np.flatnonzero(is_backward)
        lists = program.list_of_row[rows]
        np.minimum.at(self.limit, (lists, c.microbatch[rows]), rows - program.offsets[lists])
        self.limit = np.minimum.accumulate(self.limit[:, ::-1], axis=1)[:, ::-1]

    def _by_microbatch(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """The chosen rows in the order of their microbatches."""
        rows = np.flatnonzero(chosen)
        found: NDArray[Any] = rows[np.argsort(self.program.columns.microbatch[rows], kind="stable")]
        return found

    def _behind(self, device: int, time_s: float) -> int:
        """The position behind the last compute of a list that has started by a time."""
        return int(np.searchsorted(self.starts[device], time_s + TOLERANCE, side="right"))

    def events(self) -> list[Event]:
        """All new rows of all lists."""
        first, last = self.path[0].device, self.path[-1].device
        found: list[Event] = []
        for m in range(self.num_microbatches):
            for device in range(self.program.num_lists):
                found += self._input(m, device, device == first)
                found += self._output(m, device, device == last)
                found += self._input_gradient(m, device, device == first)
        return found

    def _input(self, m: int, device: int, is_here: bool) -> list[Event]:
        """LOOKUP one compute before the first forward."""
        low = int(self.program.offsets[self.path[0].device])
        time_s = float(self.start[max(low, int(self.first_forward[m]) - 1)])
        position = max(0, self._behind(device, time_s) - 1)
        effects = (LOOKUP, SUM_INPUT_HERE if is_here else SUM_INPUT)
        return [Event(device, position, time_s, rank, m, effect) for rank, effect in enumerate(effects)]

    def _output(self, m: int, device: int, is_here: bool) -> list[Event]:
        """S behind the compute that runs when the output is ready, T behind S of the next microbatch."""
        ready_s, s = self._place_of_s(m, device)
        later_s, t = self._place_of_t(m, device)
        share = int(self.last_forward[m] - self.program.offsets[device]) + 1 if is_here else max(0, s - 1)
        if self.has_two:
            summed, gradient = SUM_SOFTMAX, SUM_OUTPUT_GRAD_HERE if is_here else SUM_OUTPUT_GRAD
            behind = [Event(device, t, later_s, 5, m, T_WHOLE), Event(device, t, later_s, 6, m, gradient)]
        else:
            summed, behind = SUM_BOTH_HERE if is_here else SUM_BOTH, [Event(device, t, later_s, 5, m, T)]
        sharing = SHARE_OUTPUT_HERE if is_here else SHARE_OUTPUT
        return [
            Event(device, share, ready_s, 2, m, sharing),
            Event(device, s, ready_s, 3, m, S),
            Event(device, s, ready_s, 4, m, summed),
            *behind,
        ]

    def _place_of_s(self, m: int, device: int) -> tuple[float, int]:
        time_s = float(self.end[self.last_forward[m]])
        return time_s, min(self._behind(device, time_s), int(self.limit[device, m]))

    def _place_of_t(self, m: int, device: int) -> tuple[float, int]:
        ready_s, s = self._place_of_s(m, device)
        # two barriers: beside the compute before the backward that waits for it at the latest; one: behind that backward
        latest_s = float(self.start[self.last_backward[m] - self.has_two])
        if m + 1 < self.num_microbatches:
            next_s = float(self.end[self.last_forward[m + 1]])
            latest_s = min(next_s, latest_s) if self.has_two else next_s
        time_s = max(ready_s, latest_s)
        place = max(s, self._behind(device, time_s))
        return time_s, min(place, int(self.limit[device, m])) if self.has_two else place

    def _input_gradient(self, m: int, device: int, is_here: bool) -> list[Event]:
        """SCATTER behind the compute that runs when the first stage's input gradient is ready."""
        row = int(self.first_backward[m])
        time_s = float(self.end[row])
        position = self._behind(device, time_s)
        share = row - int(self.program.offsets[device]) + 1 if is_here else max(0, position - 1)
        sharing = SHARE_INPUT_GRAD_HERE if is_here else SHARE_INPUT_GRAD
        return [
            Event(device, share, time_s, 7, m, sharing),
            Event(device, position, time_s, 8, m, SCATTER),
        ]


def compute_times(
    program: Program, names: NDArray[Any], seconds: Mapping[str, float], shares: Sequence[float] = ()
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of every compute, with free messages and without the vocabulary."""
    sent = Transfers()(program)
    is_compute = sent.kinds == Kind.COMPUTE
    cost = np.zeros(sent.num_rows)
    cost[is_compute] = [seconds.get(name, 0.0) for name in names.tolist()]
    if shares:
        cost[is_compute] *= np.array(shares)[program.columns.stage]
    _, start, end = replay_program(sent, cost, np.zeros(sent.num_rows))
    return start[0][is_compute], end[0][is_compute]
