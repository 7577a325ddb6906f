"""`meshwright plan`: the fastest plans of a model on a cluster that fit, and why the first is the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright import api, catalog
from meshwright.api.exchange.adapting import TrainedPart
from meshwright.api.exchange.variant import ModelVariant
from meshwright.api.loads.load_request import USUAL_OBJECTIVE, LoadRequest
from meshwright.api.loads.planning_load import FORMATS
from meshwright.api.plans.request import PlanRequest
from meshwright.api.plans.solving import pareto, solve
from meshwright.api.plans.todays_plan import cluster_of_job
from meshwright.api.subjects.loading import cluster_named
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.progress import live_line
from meshwright.cli.plan.asked import Asked, Selection
from meshwright.cli.plan.cost import costs_lines, costs_view
from meshwright.cli.plan.importing import variables_of
from meshwright.cli.plan.like import check_said, check_target, forms_of, like_result, named_parts
from meshwright.cli.plan.own_search import own_search
from meshwright.cli.plan.remark import details, ending, headlines, took
from meshwright.cli.plan.report import Shown, plans_report
from meshwright.cli.plan.solving import frontier_result, solution_result
from meshwright.cli.plan.view import assumed_lines, explained, plans_data, plans_view, told_lines
from meshwright.cli.view.advice_view import change_figures
from meshwright.cli.view.grouped_plans_view import grouped_result
from meshwright.cli.view.load_view import load_result
from meshwright.costs.measured.calibrated_cluster import calibrated_cluster
from meshwright.interop.plan_difference import OptionChange
from meshwright.planner.advice.goodput import Failures
from meshwright.planner.advice.hardware_change import helps_most
from meshwright.planner.search.plans import Plans
from meshwright.prediction.predicted import Predicted
from meshwright.reports.page.report import Report
from meshwright.serving.fleet.saved_serving import SavedServing
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError, SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.option import option


@dataclass(frozen=True)
class Today:
    """What runs today, whose words it is in, and whose words -o writes."""

    like: Path | None = option(
        None, "What runs today (with --from, or a plan's .toml): it says the job, CLUSTER aside."
    )
    form: str = option("", "Of --like: megatron, torchtitan or deepspeed.", "--from")
    to: str | None = option(None, "With --like, whose words -o writes: plan, or that of --from.")
    variables: Mapping[str, str] | None = option(
        None, "NAME=VALUE of a variable that is set outside the script of --like.", "--set",
        repeats=True, parse=variables_of,
    )  # fmt: skip
    vocab: int | None = option(
        None, "Tokens of the tokenizer, where the file of --like does not say them.", least=1
    )


def model_names_like(incomplete: str) -> list[str]:
    """What a shell offers for the beginning of a model's name."""
    return [name for name in catalog.names("models") if name.startswith(incomplete)]


