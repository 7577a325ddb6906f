"""`meshwright plan`: the fastest plans of a model on a cluster that fit, and why the first is the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.command import command
from meshwright.cli.output import Output, Result, interval_text, table_of
from meshwright.cli.plan_asked import (
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
from meshwright.specs.layers import split_layers
from meshwright.specs.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from meshwright.planner.candidate import Candidate
    from meshwright.planner.enumerate import Ranking
    from meshwright.planner.pareto import Frontier
    from meshwright.planner.search import PlannedStep, SearchResult
    from meshwright.reports.report import Report
    from meshwright.specs.cluster import ClusterSpec
    from meshwright.specs.plan import Plan
    from meshwright.specs.profile import Profile

PANEL = "The loop"
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "plan", PANEL)(plan)


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
    from meshwright.cli.plan_cost import costs_lines, costs_notes, costs_view
    from meshwright.cli.plan_like import check_said
    from meshwright.cli.progress import live_line

    limits: dict[str, Any] = {
        **({"forbid": _words(forbid)} if forbid else {}),
        **({"max_memory_bytes": parse_bytes(max_memory)} if max_memory else {}),
        **({"time_limit_s": parse_seconds(time_limit)} if time_limit else {}),
        **({"profile": _profile(profile, like, cluster)} if profile else {}),
        **({"layer_wise": layer_wise} if layer_wise is not None else {}),
    }
    asked = read_asked(
        objective=objective, price=price, power=power, tokens=tokens, failing=(mtbf, checkpoint, restart), solve=solve,
        deadline=deadline, max_gpus=max_gpus, pareto=pareto, time_limit=time_limit, has_like=like is not None,
    )  # fmt: skip
    if like is not None:
        return _like(
            out, like, form, to, (model, cluster), global_batch=global_batch, seq=seq, variables=variables or (),
            fix=_fixed(fix or ()), extrapolate=extrapolate, top=top, **limits,
        )  # fmt: skip
    check_said(model, cluster, global_batch, 0 if solve == "seq" else seq, form, to)
    where = asked.on(str(cluster))
    if asked.objective != "time":
        limits["objective"] = asked.objective
    with live_line(out) as line:
        job: dict[str, Any] = {
            "global_batch": global_batch, "seq": seq, "fix": _fixed(fix or ()), "extrapolate": extrapolate,
            "progress": lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"), **limits,
        }  # fmt: skip
        if pareto or asked.solve:
            return _solved(str(model), where, asked, job, top)
        found = api.plan(model, where, **job)
    best = found[0]
    forms = {".toml": best.save}
    helping, helping_view = _helping(found, cluster)
    view = _view(found, top, helping_view)
    view[2:2] = costs_view(found[:top], asked, where)  # behind the table of the plans
    return Result(
        {**_data(found, top, asked, where), **helping},
        [*view, *costs_notes(where, asked)],
        forms,
        lambda: _report(found, where, top, [each.plain for each in helping_view], limits, asked),
        explanation=[*_assumed(found), *found.assumptions, *costs_lines(where, asked)],
    )


def _report(
    found: Ranking | SearchResult | Frontier, cluster: ClusterSpec, top: int, remarks: Sequence[str],
    limits: Mapping[str, Any], asked: Asked | None = None, also: Sequence[str] = (), today: PlannedStep | None = None,
) -> Report:  # fmt: skip
    """The page of --report; `also` are more assumptions."""
    from meshwright.cli.plan_cost import costs_lines
    from meshwright.cli.plan_report import Shown, plans_report

    lines = [*also, *found.assumptions, *_assumed(found), *(costs_lines(cluster, asked) if asked else ())]
    limit = limits.get("max_memory_bytes")
    return plans_report(Shown(found, cluster, top, _row, remarks, lines, today, limit, asked))


def _solved(model: str, cluster: ClusterSpec, asked: Asked, job: Mapping[str, Any], top: int) -> Result:
    """--solve and --pareto: a number with its plans, or all plans that no other beats."""
    from meshwright.api.plan_solving import pareto, solve
    from meshwright.cli.plan_cost import costs_notes, costs_view
    from meshwright.cli.plan_solving import frontier_result, solution_result

    if asked.pareto:
        front = pareto(model, cluster, **job)
        shown = frontier_result(front, asked, cluster, _plan_data, _row)
        return replace(shown, report=lambda: _report(front, cluster, len(front), (), job, asked))
    budget: dict[str, Any] = {"max_devices": asked.max_gpus, "deadline_s": asked.deadline_s}
    if asked.solve == "gpus":
        budget |= {"num_tokens": asked.num_tokens, "failures": asked.failures}
    solution = solve(model, cluster, str(asked.solve), **job, **budget)
    where = solution.cluster
    view = _view(solution.found, top)
    view[2:2] = costs_view(solution.found[:top], asked, where)
    view += costs_notes(where, asked)
    solved = solution_result(solution, asked, _data(solution.found, top, asked, where), view)
    return replace(solved, report=lambda: _report(solution.found, where, top, solution.notes, job, asked))


def _helping(found: Ranking | SearchResult, cluster: str | None) -> tuple[dict[str, Any], list[Any]]:
    """The change of hardware that would help the first plan most, for --json and for people; nothing for processes."""
    from rich.text import Text

    from meshwright.api.loading import cluster_named
    from meshwright.cli.advice_view import change_figures
    from meshwright.planner.hardware_change import helps_most
    from meshwright.planner.search import SearchResult

    if not isinstance(found, SearchResult):
        return {}, []
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
    from meshwright.cli.importing import variables_of
    from meshwright.cli.plan_like import check_target, like_result, named_parts
    from meshwright.cli.progress import live_line

    target = check_target(like, form, to)
    model, cluster = named_parts(*names)
    with live_line(out) as line:
        found = api.plan(
            model, cluster, like=like, format=form, variables=variables_of(variables),
            progress=lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"), **choices,
        )  # fmt: skip
    shown = like_result(
        out, found, target, _data(found.found, top), top, _plan_data, _row, _sentences(found.found)
    )
    misfit = [f"today's plan does not fit: {found.misfit}"] if found.misfit else []
    return replace(
        shown,
        report=lambda: _report(
            found.found,
            _cluster_of(found.best.plan, cluster),
            top,
            misfit,
            choices,
            also=found.assumptions,
            today=found.today,
        ),
    )


def _cluster_of(plan: Plan, name: str | None) -> ClusterSpec:
    """The cluster of a plan, by the name that was given where that says how many devices there are."""
    from meshwright.api.loading import cluster_named

    given = cluster_named(name or plan.cluster)
    return given if given.num_devices == plan.num_devices else cluster_named(plan.cluster)


def _words(given: Sequence[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _fixed(given: Sequence[str]) -> Mapping[str, Any]:
    """NAME=VALUE pairs, with numbers and yes or no read as such."""
    from meshwright.specs.error import SpecError

    found: dict[str, Any] = {}
    for pair in _words(given):
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise SpecError(f"--fix {pair!r}", allowed="NAME=VALUE, such as tp=8,pp=4")
        if found.get(name, value) != value and str(found[name]) != value:
            raise SpecError(
                f"--fix says {name}={found[name]} and {name}={value}", allowed="one value for each name"
            )
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    if name == "overlap":
        return tuple(text.split("+"))
    if text.isdigit():
        return int(text)
    return True if text in TRUE else False if text in FALSE else text


def _assumed(found: Ranking | SearchResult | Frontier) -> tuple[str, ...]:
    """What the best plan's prediction rests on."""
    return tuple(line for line in getattr(found[0], "assumptions", ()) if line not in found.assumptions)


