"""Times of one rank as it writes them, and those of all ranks put together, without what was done between iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import ExecutionError

Times = NDArray[np.float64]
NAMES = ("posted", "start", "end")


class Pause(NamedTuple):
    """Seconds on this rank's clock in which it did something else after an iteration: an evaluation, a checkpoint."""

    iteration: int
    begin_s: float
    end_s: float


def write_times(
    path: Path,
    arrays: Mapping[str, Times],
    num_done: int,
    pauses: Sequence[Pause],
    clock_offset_s: float = 0.0,
) -> None:
    """Write posted, start and end of the last iterations of a rank ``[iterations, rows]``, of ``num_done`` in all.

    ``clock_offset_s`` is added: ranks of another host have another clock.
    """
    rows = np.array(pauses, dtype=np.float64).reshape(-1, 3) + [0.0, clock_offset_s, clock_offset_s]
    shifted: dict[str, Any] = {name: times + clock_offset_s for name, times in arrays.items()}
    np.savez(path, num_done=np.array(num_done), pauses=rows, **shifted)


def shift_times(path: Path, seconds: float) -> None:
    """Move what `write_times` wrote to another clock: all times are later by so many seconds."""
    with np.load(path, allow_pickle=False) as file:
        found: dict[str, Any] = {name: file[name] for name in file.files}
    found |= {name: found[name] + seconds for name in NAMES}
    found["pauses"] = found["pauses"] + [0.0, seconds, seconds]
    np.savez(path, **found)


def joined_times(paths: Sequence[Path]) -> tuple[dict[str, Times], int]:
    """Times of all ranks side by side, and how many iterations were run.

    Raises:
        ExecutionError: ranks ran different numbers of iterations.
    """
    parts: list[dict[str, Times]] = []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            parts.append({name: file[name] for name in file.files})
    counts = {int(part["num_done"]) for part in parts}
    if len(counts) > 1:
        raise ExecutionError(f"ranks ran {sorted(counts)} iterations; a job stops at the same one everywhere")
    num_done, num_kept = counts.pop(), min(len(part["end"]) for part in parts)
    away = _time_away([part["pauses"] for part in parts], num_done - num_kept, num_kept)
    return {
        name: np.concatenate([part[name][-num_kept:] for part in parts], axis=1) - away[:, None]
        for name in NAMES
    }, num_done


def _time_away(pauses: Sequence[Times], first: int, num_kept: int) -> Times:
    """Seconds to take off the times of every kept iteration: those in which all ranks were in one of its pauses before.

    What is taken off is the same for all ranks, so their order stays, and never more than the shortest pause of a rank.
    """
    away = np.zeros(num_kept)
    for rows in zip(*pauses):
        iteration = int(rows[0][0])
        length = min(row[2] for row in rows) - max(row[1] for row in rows)
        away[max(0, iteration + 1 - first) :] += max(0.0, length)
    return away
