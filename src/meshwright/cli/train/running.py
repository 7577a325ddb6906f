"""`meshwright run`: a system's own job on your data, where what is trained is no plan's model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from meshwright import api
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.progress import live_line


def run(
    out: Output,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A name with options: 'NAME(option=2, file=\"mine.csv\")'.")
    ],
) -> Result:
    """Train or measure what is no plan's model, by a published system, on your data.

    `meshwright list jobs` names the jobs and their options.
    """
    with live_line(out) as line:
        found = api.run_job(job, seed=out.seed, said=line.stage)
    return Result(dict(found.data), [Text(line, overflow="fold") for line in found.lines])
