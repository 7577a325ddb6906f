"""The vocabulary as a tensor-parallel layer between the passes: all devices run S and T of a microbatch at once, and wait.

Between two such steps every device of 1F1B runs one forward and one backward, in this or the other order by turns along the
pipeline, so that a forward passes two stages and a backward one between two steps. With s stages behind a device, F of
microbatch m is before step m - s // 2 or, for the last ones, directly before it, B of m between steps m + s and m + 1 + s:
1.5 p microbatches are alive on the first of p stages, as Yeung et al. 2024 (arXiv 2411.05288) say of this baseline.
"""

from __future__ import annotations

from typing import Any

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
)
from meshwright.ir.program import Program
from meshwright.ir.table import Effect
from meshwright.lowering.vocabulary.effect import (
    SHARE_INPUT_GRAD_HERE,
    SHARE_OUTPUT_HERE,
    SUM_INPUT_HERE,
    SUM_OUTPUT_GRAD_HERE,
    T_WHOLE,
)
from meshwright.lowering.vocabulary.place import Event, names_of
from meshwright.specs.error import ProgramError

Ints = NDArray[Any]


def num_behind(program: Program) -> Ints:
    """Devices behind each one on the path.

    Raises ProgramError where the path comes back to a device.
    """
    visited = list(dict.fromkeys(hop.device for hop in program.tables.paths[0]))
    runs = [hop.device for hop in program.tables.paths[0]]
    changes = 1 + sum(here != there for here, there in zip(runs[1:], runs, strict=False))
    if changes != len(visited) or len(visited) != program.num_lists:
        raise ProgramError(
            "an interlaced vocabulary takes 1F1B, with stages on a device that follow each other; the path of this program "
            "comes back to a device, or leaves one out"
        )
    found = np.zeros(program.num_lists, dtype=np.int64)
    found[visited] = np.arange(len(visited))[::-1]
    return found


def interlaced(program: Program) -> Program:
    """The program in the order of the steps before which its computes stand. Raises ProgramError as `num_behind`."""
    lists = program.list_of_row
    is_backward = names_of(program) != "F"
    # between two steps the backward is first on a device with an even number behind it, the forward on the others
    is_second = is_backward != (num_behind(program)[lists] % 2 == 0)
    order = np.lexsort((is_second, _steps(program), lists))
    return program.reordered(order, program.offsets)


def _steps(program: Program) -> Ints:
    """The step before which every compute stands."""
    behind, m = num_behind(program)[program.list_of_row], program.columns.microbatch.astype(np.int64)
    found: Ints = np.where(names_of(program) == "F", m - behind // 2, m + 1 + behind)
    return found


def interlaced_events(program: Program) -> list[Event]:
    """What every device runs at every step, in the same order: S and T of one microbatch, the embedding of one, the
    gradient of another's."""
    behind, steps = num_behind(program), _steps(program)
    first, last = int(np.argmax(behind)), int(np.argmin(behind))
    ahead, longest = int(behind[first]) // 2 + 1, int(behind[first]) + 1
    num = len(program.tables.microbatches)
    found: list[Event] = []
    for device in range(program.num_lists):
        own = steps[program.offsets[device] : program.offsets[device + 1]]
        is_first, is_last = device == first, device == last
        for step in range(-ahead, num + longest):
            position = int(np.searchsorted(own, step, side="right"))
            rows = _rows_of_step(step, ahead, longest, is_first, is_last)
            found += [
                Event(device, position, float(step), rank, m, effect)
                for rank, (m, effect) in enumerate(rows)
                if 0 <= m < num
            ]
    return found


def _rows_of_step(
    step: int, ahead: int, longest: int, is_first: bool, is_last: bool
) -> list[tuple[int, Effect]]:
    """(microbatch, what) of one step on a device."""
    output, gradient = (
        (SHARE_OUTPUT_HERE, SUM_OUTPUT_GRAD_HERE) if is_last else (SHARE_OUTPUT, SUM_OUTPUT_GRAD)
    )
    head = [(step, effect) for effect in (output, S, SUM_SOFTMAX, T_WHOLE, gradient)]
    made, back = (SUM_INPUT_HERE, SHARE_INPUT_GRAD_HERE) if is_first else (SUM_INPUT, SHARE_INPUT_GRAD)
    embedding = [(step + ahead, effect) for effect in (LOOKUP, made)]
    return [*head, *embedding, *((step - longest, effect) for effect in (back, SCATTER))]
