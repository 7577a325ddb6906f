"""`meshwright simulate`: a plan, a program or schedules on virtual time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright import api
from meshwright.api import Subject
from meshwright.api.exchange.adapting import TrainedPart
from meshwright.api.exchange.variant import ModelVariant
from meshwright.api.subjects.schedule_comparison import read_times, with_stage_times
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.look.schedule_table import TABLE_FORMS, is_table, schedule_table
from meshwright.cli.look.subject_option import ScheduleCounts, one_of
from meshwright.cli.view.grouping_view import grouping_result
from meshwright.cli.view.trace_view import TRACE_FORMS, trace_figures, trace_result
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import SpecError
from meshwright.specs.option import option


def _times(text: str) -> tuple[float, ...]:
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if len(times) != 3:
        raise SpecError(f"--times {text}", allowed="three numbers with commas: F,I,W, such as 1,1.2,0.9")
    return times


@dataclass(frozen=True)
class Timing:
    """How long the computes and hops of a schedule take; None: its own, a second and none."""

    times: tuple[float, ...] | None = option(
        None, "Seconds of a full stage (1,1,1); B = I + W.", parse=_times, metavar="F,I,W"
    )
    comm: float | None = option(None, "Latency in seconds of a hop between devices (0).")
    stage_times: str | None = option(
        None, "Seconds of every stage: the columns stage,F,I,W.", metavar="FILE.csv"
    )


@writes(*TRACE_FORMS, *TABLE_FORMS)
def simulate(
    out: Output,
    counts: ScheduleCounts,
    timing: Timing,
    part: TrainedPart,
    other: ModelVariant,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN]", help="A plan (.toml), program text, saved trace, or torch's schedule CSV."
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            help="A name, ./mine.py:FUNCTION, FILE.csv, `all` or `search`; several make a table.",
        ),
    ] = None,
    memory_cap: Annotated[
        float | None,
        typer.Option(
            "--memory-cap", metavar="N", help="Of a table: full-stage activations a device may keep."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where a plan runs: 8xH100, or a file.")
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Iterations of the program.")] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Predict for a chip that was never measured, too.")
    ] = False,
    segments: Annotated[
        bool | None,
        typer.Option(
            "--segments/--no-segments",
            help="Of a plan on GPUs: what is sent inside a stage as rows, or in composed prices; rows where they say it all.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", help="Of a plan: what `calibrate -o` wrote, of processes or of runs of yours."
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            "--lengths",
            help="Of a plan: documents of these lengths are in its sequences (token shards, a file).",
        ),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            "--routing",
            help="Of a plan: where tokens of its model went (train --record-routing), not balanced experts.",
        ),
    ] = None,
    expert_placement: Annotated[
        str,
        typer.Option(
            "--expert-placement",
            help="With --routing: a file that `place` wrote, or a name of its algorithms; contiguous.",
        ),
    ] = "",
    capacity_factor: Annotated[
        float | None,
        typer.Option(
            "--capacity-factor",
            help="Of a plan: even shares of a sequence that an expert takes at most, as in `train`.",
        ),
    ] = None,
    sequence_groups: Annotated[
        list[str] | None,
        typer.Option(
            "--sequence-groups",
            help="Of a plan: drawn batches whose sequences these algorithms put into groups of ranks.",
        ),
    ] = None,
) -> Result:
    """Run a plan, a program or a schedule on virtual time, and draw it.

    `--schedule all` compares every schedule there is, `search` finds others; -o frontier.svg draws span against peak.
    -o of one schedule writes .npz (the trace), .perfetto.json, .svg, .program.
    """
    if iterations is not None and iterations < 1:
        raise SpecError(f"--iterations {iterations}", allowed="1 or more")
    if expert_placement and routing is None:
        raise SpecError("--expert-placement without --routing", next="give a routing trace, too")
    choices: dict[str, Any] = {**asdict(counts), "times": timing.times, "comm": timing.comm}
    names = schedule or []
    known = None if profile is None else Profile.load(profile)
    if sequence_groups:
        out.check_form(())
        if what is None:
            raise SpecError("--sequence-groups without a plan", next="give a plan's file")
        return grouping_result(
            api.simulate_groups(
                what, sequence_groups, lengths=lengths, cluster=cluster, profile=known, extrapolate=extrapolate, seed=out.seed
            )
        )  # fmt: skip
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
            stage_times=timing.stage_times,
            **choices,
        )
    out.check_form(TRACE_FORMS)
    if memory_cap is not None:
        raise SpecError(f"{given} with --memory-cap", allowed="--schedule NAME, all or search")
    if timing.stage_times is not None and not part.is_asked and not other.variant:
        subject = _stage_timed(given, timing.stage_times, choices)
    else:
        plan = part.of_plan(given) if part.is_asked else given
        plan = other.of_plan(plan) if other.variant else plan
        subject = api.subject(
            plan, **choices, cluster=cluster, extrapolate=extrapolate, segments=segments, lengths=lengths,
            profile=known, routing=routing, expert_placement=expert_placement, capacity_factor=capacity_factor,
        )  # fmt: skip
    return trace_result(api.simulate(subject, iterations=iterations), subject)


def _stage_timed(given: str, path: str, choices: dict[str, Any]) -> Subject:
    """One schedule with a table of stage times; as many devices as it has rows, unless they were said."""
    times = read_times(path, choices["times"], choices["comm"])
    counted = {**choices, "stages": choices["stages"] or times.num_stages}
    return with_stage_times(api.subject(given, **counted), times)