@writes(".toml", ".csv", ".sh", ".json", ".svg")
def plan(
    out: Output,
    request: PlanRequest,
    today: Today,
    part: TrainedPart,
    asked: Asked,
    other: ModelVariant,
    selection: Selection,
    load: LoadRequest,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A name (meshwright list models) or config.json.", autocompletion=model_names_like
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Argument(help="What it runs on: 8x8xH100, 16384xH100, or a .toml file.")
    ] = None,
    failures: Failures | None = None,
    sequence_groups: Annotated[
        list[str] | None,
        typer.Option(
            "--sequence-groups",
            help="With --lengths: plans whose sequences these algorithms put into groups of ranks that change by step.",
        ),
    ] = None,
) -> Result:
    """Search every plan that a cluster allows: the fastest that fit, with step, memory and reasons. Nothing fits: exit 3.

    -o writes .toml (the best plan), which simulate, check and compare take, or .csv (all simulated plans); with --like
    also the file's own form; with --requests .toml is for export, and .svg has good requests against time per token.
    """
    asked = replace(asked, failures=failures)
    if load.requests is not None:
        out.check_form((".svg", ".toml"))
        return _for_load(out, (model, cluster), load, request, asked, selection)
    if sequence_groups:
        if today.like is not None or model is None or cluster is None:
            raise PlanError("--sequence-groups without MODEL and CLUSTER", allowed="them, and --lengths")
        return grouped_result(out, model, asked.on(cluster), sequence_groups, request, selection.top)
    asked.check(request, today.like is not None)
    limits = request.keywords()
    if other.variant:
        limits["fix"] = other.in_fix(request.fix)
    if request.profile is not None:
        limits["profile"] = (
            Profile.load(request.profile) if isinstance(request.profile, Path) else request.profile
        )
    if today.like is not None:
        part.refuse("--like, which says the model")
        other.refuse("--like, which says the model")
        return _like(out, today, (model, cluster), limits, asked, selection)
    out.check_form((".toml", ".csv"))
    check_said(
        model, cluster, request.global_batch, 0 if asked.solve == "seq" else request.seq, today.form, today.to
    )
    where = asked.on(str(cluster))
    wanted = part.of_model(str(model)) if part.is_asked else str(model)
    if asked.objective != "time":
        limits["objective"] = asked.objective
    with live_line(out) as line:
        job = {**limits, "progress": line.share}
        if asked.solves:
            return _solved(wanted, where, asked, {"seq": None, **job}, selection)
        found = api.plan(wanted, where, **job)
        ours = own_search(wanted, where, job)
    if out.path is not None and out.path.suffix == ".toml" and str(cluster).endswith(".toml"):
        _note_cluster(out, found[0].plan.cluster, str(cluster), request.extrapolate)
    shown = selection.of(found, of_others=ours is not None)
    where = calibrated_cluster(where, limits.get("profile"))
    limit = limits.get("max_memory_bytes")
    data = plans_data(found, shown, asked, where, limit)
    helping, sentence = _helping(found, cluster)
    table, beside = plans_view(found, shown, limit), [ours.line(found)] if ours else []
    if ours and ours.best:
        table = plans_view(found, {**shown, "ours": ours.best}, limit)
    return Result(
        {**data, **helping, **(ours.data() if ours else {})},
        [
            *table, *costs_view(shown, asked, where), *told_lines([*beside, *headlines(found, shown, where), *sentence]),
            *told_lines([ending(found, len(shown), len(data["assumptions"]))]),
        ],
        {".toml": found[0].save, ".csv": found.to_csv},
        lambda: _report(found, where, shown, sentence, limits, asked),
        explanation=[*details(found, shown), *explained(data)],
        took=took(found),
    )  # fmt: skip


def _note_cluster(out: Output, name: str, file: str, extrapolate: bool) -> None:
    """Say how the file of a plan is taken whose cluster has a name that says nothing without its own file."""
    try:
        Cluster(name)
    except (SpecError, UnknownNameError):
        also = "; simulate and view it with --extrapolate, too" if extrapolate else ""
        out.note(
            f"the plan keeps the name of its cluster only: simulate, view and check it with --cluster {file}{also}"
        )


def _for_load(
    out: Output, names: tuple[str | None, str | None], load: LoadRequest, request: PlanRequest, asked: Asked,
    selection: Selection,
) -> Result:  # fmt: skip
    """--requests: layouts that serve a load."""
    model, cluster = names
    given = [name for name, value in request.keywords("fix", "planner").items() if value]
    given += [f"objective {asked.objective}"] if asked.objective != "time" else []
    given += ["--solve or --pareto"] if asked.solves else []
    if given or model is None or cluster is None:
        raise PlanError(
            f"--requests with {', '.join(given) or 'no MODEL or CLUSTER'}",
            allowed="MODEL CLUSTER --requests FILE, with --slo, --fix, --planner, --price, --power, --top",
            next="leave the rest out: it is of training",
        )
    requests = load.load()
    objective = load.objective or USUAL_OBJECTIVE
    with live_line(out) as line:
        found = api.plan_load(
            model, asked.on(cluster), requests, slo=objective, fix=request.fix, clients=load.clients,
            think_s=load.think_s, planner=request.planner, step_table=load.has_step_table, progress=line.share,
            routing=load.routing, expert_placement=load.expert_placement,
        )  # fmt: skip
    dtype = str((request.fix or {}).get("dtype", FORMATS[0]))
    saved = SavedServing(model, cluster, dtype, found[0].plan)
    return load_result(found, objective, len(requests), selection.top, saved)


