"""`meshwright plan`: the fastest plans of a model on a cluster that fit, and why the first is the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.frame.command import command
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.plan.asked import (
    Asked,
    CheckpointOption,
    DeadlineOption,
    MaxGpusOption,
    MtbfOption,
    ObjectiveOption,
    ParetoOption,
    PowerOption,
    PriceOption,
    RestartOption,
    SolveOption,
    TokensOption,
    read_asked,
)
from meshwright.cli.plan.fixing import fixed_of, words_of
from meshwright.cli.plan.view import (
    assumed_lines,
    plan_data,
    plan_row,
    plans_data,
    plans_view,
    sentences,
    tight_lines,
)
from meshwright.cli.train.trained_part import LoraAlpha, LoraRank, LoraTargets, Trained, trained_part
from meshwright.specs.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from meshwright.planner.search.plans import Plans
    from meshwright.prediction.predicted import Predicted
    from meshwright.reports.page.report import Report
    from meshwright.specs.cluster.cluster import ClusterSpec
    from meshwright.specs.cluster.profile import Profile
    from meshwright.specs.model.model import ModelSpec
    from meshwright.specs.plan.plan import Plan

PANEL = "The loop"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "plan", PANEL, (".toml", ".sh", ".json"))(plan)


def plan(
    out: Output,
    model: Annotated[
        str | None, typer.Argument(help="A name (meshwright list models) or config.json.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Argument(help="What it runs on: 8x8xH100, 16384xH100, or a .toml file.")
    ] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences of a step.")] = None,
    seq: Annotated[int | None, typer.Option("--seq", help="Tokens of a sequence.")] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like", help="What runs today (with --from, or a plan's .toml): it says the job, CLUSTER aside."
        ),
    ] = None,
    form: Annotated[str, typer.Option("--from", help="Of --like: megatron, torchtitan or deepspeed.")] = "",
    to: Annotated[
        str | None, typer.Option("--to", help="With --like, whose words -o writes: plan, or that of --from.")
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of a variable that is set outside the script of --like."),
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", help="What is decided already: tp=8,pp=4,recompute=full.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option("--forbid", help="What must not be used: cp,zero3,interleaved_1f1b.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", help="Of a device, at most: 72GB.")
    ] = None,
    top: Annotated[int, typer.Option("--top", help="How many plans are shown.", min=1)] = 5,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", help="Stop simulating after so long: 5s.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Accept GPUs that were never measured, by their data sheet.")
    ] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Of processes on CPUs: what `calibrate -o` wrote.")
    ] = None,
    layer_wise: Annotated[
        bool | None,
        typer.Option(
            "--layer-wise/--no-layer-wise",
            help="Also vary the best plans stage by stage: blocks, and how many are run again.",
        ),
    ] = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    trained: Trained = None,
    objective: ObjectiveOption = "time",
    pareto: ParetoOption = False,
    price: PriceOption = None,
    power: PowerOption = None,
    tokens: TokensOption = None,
    mtbf: MtbfOption = None,
    checkpoint: CheckpointOption = None,
    restart: RestartOption = None,
    solve: SolveOption = None,
    deadline: DeadlineOption = None,
    max_gpus: MaxGpusOption = None,
) -> Result:
    """Search every plan that a cluster allows: the fastest that fit, with step, memory and reasons. Nothing fits: exit 3.

    -o writes .toml (the best plan), which simulate, check and compare take; with --like also the file's own form.
    """
    from meshwright import api
    from meshwright.cli.frame.progress import live_line
    from meshwright.cli.plan.cost import costs_lines, costs_notes, costs_view
    from meshwright.cli.plan.like import check_said
    from meshwright.costs.measured.calibrated_cluster import calibrated_cluster

    limits: dict[str, Any] = {
        **({"forbid": words_of(forbid)} if forbid else {}),
        **({"max_memory_bytes": parse_bytes(max_memory)} if max_memory else {}),
        **({"time_limit_s": parse_seconds(time_limit)} if time_limit else {}),
        **({"profile": _profile(profile, like, cluster)} if profile else {}),
        **({"layer_wise": layer_wise} if layer_wise is not None else {}),
    }
    asked = read_asked(
        objective=objective, price=price, power=power, tokens=tokens, failing=(mtbf, checkpoint, restart), solve=solve,
        deadline=deadline, max_gpus=max_gpus, pareto=pareto, time_limit=time_limit, has_like=like is not None,
    )  # fmt: skip
    part = trained_part(lora_rank, lora_alpha, lora_targets, trained)
    if like is not None:
        part.refuse("--like, which says the model")
        return _like(
            out, like, form, to, (model, cluster), global_batch=global_batch, seq=seq, variables=variables or (),
            fix=fixed_of(fix or ()), extrapolate=extrapolate, top=top, **limits,
        )  # fmt: skip
    out.check_form((".toml",))
    check_said(model, cluster, global_batch, 0 if solve == "seq" else seq, form, to)
    where = asked.on(str(cluster))
    wanted = part.of_model(str(model)) if part.is_asked else str(model)
    if asked.objective != "time":
        limits["objective"] = asked.objective
    with live_line(out) as line:
        job: dict[str, Any] = {
            "global_batch": global_batch, "seq": seq, "fix": fixed_of(fix or ()), "extrapolate": extrapolate,
            "progress": lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"), **limits,
        }  # fmt: skip
        if pareto or asked.solve:
            return _solved(wanted, where, asked, job, top)
        found = api.plan(wanted, where, **job)
    best = found[0]
    where = calibrated_cluster(where, limits.get("profile"))
    forms = {".toml": best.save}
    helping, helping_view = _helping(found, cluster)
    limit = limits.get("max_memory_bytes")
    view = plans_view(found, top, where, helping_view, limit)
    view[2:2] = costs_view(found[:top], asked, where)  # behind the table of the plans
    return Result(
        {**plans_data(found, top, asked, where, limit), **helping},
        [*view, *costs_notes(where, asked)],
        forms,
        lambda: _report(found, where, top, [each.plain for each in helping_view], limits, asked),
        explanation=[*assumed_lines(found), *found.assumptions, *costs_lines(where, asked)],
    )


def _report(
    found: Plans, cluster: ClusterSpec, top: int, remarks: Sequence[str],
    limits: Mapping[str, Any], asked: Asked | None = None, also: Sequence[str] = (), today: Predicted | None = None,
) -> Report:  # fmt: skip
    """The page of --report; `also` are more assumptions."""
    from meshwright.cli.plan.cost import costs_lines
    from meshwright.cli.plan.report import Shown, plans_report

    lines = [
        *also,
        *found.assumptions,
        *assumed_lines(found),
        *(costs_lines(cluster, asked) if asked else ()),
    ]
    limit = limits.get("max_memory_bytes")
    return plans_report(Shown(found, cluster, top, plan_row, remarks, lines, today, limit, asked))


def _solved(
    model: str | ModelSpec, cluster: ClusterSpec, asked: Asked, job: Mapping[str, Any], top: int
) -> Result:
    """--solve and --pareto: a number with its plans, or all plans that no other beats."""
    from meshwright.api.plan.solving import pareto, solve
    from meshwright.cli.plan.cost import costs_notes, costs_view
    from meshwright.cli.plan.solving import frontier_result, solution_result

    if asked.pareto:
        front = pareto(model, cluster, **job)
        limit = job.get("max_memory_bytes")
        shown = frontier_result(front, asked, cluster, plan_data, plan_row, limit)
        return replace(shown, report=lambda: _report(front, cluster, len(front), (), job, asked))
    budget: dict[str, Any] = {"max_devices": asked.max_gpus, "deadline_s": asked.deadline_s}
    if asked.solve == "gpus":
        budget |= {"num_tokens": asked.num_tokens, "failures": asked.failures}
    solution = solve(model, cluster, str(asked.solve), **job, **budget)
    where = solution.cluster
    limit = job.get("max_memory_bytes")
    view = plans_view(solution.found, top, where, limit_bytes=limit)
    view[2:2] = costs_view(solution.found[:top], asked, where)
    view += costs_notes(where, asked)
    solved = solution_result(solution, asked, plans_data(solution.found, top, asked, where, limit), view)
    return replace(solved, report=lambda: _report(solution.found, where, top, solution.notes, job, asked))


def _helping(found: Plans, cluster: str | None) -> tuple[dict[str, Any], list[Any]]:
    """The change of hardware that would help the first plan most, for --json and for people; nothing for processes."""
    from rich.text import Text

    from meshwright.api.subject.loading import cluster_named
    from meshwright.cli.plan.advice_view import change_figures
    from meshwright.planner.advice.hardware_change import helps_most

    change = helps_most(found[0], cluster_named(cluster or found[0].plan.cluster))
    if change is None:
        return {"hardware_change": None}, []
    line = f"the change of hardware that would help most: {change.sentence}"
    return {"hardware_change": change_figures(change)}, [Text(line, overflow="fold")]


def _like(
    out: Output, like: Path, form: str, to: str | None, names: tuple[str | None, str | None], *,
    variables: Sequence[str], top: int, **choices: Any,
) -> Result:  # fmt: skip
    """--like: today's plan first, then the others, then the change."""
    from meshwright import api
    from meshwright.cli.frame.progress import live_line
    from meshwright.cli.plan.importing import variables_of
    from meshwright.cli.plan.like import check_target, forms_of, like_result, named_parts

    target = check_target(like, form, to)
    out.check_form(forms_of(form, target))
    model, cluster = named_parts(*names)
    with live_line(out) as line:
        found = api.plan(
            model, cluster, like=like, format=form, variables=variables_of(variables),
            progress=lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"), **choices,
        )  # fmt: skip
    where, limit = _cluster_of(found.best.plan, cluster), choices.get("max_memory_bytes")
    data = plans_data(found.found, top, cluster=where, limit_bytes=limit)
    lines = [*sentences(found.found), *tight_lines(found.found, where)]
    shown = like_result(out, found, target, data, top, plan_data, plan_row, lines)
    misfit = [f"today's plan does not fit: {found.misfit}"] if found.misfit else []
    return replace(
        shown,
        report=lambda: _report(
            found.found, where, top, misfit, choices, also=found.assumptions, today=found.today
        ),
    )


def _cluster_of(plan: Plan, name: str | None) -> ClusterSpec:
    """The cluster of a plan, by the name that was given where that says how many devices there are."""
    from meshwright.api.subject.loading import cluster_named

    given = cluster_named(name or plan.cluster)
    return given if given.num_devices == plan.num_devices else cluster_named(plan.cluster)


def _profile(path: Path, like: Path | None, cluster: str | None) -> Profile:
    """A profile's file; it prices processes of this machine, and nothing else."""
    from meshwright.api.subject.loading import cluster_named
    from meshwright.specs.cluster.profile import Profile
    from meshwright.specs.error import SpecError

    if like is not None or cluster is None or not cluster_named(cluster).machine.is_here:
        raise SpecError(
            f"--profile {path} is given for what does not run on processes of this machine",
            allowed="a cluster of CPU processes, such as 2xcpu",
            next="leave it out: GPUs are priced by published measurements",
        )
    return Profile.load(path)
