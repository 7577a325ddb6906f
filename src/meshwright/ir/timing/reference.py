"""The reference interpreter: the start rule in obvious Python, kept for ever; every fast path is tested against it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.timing.matching import match
from meshwright.specs.error import DeadlockError

Times = NDArray[np.float64]
When = dict[tuple[int, int], float]  # by (iteration, row)


def interpret(
    program: Program,
    seconds: Sequence[float],
    latency_s: Sequence[float],
    iterations: int = 1,
    host: str = "asynchronous",
) -> tuple[Times, Times, Times]:
    """Posted, start and end (result complete) of every row, ``[iterations, rows]``, in seconds.

    ``seconds[i]`` is how long row ``i`` holds its stream, ``latency_s[i]`` how much later its result is complete.
    It looks at all rows again and again until nothing changes: quadratic, but hard to get wrong.

    Raises:
        DeadlockError: rows remain that can never be posted.
    """
    deps, next_end, n = dependencies(program), match(program), program.num_rows
    streams = _streams(program)
    posted: When = {}
    start: When = {}
    held: When = {}
    done: When = {}
    issued: When = {}
    free: dict[tuple[int, int], float] = defaultdict(float)  # stream -> when its last batch has left it
    walker: dict[int, float] = defaultdict(float)  # list -> when its host is free
    where_host: dict[int, int] = defaultdict(int)
    where_stream: dict[tuple[int, int], int] = defaultdict(int)

    def ready(t: int, i: int) -> float | None:
        """When 2 to 4 of the start rule hold, or None where that is not known yet."""
        at = 0.0
        for k in range(deps.ptr[i], deps.ptr[i + 1]):
            other = (t - int(deps.lag[k]), int(deps.row[k]))
            if other[0] < 0:
                continue  # what came before the first iteration is there
            finished = held if deps.version[k] == RING else done
            if other not in finished:
                return None
            at = max(at, finished[other])
        return at

    def finish(t: int, i: int) -> bool:
        """Start an exchange (or anything alone) once all its ends are posted."""
        ends, j = [i], int(next_end[i])
        while j != i:
            ends.append(j)
            j = int(next_end[j])
        if (t, i) in done or any((t, e) not in posted for e in ends):
            return False
        begin, length = max(posted[t, e] for e in ends), max(seconds[e] for e in ends)
        late = max(latency_s[e] for e in ends)
        for e in ends:
            start[t, e], held[t, e], done[t, e] = begin, begin + length, begin + length + late
        return True

    def step_stream(s: tuple[int, int], rows: list[list[int]]) -> bool:
        """Post the batch at the head of a stream, start what can start, leave when all of it has ended."""
        t, place = divmod(where_stream[s], len(rows))
        if t >= iterations:
            return False
        batch, moved = rows[place], False
        if (t, batch[0]) not in posted and not _runs_on_host(program, batch[0], host):
            times = [ready(t, i) for i in batch]
            if host == "in_order":
                times += [issued.get((t, i)) for i in batch]
            if any(at is None for at in times):
                return False
            for i in batch:
                posted[t, i] = max([free[s], *(at for at in times if at is not None)])
            moved = True
        moved |= sum(finish(t, i) for i in batch) > 0  # all of them: any() would stop at the first
        if all((t, i) in done for i in batch):
            free[s] = max(held[t, i] for i in batch)
            where_stream[s] += 1
            moved = True
        return moved

    def step_host(d: int) -> bool:
        """The in-order host: wait until a row is ready, issue it, run COMPUTE itself."""
        low, high = int(program.offsets[d]), int(program.offsets[d + 1])
        t, place = divmod(where_host[d], max(1, high - low))
        i = low + place
        if high == low or t >= iterations:
            return False
        at = ready(t, i)
        s = (d, int(program.columns.stream[i]))
        if at is None:
            return False
        if program.kinds[i] == Kind.COMPUTE:
            before = streams[s][where_stream[s] % len(streams[s])]
            if before != [i] or where_stream[s] // len(streams[s]) != t:
                return False
            posted[t, i] = max(walker[d], at, free[s])
            finish(t, i)
            walker[d] = held[t, i]
        else:
            issued[t, i] = walker[d] = max(walker[d], at)
        where_host[d] += 1
        return True

    moved = True
    while moved:
        moved = host == "in_order" and sum(step_host(d) for d in range(program.num_lists)) > 0
        moved |= sum(step_stream(s, rows) for s, rows in streams.items()) > 0
    if len(done) < iterations * n:
        stuck = [i for i in range(n) if (iterations - 1, i) not in done]
        raise DeadlockError(
            f"{len(stuck)} rows can never be posted, first {program.text_of(stuck[0])}\n"
            + grid(program, stuck[0])
        )
    tables = [
        [[values[t, i] for i in range(n)] for t in range(iterations)] for values in (posted, start, done)
    ]
    return tuple(np.array(table, dtype=np.float64).reshape(iterations, n) for table in tables)  # type: ignore[return-value]


def _runs_on_host(program: Program, row: int, host: str) -> bool:
    return host == "in_order" and program.kinds[row] == Kind.COMPUTE


def _streams(program: Program) -> dict[tuple[int, int], list[list[int]]]:
    """Rows of every stream of every list, in order, neighbours of one batch together."""
    streams: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for i in range(program.num_rows):
        rows = streams[int(program.list_of_row[i]), int(program.columns.stream[i])]
        batch = int(program.columns.batch[i])
        if rows and batch and int(program.columns.batch[rows[-1][-1]]) == batch:
            rows[-1].append(i)
        else:
            rows.append([i])
    return streams
