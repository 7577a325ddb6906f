"""Who waits for whom where a program stops: the circle of rows behind a deadlock, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependency_table import AFTER, RING
from meshwright.ir.timing.wiring import Wiring

Ints = NDArray[Any]
Times = NDArray[np.float64]
MOST_LINES = 16  # of a circle that are shown

READS, ORDERED, SLOT, OTHER_END, STREAM, HOST = "read", "after", "slot", "other end", "stream", "host"
# What a row waits for in another one, for people: "0B0 waits for what 1B0 sends".
WORDS = {
    READS: "{of}, which makes what it reads",
    ORDERED: "{of}, behind which it is told to stand",
    SLOT: "{of}, which still holds its slot of a ring",
    OTHER_END: "{of}, its other end",
    STREAM: "{of}, which stands before it on stream {stream}",
    HOST: "{of}, at which its host waits",
}
SENT = "what {of} sends"
BY_STREAM = (
    "exchanges here wait behind each other: a stream per peer and direction, or a batch, lets them pass"
)
BY_SLOT = "a slot here is waited for: change the order of these rows, or give the ring more slots"


class Wait(NamedTuple):
    """Row `row` waits for row `of`; `why` is one of the words above."""

    row: int
    of: int
    why: str


def wait_cycle(wiring: Wiring, posted: Times, end: Times, issued: Times | None = None) -> list[Wait]:
    """A circle of waits, each for the next, of a replay that stopped: times are < 0 of what did not happen.

    Args:
        issued: where hosts walk in order, when each row was issued.
    """
    row = int(np.flatnonzero(end < 0)[0])
    path: list[Wait] = []
    place: dict[int, int] = {}
    while row not in place:
        place[row] = len(path)
        path.append(_blocked(wiring, row, posted, end, issued))
        row = path[-1].of
    cycle = path[place[row] :]
    is_compute = [_is_compute(wiring.program, wait.row) for wait in cycle]
    first = is_compute.index(True) if True in is_compute else 0
    return [*cycle[first:], *cycle[:first]]


def _blocked(wiring: Wiring, row: int, posted: Times, end: Times, issued: Times | None) -> Wait:
    """What one row that never ended waits for, which never ended either."""
    if posted[row] >= 0:  # an exchange: some other end is not there
        other = int(wiring.next_end[row])
        while posted[other] >= 0:
            other = int(wiring.next_end[other])
        return Wait(row, other, OTHER_END)
    rows = wiring.stream_rows[slice(*wiring.stream_ptr[wiring.stream_of_row[row] :][:2])]
    place = int(np.flatnonzero(rows == row)[0])
    batch = wiring.program.columns.batch
    before = [
        int(each) for each in rows[:place] if end[each] < 0 and not (batch[row] and batch[each] == batch[row])
    ]
    if before:
        return Wait(row, before[0], STREAM)
    together = [int(each) for each in rows if each == row or (batch[row] and batch[each] == batch[row])]
    for each in together:
        if issued is not None and (wait := _host_wait(wiring, row, each, end, issued)):
            return wait
        if wait := _own_wait(wiring, row, each, end):
            return wait
    raise AssertionError(f"{wiring.program.text_of(row)} waits for nothing")


def _own_wait(wiring: Wiring, row: int, member: int, end: Times) -> Wait | None:
    """What a row, or another of its batch, waits for in the tables of dependencies."""
    deps = wiring.deps
    for k in range(int(deps.ptr[member]), int(deps.ptr[member + 1])):
        if deps.lag[k] == 0 and end[deps.row[k]] < 0:
            why = {AFTER: ORDERED, RING: SLOT}.get(int(deps.version[k]), READS)
            return Wait(row, int(deps.row[k]), why)
    return None


def _host_wait(wiring: Wiring, row: int, member: int, end: Times, issued: Times) -> Wait | None:
    """The row at which the host of a row waits, where it stands before it."""
    program = wiring.program
    low = int(program.offsets[program.list_of_row[member]])
    is_done = np.where(
        program.kinds[low:member] == Kind.COMPUTE, end[low:member] >= 0, issued[low:member] >= 0
    )
    ahead = np.flatnonzero(~is_done)
    return Wait(row, low + int(ahead[0]), HOST) if len(ahead) else None


def cycle_text(program: Program, cycle: Sequence[Wait]) -> str:
    """The circle, a line for each row that waits; a value that is sent is one line, not three; and what opens it."""
    waits = _shortened(program, cycle)
    lines = [f"{len(waits)} rows wait for each other in a circle:"]
    for wait in waits[:MOST_LINES]:
        stream = program.tables.streams[int(program.columns.stream[wait.row])]
        of = f"{program.text_of(wait.of)} (device {program.list_of_row[wait.of]})"
        words = WORDS.get(wait.why, SENT).format(of=of, stream=stream)
        lines.append(
            f"  {program.text_of(wait.row)} (device {program.list_of_row[wait.row]}) waits for {words}"
        )
    if len(waits) > MOST_LINES:
        lines.append(f"  and {len(waits) - MOST_LINES} more, back to {program.text_of(waits[0].row)}")
    return "\n".join(lines)


def advice(program: Program, cycle: Sequence[Wait]) -> str:
    """What opens the circle."""
    kinds = {(wait.why, Kind(int(program.kinds[wait.row]))) for wait in cycle}
    if any(why == SLOT for why, _ in kinds):
        return BY_SLOT
    if any(why == STREAM and kind != Kind.COMPUTE for why, kind in kinds):
        return BY_STREAM
    text = program.text_of
    orders = [f"{text(wait.of)} before {text(wait.row)}" for wait in cycle if wait.why in (STREAM, HOST)]
    return f"turn one of these orders around: {', '.join(orders[:MOST_LINES])}"


def _shortened(program: Program, cycle: Sequence[Wait]) -> list[Wait]:
    """The circle with "reads what is received, whose other end sends what is made" as one wait."""
    left, found = [*cycle], list[Wait]()
    while left:
        three = [wait.why for wait in left[:3]]
        if three == [READS, OTHER_END, READS] and _is_compute(program, left[0].row):
            found.append(Wait(left[0].row, left[2].of, "sent"))
            left = left[3:]
        else:
            found.append(left.pop(0))
    return found


def _is_compute(program: Program, row: int) -> bool:
    return bool(program.kinds[row] == Kind.COMPUTE)