def _report(
    found: Plans, cluster: ClusterSpec, shown: Mapping[int, Predicted], remarks: Sequence[str],
    limits: Mapping[str, Any], asked: Asked | None = None, also: Sequence[str] = (), today: Predicted | None = None,
    changes: Sequence[OptionChange] = (),
) -> Report:  # fmt: skip
    """The page of --report; `also` are more assumptions."""
    lines = [
        *also,
        *found.assumptions,
        *assumed_lines(found),
        *(costs_lines(cluster, asked) if asked else ()),
    ]
    limit = limits.get("max_memory_bytes")
    return plans_report(Shown(found, cluster, shown, remarks, lines, today, limit, asked, changes))


def _solved(
    model: str | ModelSpec, cluster: ClusterSpec, asked: Asked, job: Mapping[str, Any], selection: Selection
) -> Result:
    """--solve and --pareto: a number with its plans, or all plans that no other beats."""
    if asked.pareto:
        front = pareto(model, cluster, **job)
        limit = job.get("max_memory_bytes")
        every = dict(enumerate(front, 1))
        told = frontier_result(front, asked, cluster, limit)
        return replace(told, report=lambda: _report(front, cluster, every, (), job, asked))
    budget: dict[str, Any] = {"max_devices": asked.max_gpus, "deadline_s": asked.deadline_s}
    if asked.solve == "gpus":
        budget |= {"num_tokens": asked.num_tokens, "failures": asked.failures}
    solution = solve(model, cluster, str(asked.solve), **job, **budget)
    where, found = solution.cluster, solution.found
    limit, shown = job.get("max_memory_bytes"), selection.of(found)
    data = plans_data(found, shown, asked, where, limit)
    lines = [*headlines(found, shown, where), ending(found, len(shown), len(data["assumptions"]))]
    view = [*plans_view(found, shown, limit), *costs_view(shown, asked, where), *told_lines(lines)]
    solved = solution_result(solution, asked, data, view)
    return replace(
        solved,
        report=lambda: _report(found, where, shown, solution.notes, job, asked),
        explanation=[*details(found, shown), *explained(data)],
        took=took(found),
    )


def _helping(found: Plans, cluster: str | None) -> tuple[dict[str, Any], list[str]]:
    """The change of hardware that would help the first plan most, for --json and for people; nothing for processes."""
    change = helps_most(found[0], cluster_named(cluster or found[0].plan.cluster))
    if change is None:
        return {"hardware_change": None}, []
    line = f"the change of hardware that would help most: {change.sentence}"
    return {"hardware_change": change_figures(change)}, [line]


def _like(
    out: Output, today: Today, names: tuple[str | None, str | None], choices: dict[str, Any], asked: Asked,
    selection: Selection,
) -> Result:  # fmt: skip
    """--like: today's plan first, then the others, then the change."""
    assert today.like is not None, "the caller asked"
    target = check_target(today.like, today.form, today.to)
    out.check_form(forms_of(today.form, target))
    model, cluster = named_parts(*names)
    with live_line(out) as line:
        found = api.plan(
            model, cluster, like=today.like, format=today.form, variables=today.variables or {}, vocab=today.vocab,
            progress=line.share, **choices,
        )  # fmt: skip
    where, limit = asked.rated(cluster_of_job(cluster, found.best.plan)), choices.get("max_memory_bytes")
    shown = selection.of(found.found)
    data = plans_data(found.found, shown, asked, where, limit)
    told = like_result(out, found, target, data, shown, (asked, where))
    misfit = [f"today's plan does not fit: {found.misfit}"] if found.misfit else []
    return replace(
        told,
        report=lambda: _report(
            found.found,
            where,
            shown,
            misfit,
            choices,
            asked,
            also=found.assumptions,
            today=found.today,
            changes=found.changes,
        ),
    )
