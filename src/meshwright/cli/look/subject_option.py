"""What `simulate` and `check` work on: a plan, a program, or a schedule with its counts."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import SpecError
from meshwright.specs.option import option


@dataclass(frozen=True)
class ScheduleCounts:
    """A schedule's numbers, and what is done to its backwards; None: its own."""

    stages: int | None = option(None, "Devices in the pipeline (4).", "--stages --devices -p")
    microbatches: int | None = option(None, "Microbatches a step (8).", "--microbatches -m")
    chunks: int | None = option(None, "Stages a device; 2 for interleaved schedules.", "--chunks -v")
    split: bool = option(False, "Split every backward into I and W.")
    recompute: bool = option(False, "Recompute every stage before its backward.")


def one_of(what: str | None, schedule: str | None) -> str:
    """The one thing that was given."""
    if (what is None) == (schedule is None):
        problem = "nothing was given" if what is None else f"both {what} and --schedule {schedule} were given"
        raise SpecError(
            problem, allowed="a file, or --schedule NAME", next="`meshwright list schedules` names them"
        )
    return str(schedule if what is None else what)
