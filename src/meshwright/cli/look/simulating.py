"""`meshwright simulate`: a plan, a program or schedules on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.frame.command import command
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.subject_option import (
    Chunks,
    ClusterName,
    Extrapolate,
    Microbatches,
    Recompute,
    Split,
    Stages,
    What,
    one_of,
)
from meshwright.cli.frame.trace_view import TRACE_FORMS, trace_figures, trace_result
from meshwright.cli.look.schedule_table import TABLE_FORMS, is_table, schedule_table
from meshwright.cli.train.trained_part import LoraAlpha, LoraRank, LoraTargets, Trained, trained_part

if TYPE_CHECKING:
    from meshwright.api import Subject

LOOP = "The loop"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "simulate", LOOP, (*TRACE_FORMS, *TABLE_FORMS))(simulate)


def simulate(
    out: Output,
    what: What = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            help="A name, ./mine.py:FUNCTION, FILE.csv, `all` or `search`; several make a table.",
        ),
    ] = None,
    stages: Stages = None,
    microbatches: Microbatches = None,
    chunks: Chunks = None,
    times: Annotated[
        str | None,
        typer.Option("--times", metavar="F,I,W", help="Seconds of a full stage (1,1,1); B = I + W."),
    ] = None,
    comm: Annotated[
        float | None, typer.Option("--comm", help="Latency in seconds of a hop between devices (0).")
    ] = None,
    stage_times: Annotated[
        str | None,
        typer.Option(
            "--stage-times", metavar="FILE.csv", help="Seconds of every stage: the columns stage,F,I,W."
        ),
    ] = None,
    memory_cap: Annotated[
        float | None,
        typer.Option(
            "--memory-cap", metavar="N", help="Of a table: full-stage activations a device may keep."
        ),
    ] = None,
    split: Split = False,
    recompute: Recompute = False,
    cluster: ClusterName = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Iterations of the program.")] = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    trained: Trained = None,
    extrapolate: Extrapolate = False,
) -> Result:
    """Run a plan, a program or a schedule on virtual time, and draw it.

    `--schedule all` compares every schedule there is, `search` finds others; -o frontier.svg draws span against peak.
    -o of one schedule writes .npz (the trace), .perfetto.json, .svg, .program.
    """
    from meshwright import api
    from meshwright.specs.error import SpecError

    if iterations is not None and iterations < 1:
        raise SpecError(f"--iterations {iterations}", allowed="1 or more")
    counts: dict[str, Any] = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    choices: dict[str, Any] = {"times": _times(times), "comm": comm, "split": split, "recompute": recompute}
    names = schedule or []
    given = one_of(what, names[0] if names else None)
    if what is None and is_table(names, memory_cap):
        out.check_form(TABLE_FORMS)
        if cluster is not None:
            raise SpecError("schedules were given with --cluster", next="leave it out, or give a plan")
        return schedule_table(
            out,
            names,
            memory_cap,
            trace_figures,
            iterations=iterations,
            stage_times=stage_times,
            **counts,
            **choices,
        )
    out.check_form(TRACE_FORMS)
    if memory_cap is not None:
        raise SpecError(f"{given} with --memory-cap", allowed="--schedule NAME, all or search")
    part = trained_part(lora_rank, lora_alpha, lora_targets, trained)
    if part.is_asked:
        plan = part.of_plan(given)
        subject = api.subject(plan, **counts, **choices, cluster=cluster, extrapolate=extrapolate)
    elif stage_times is not None:
        subject = _stage_timed(given, stage_times, counts, choices)
    else:
        subject = api.subject(given, **counts, **choices, cluster=cluster, extrapolate=extrapolate)
    trace = api.simulate(subject, iterations=iterations)
    return trace_result(trace, subject)


def _stage_timed(given: str, path: str, counts: dict[str, Any], choices: dict[str, Any]) -> Subject:
    """One schedule with a table of stage times; as many devices as it has rows, unless they were said."""
    from meshwright import api
    from meshwright.api.subject.schedule_comparison import read_times, with_stage_times

    times = read_times(path, choices["times"], choices["comm"])
    counts = {**counts, "stages": counts["stages"] or times.num_stages}
    return with_stage_times(api.subject(given, **counts, **choices), times)


def _times(text: str | None) -> tuple[float, ...] | None:
    from meshwright.specs.error import SpecError

    if text is None:
        return None
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if len(times) != 3:
        raise SpecError(f"--times {text}", allowed="three numbers with commas: F,I,W, such as 1,1.2,0.9")
    return times
