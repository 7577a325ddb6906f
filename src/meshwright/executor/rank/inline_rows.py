"""Which rows of streams the host runs itself: those that it would only hand over to wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Of every row that waits: (asynchronous row, iterations back) that the host must find complete before it issues it.
Waits = Mapping[int, Sequence[tuple[int, int]]]


class Lane(NamedTuple):
    """Where a row runs: its stream (empty: the host), and the batch it is posted with (0: alone)."""

    stream: str
    batch: int


def rows_run_inline(lanes: Sequence[Lane], waits: Waits) -> list[bool]:
    """For every row of a list: does the host run it itself, in place of its stream?

    It does where it *blocks* for the row in any case and the stream is *idle*:

    * blocks: the very next row of the list waits for it; or the next row stands on the same stream, behind it, and the host
      blocks for that one. From the moment the row is issued until it is complete the host would then issue nothing, but what
      cannot be posted before the row has ended. A row of a batch is posted with its neighbours, so never alone.
    * idle: the host has seen the end of the row before it in its stream. So the stream would post the row when it gets it.

    This cannot deadlock where the program does not. The rows that this rank has posted at any moment are the same whether
    the host or a thread runs the row: before it, all that stands before it in the list; while it is under way, nothing more,
    because the host waited for it (or, in a run of rows on one stream, because they start one behind the other). So no peer
    can tell the difference, and an end of the row that needs something of ours that stands behind it in the list would have
    waited for ever before, too. The other streams' threads go on meanwhile.
    """
    blocks, is_idle = _blocks(lanes, waits), _Ends(lanes, waits)
    inline: list[bool] = []
    for row, lane in enumerate(lanes):
        inline.append(is_idle.before(row) and blocks[row])
        is_idle.passed(row, lane, inline[row])
    return inline


def _blocks(lanes: Sequence[Lane], waits: Waits) -> list[bool]:
    """For every row: does the host issue nothing else until it has ended?"""
    found = [False] * len(lanes)
    for row in range(len(lanes) - 2, -1, -1):
        if lanes[row].stream and not lanes[row].batch:
            is_awaited = (row, 0) in waits.get(row + 1, ())
            found[row] = is_awaited or (lanes[row + 1] == lanes[row] and found[row + 1])
    return found


class _Ends:
    """What the host has seen the end of when it reaches a row, and what was last in every stream by then."""

    def __init__(self, lanes: Sequence[Lane], waits: Waits) -> None:
        self._lanes, self._waits = lanes, waits
        self._seen: set[tuple[int, int]] = set()  # (row, iterations back)
        # Before the first row of an iteration: the last rows of the iteration before, which are seen there or here.
        self._last: dict[str, list[tuple[int, int]]] = {}
        for row, lane in enumerate(lanes):
            self._stand_last(row, lane, 1)
        self._seen.update((row, 1) for found in waits.values() for row, lag in found if lag == 0)

    def before(self, row: int) -> bool:
        """Has all that stands in the row's stream before it ended when the host has waited for what the row needs?"""
        self._seen.update(self._waits.get(row, ()))
        return all(one in self._seen for one in self._last.get(self._lanes[row].stream, ()))

    def passed(self, row: int, lane: Lane, is_inline: bool) -> None:
        """The host has run it, or handed it over."""
        self._stand_last(row, lane, 0)
        if is_inline:
            self._seen.add((row, 0))

    def _stand_last(self, row: int, lane: Lane, lag: int) -> None:
        """The members of one batch stand last together: the stream is free when all of them have ended."""
        before = self._last.get(lane.stream, [])
        is_same = (
            lane.batch > 0
            and bool(before)
            and before[-1][1] == lag
            and (self._lanes[before[-1][0]].batch == lane.batch)
        )
        self._last[lane.stream] = [*before, (row, lag)] if is_same else [(row, lag)]
