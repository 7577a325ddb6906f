"""`meshwright calibrate`: measuring this machine, or learning from a run, for later predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright import api
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.progress import live_line
from meshwright.cli.train.plan_log import calibrated_from_runs
from meshwright.cli.view.profile_view import profile_figures, profile_view
from meshwright.specs.cluster.profile import cache_path
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import SpecError, UnknownNameError


@writes(".profile.json")
def calibrate(
    out: Output,
    processes: Annotated[int, typer.Option("--processes", help="How many are busy at once.")] = 2,
    effort: Annotated[str, typer.Option("--effort", help="full (about 20 s) or quick.")] = "full",
    from_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log",
            help="Do not measure: learn from logs of runs of --plan, or from a table of runs (.csv).",
        ),
    ] = None,
    from_trace: Annotated[
        list[Path] | None, typer.Option("--from-trace", help="The same from a saved trace (.npz).")
    ] = None,
    plan: Annotated[
        list[Path] | None,
        typer.Option("--plan", help="The plan (.toml) of that run; one for each log, or one of all."),
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Where the plan ran.")] = None,
    slowing: Slowing | None = None,
) -> Result:
    """Measure this machine with all processes busy, and keep the profile for later predictions.

    With --slow-link or --slow-process it is a profile of the machine so slowed, which is not kept: write it with -o.
    With --from-log or --from-trace it learns from your runs how your stack differs from what is predicted: of each kind of
    work what was expected, what is known now, which run is an outlier and what more would help. -o writes .profile.json.
    """
    if from_log or from_trace or plan:
        if slowing is not None:
            raise SpecError(
                "--slow-link or --slow-process is given with --from-log or --from-trace",
                allowed="slowing while this machine is measured",
            )
        return calibrated_from_runs([*(from_log or ()), *(from_trace or ())], plan or [], cluster)
    if effort not in ("full", "quick"):
        raise UnknownNameError("effort", effort, ("full", "quick"))
    with live_line(out) as line:
        profile = api.calibrate(
            processes, effort=effort, progress=line.share,
            slowing=slowing,
        )  # fmt: skip
    data = {
        "device": profile.device,
        "num_processes": profile.num_processes,
        "measured": profile.measured,
        "path": None if slowing is not None else str(cache_path()),
        "process_factors": list(profile.process_factors),
        **profile_figures(profile),
    }
    return Result(data, profile_view(profile), {".profile.json": profile.save}, explanation=[profile.source])
