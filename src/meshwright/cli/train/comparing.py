"""`meshwright compare`: predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright import api
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.train.plan_log import compared_log, there
from meshwright.cli.view.load_comparison_view import load_comparison_view
from meshwright.cli.view.profile_trace_view import profile_comparison_result
from meshwright.cli.view.training_view import comparison_view
from meshwright.interop.profiler.chrome_file import is_profile
from meshwright.ir.trace import Trace
from meshwright.reports.page.report import Report
from meshwright.reports.trace.perfetto import write_perfetto
from meshwright.reports.trace.svg import write_timeline_svg
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import SpecError

TIMELINE_FORMS = (".perfetto.json", ".svg")  # of -o, of two traces
PROFILE_FORMS = (*TIMELINE_FORMS, ".npz")  # of a profile also itself as a trace


@writes(*PROFILE_FORMS)
def compare(
    out: Output,
    predicted: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTED",
            help="A trace that `simulate -o` wrote, a plan (.toml), or what `plan --requests -o` wrote (.json).",
        ),
    ],
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED...",
            help="A trace that `train -o` wrote; torch.profiler's traces, one a rank, or their folder; beside a plan the log "
            "of a run (Megatron-LM, torchtitan); beside a load's plan what `bench serve -o` wrote (.json).",
        ),
    ],
    different: Annotated[
        bool, typer.Option("--different", help="Compare traces of different programs all the same.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where the plan runs: a file or a name.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="A profile of `calibrate --from-log`, for a plan.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Predict for a chip or precision that was never seen, too.")
    ] = False,
) -> Result:
    """Say where a prediction was wrong: a plan beside the log or profile of its run, a load's plan beside its measurement, or
    two traces name by name.

    -o writes .perfetto.json and .svg with both timelines, of two traces or of a plan and a profile.
    """
    there(predicted)
    if len(measured) > 1 or measured[0].is_dir() or is_profile(there(measured[0])):
        _no_different(different)
        return _compared_profile(predicted, measured, cluster, profile, extrapolate)
    return _compared_file(out, predicted, measured[0], different, cluster, profile, extrapolate)


def _compared_profile(
    predicted: Path, measured: list[Path], cluster: str | None, profile: Path | None, extrapolate: bool
) -> Result:
    if predicted.suffix not in (".toml", ".npz"):
        raise SpecError(
            f"{predicted} stands before a profile",
            allowed="a plan (.toml), or a trace that `simulate -o` wrote (.npz)",
        )
    if predicted.suffix == ".npz":
        _no_plan_options(cluster, profile, extrapolate)
    for path in measured:
        if not path.is_dir():
            there(path)
    known = None if profile is None else Profile.load(profile)
    return profile_comparison_result(
        api.compare_profile(predicted, measured, cluster=cluster, profile=known, extrapolate=extrapolate)
    )


def _no_different(different: bool) -> None:
    if different:
        raise SpecError(
            "--different is given with a profile", allowed="two traces (.npz)", next="leave it out"
        )


def _compared_file(
    out: Output, predicted: Path, measured: Path, different: bool, cluster: str | None, profile: Path | None,
    extrapolate: bool,
) -> Result:  # fmt: skip
    """With one file that is no profile."""
    if predicted.suffix == measured.suffix == ".json":
        out.check_form(())
        _no_plan_options(cluster, profile, extrapolate)
        found = api.compare_load(predicted, measured)
        return Result(found.to_dict(), load_comparison_view(found))
    if predicted.suffix == ".toml":
        out.check_form(())
        return compared_log(
            api.compare_log(predicted, measured, cluster=cluster, profile=profile, extrapolate=extrapolate)
        )
    if measured.suffix == ".toml":
        raise SpecError(
            f"{measured} is a plan and stands behind {predicted}",
            allowed="compare PLAN LOG, or compare PREDICTED MEASURED with two traces (.npz)",
        )
    _no_plan_options(cluster, profile, extrapolate)
    out.check_form(TIMELINE_FORMS)
    return _compared_traces(predicted, measured, different)


def _no_plan_options(cluster: str | None, profile: Path | None, extrapolate: bool) -> None:
    """Options of a plan beside a log mean nothing for two traces."""
    if cluster is not None or profile is not None or extrapolate:
        raise SpecError(
            "--cluster, --profile or --extrapolate is given with two traces",
            allowed="a plan (.toml) as PREDICTED",
        )


def _compared_traces(predicted: Path, measured: Path, different: bool) -> Result:
    both = Trace.load(predicted), Trace.load(measured)
    found = api.compare(*both, allow_different=different)
    first, second = found.labels
    traces = dict(zip(found.labels, both, strict=True))
    forms = {
        ".perfetto.json": lambda path: write_perfetto(traces, path),
        ".svg": lambda path: write_timeline_svg(traces, path),
    }
    return Result(
        found.to_dict(), comparison_view(found, *both), forms,
        lambda: Report("meshwright compare", predicted=both[0], measured=both[1], comparison=found.rows()),
        ["with three iterations or more the first is left out: it meets cold caches", f"ratios are {second} over {first}"],
    )  # fmt: skip
