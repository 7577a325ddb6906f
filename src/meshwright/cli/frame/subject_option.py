"""The options that say what `simulate` and `check` work on: a plan, a program, or a schedule with its counts."""

from __future__ import annotations

from typing import Annotated

import typer

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[PLAN]", help="A plan (.toml), program text, saved trace, or torch's schedule CSV."
    ),
]
ScheduleName = Annotated[
    str | None, typer.Option("--schedule", help="A schedule: a name, ./mine.py:FUNCTION, or FILE.csv.")
]
Stages = Annotated[
    int | None, typer.Option("--stages", "--devices", "-p", help="Devices in the pipeline (4).")
]
Microbatches = Annotated[int | None, typer.Option("--microbatches", "-m", help="Microbatches a step (8).")]
Chunks = Annotated[
    int | None, typer.Option("--chunks", "-v", help="Stages a device; 2 for interleaved schedules.")
]
Split = Annotated[bool, typer.Option("--split", help="Split every backward into I and W.")]
Recompute = Annotated[bool, typer.Option("--recompute", help="Recompute every stage before its backward.")]
Extrapolate = Annotated[
    bool, typer.Option("--extrapolate", help="Predict for a chip that was never measured, too.")
]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Where a plan runs: 8xH100, or a file.")]


def one_of(what: str | None, schedule: str | None) -> str:
    """The one thing that was given."""
    from meshwright.specs.error import SpecError

    if (what is None) == (schedule is None):
        problem = "nothing was given" if what is None else f"both {what} and --schedule {schedule} were given"
        raise SpecError(
            problem, allowed="a file, or --schedule NAME", next="`meshwright list schedules` names them"
        )
    return str(schedule if what is None else what)