def _data(
    found: Ranking | SearchResult, top: int, asked: Asked | None = None, cluster: ClusterSpec | None = None
) -> dict[str, Any]:
    from meshwright.planner.search import SearchResult

    data: dict[str, Any] = {"plans": [_plan_data(each) for each in found[:top]]}
    rests_on: list[str] = []
    if asked is not None and cluster is not None:
        from meshwright.cli.plan_cost import costs_data, costs_lines

        rests_on = costs_lines(cluster, asked)
        data["plans"] = [{**_plan_data(each), **costs_data(each, asked, cluster)} for each in found[:top]]
    if isinstance(found, SearchResult):
        data |= {
            "num_candidates": found.num_candidates,
            "num_evaluated": found.num_evaluated,
            "num_excluded_by_bound": found.num_excluded_by_bound,
            "num_simulated": len(found),
            "search_s": found.search_s,
            "simulation_s": found.simulation_s,
            "is_complete": found.is_complete,
            "wall_s": found.search_s + found.simulation_s,
            "optimality_gap": found.optimality_gap,
            "why": dict(_why(found)),
        }
    return {**data, "assumptions": list(dict.fromkeys((*found.assumptions, *_assumed(found), *rests_on)))}


def _plan_data(each: Candidate | PlannedStep) -> dict[str, Any]:
    from meshwright.specs.plan_file import plan_text

    return {
        "step_time_s": each.step.value,
        "step_time_interval_s": [each.step.low, each.step.high],
        "basis": each.step.basis,
        "tokens_per_s_per_device": each.tokens_per_s / each.plan.num_devices,
        "peak_memory_bytes": each.peak_bytes,
        "mfu": getattr(each, "mfu", None),
        "bubble": each.bubble,
        "parts": dict(getattr(each, "parts", {})),
        "description": each.description,
        "plan": plan_text(each.plan),
    }


def _why(found: SearchResult) -> list[tuple[str, float]]:
    from meshwright.planner.search import reasons

    return reasons(found[0], found[1]) if len(found) > 1 else []


def _view(found: Ranking | SearchResult, top: int, helping: Sequence[Any] = ()) -> list[Any]:
    """The table, why the first is the first, how it was found, what was assumed."""
    from rich.text import Text

    from meshwright.planner.search import SearchResult

    best = found[0]
    head = (
        f"{best.plan.model.name} on {best.plan.cluster}, {best.plan.workload.global_batch} sequences a step"
    )
    view: list[Any] = [
        Text(head, style="bold"),
        table_of([_row(place + 1, found[place]) for place in range(min(top, len(found)))]),
    ]
    if isinstance(found, SearchResult):
        view += [Text(line, overflow="fold") for line in _sentences(found)]
    assumed = dict.fromkeys((*found.assumptions, *_assumed(found)))
    return [*view, *helping, *(Text(f"- {line}", style="dim", overflow="fold") for line in assumed)]


def _row(number: int | str, each: Candidate | PlannedStep) -> dict[str, Any]:
    mfu = getattr(each, "mfu", 0.0)
    return {
        "": number,
        "plan": _told(each.plan),
        "step": format_seconds(each.step.value),
        "interval": interval_text(format_seconds(each.step.low), format_seconds(each.step.high)),
        "tokens/s/GPU": f"{each.tokens_per_s / each.plan.num_devices:,.0f}",
        "MFU": f"{100 * mfu:.1f} %" if mfu else "-",
        "bubble": f"{100 * each.bubble:.1f} %",
        "memory": format_bytes(each.peak_bytes),
    }


def _profile(path: Path, like: Path | None, cluster: str | None) -> Profile:
    """A profile's file; it prices processes of this machine, and nothing else."""
    from meshwright.api.loading import cluster_named
    from meshwright.planner.step_pricing import is_gpu_cluster
    from meshwright.specs.error import SpecError
    from meshwright.specs.profile import Profile

    if like is not None or cluster is None or is_gpu_cluster(cluster_named(cluster)):
        raise SpecError(
            f"--profile {path} is given for what does not run on processes of this machine",
            allowed="a cluster of CPU processes, such as 2xcpu",
            next="leave it out: GPUs are priced by published measurements",
        )
    return Profile.load(path)


def _layers(plan: Plan) -> str:
    """Layers of the stages where they are not as even as can be."""
    from meshwright.planner.description import layers_words

    is_even = plan.layers_per_stage == split_layers(plan.model.num_layers, plan.num_stages)
    return "" if is_even else f"layers {layers_words(plan.layers_per_stage)}"


def _sharded(plan: Plan) -> str:
    """What is sharded, and over how many devices where not over all."""
    if plan.sharding == "none":
        return ""
    return plan.sharding + (f" over {plan.sharding_degree}" if plan.sharding_degree else "")


def _told(plan: Plan) -> str:
    """Degrees, schedule, microbatch, recompute, sharding: what differs between the rows."""
    from meshwright.planner.description import recompute_words
    from meshwright.specs.plan import AXES as MESH

    degrees = [(name, getattr(plan, name)) for name in ("tp", "cp", "ep", "pp", "dp")]
    chunks = f" x{plan.num_chunks}" if plan.num_chunks > 1 else ""
    words = [
        " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device",
        plan.schedule.removesuffix("_1f1b") + chunks if plan.pp > 1 else "",
        f"micro {plan.microbatch_size}",
        _layers(plan),
        recompute_words(plan),
        _sharded(plan),
        "sp" if plan.sequence_parallel else "",
        f"mesh {'-'.join(plan.mesh_order)}" if plan.mesh_order != MESH else "",
    ]
    return ", ".join(word for word in words if word)


def _sentences(found: SearchResult) -> list[str]:
    """Why, what binds, and how the search went."""
    from meshwright.planner.step_trait import BESIDE

    best = found[0]
    kind, seconds = next(pair for pair in best.parts.items() if pair[0] not in BESIDE)
    lines = [
        f"basis: {', '.join(dict.fromkeys(each.step.basis for each in found))}",
        f"most of the step: {_named(kind)}, {100 * seconds / best.step.value:.0f} % of it",
    ]
    if len(found) > 1:
        gain = found[1].step.value / best.step.value - 1
        said = [
            f"{format_seconds(abs(s))} {'less' if s > 0 else 'more'} {_named(kind)}"
            for kind, s in _why(found)
        ]
        lines.insert(
            0,
            f"1 before 2: {100 * gain:.1f} % faster; on the busiest device {', '.join(said) or 'nothing differs'}",
        )
    num_slow = found.num_excluded_by_bound - found.num_too_large
    lines.append(
        f"{found.num_candidates:,} candidates: {found.num_too_large:,} do not fit, {num_slow:,} are proven slower than the "
        f"best, {found.num_evaluated:,} ranked; {len(found)} simulated; {format_seconds(found.search_s)} search, "
        f"{format_seconds(found.simulation_s)} simulation"
    )
    if found.optimality_gap is not None:
        lines.append(
            f"by what they compute, no other is more than {100 * found.optimality_gap:.1f} % faster than the best"
        )
    return lines if found.is_complete else [*lines, "ended early: better plans may not have been simulated"]


def _named(kind: str) -> str:
    from meshwright.evidence.log_comparison import KINDS

    return KINDS[kind].meaning if kind in KINDS else kind
