"""`meshwright plan`: the fastest plans of a model on a cluster that fit, and why the first is the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.command import command
from meshwright.cli.output import Output, Result, interval_text, table_of
from meshwright.specs.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from meshwright.planner.candidate import Candidate
    from meshwright.planner.enumerate import Ranking
    from meshwright.planner.search import PlannedStep, SearchResult
    from meshwright.specs.plan import Plan

PANEL = "The loop"
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "plan", PANEL)(plan)


def plan(
    out: Output,
    model: Annotated[str, typer.Argument(help="A name (meshwright list models) or config.json.")],
    cluster: Annotated[str, typer.Argument(help="What it runs on: 8x8xH100, 16384xH100, or a .toml file.")],
    global_batch: Annotated[int, typer.Option("--global-batch", help="Sequences of a step.")],
    seq: Annotated[int, typer.Option("--seq", help="Tokens of a sequence.")],
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
) -> Result:
    """Search every plan that a cluster allows: the fastest that fit, with step, memory and reasons. Nothing fits: exit 3.

    -o writes .toml (the best plan), which simulate, check and compare take.
    """
    from meshwright import api
    from meshwright.cli.progress import live_line

    limits: dict[str, Any] = {
        **({"forbid": _words(forbid)} if forbid else {}),
        **({"max_memory_bytes": parse_bytes(max_memory)} if max_memory else {}),
        **({"time_limit_s": parse_seconds(time_limit)} if time_limit else {}),
    }
    with live_line(out) as line:
        found = api.plan(
            model, cluster, global_batch=global_batch, seq=seq, fix=_fixed(fix or ()), extrapolate=extrapolate,
            progress=lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"), **limits,
        )  # fmt: skip
    best = found[0]
    forms = {".toml": best.save}
    return Result(
        _data(found, top), _view(found, top), forms, explanation=[*_assumed(found), *found.assumptions]
    )


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


def _assumed(found: Ranking | SearchResult) -> tuple[str, ...]:
    """What the best plan's prediction rests on."""
    return tuple(line for line in getattr(found[0], "assumptions", ()) if line not in found.assumptions)


def _data(found: Ranking | SearchResult, top: int) -> dict[str, Any]:
    from meshwright.planner.search import SearchResult

    data: dict[str, Any] = {"plans": [_plan_data(each) for each in found[:top]]}
    if isinstance(found, SearchResult):
        data |= {
            "num_candidates": found.num_candidates,
            "num_evaluated": found.num_evaluated,
            "num_excluded_by_bound": found.num_excluded_by_bound,
            "num_simulated": len(found),
            "search_s": found.search_s,
            "simulation_s": found.simulation_s,
            "is_complete": found.is_complete,
            "optimality_gap": None,
            "why": dict(_why(found)),
        }
    return {**data, "assumptions": list(dict.fromkeys((*found.assumptions, *_assumed(found))))}


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


def _view(found: Ranking | SearchResult, top: int) -> list[Any]:
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
    return [*view, *(Text(f"- {line}", style="dim", overflow="fold") for line in assumed)]


def _row(number: int, each: Candidate | PlannedStep) -> dict[str, Any]:
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


def _told(plan: Plan) -> str:
    """Degrees, schedule, microbatch, recompute, sharding: what differs between the rows."""
    degrees = [(name, getattr(plan, name)) for name in ("tp", "cp", "ep", "pp", "dp")]
    chunks = f" x{plan.num_chunks}" if plan.num_chunks > 1 else ""
    words = [
        " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device",
        plan.schedule.removesuffix("_1f1b") + chunks if plan.pp > 1 else "",
        f"micro {plan.microbatch_size}",
        f"recompute {plan.recompute}" if plan.recompute != "none" else "",
        plan.sharding if plan.sharding != "none" else "",
        "sp" if plan.sequence_parallel else "",
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
    lines.append(
        f"{found.num_candidates:,} candidates, {found.num_excluded_by_bound:,} do not fit; {len(found)} simulated; "
        f"{format_seconds(found.search_s)} search, {format_seconds(found.simulation_s)} simulation"
    )
    return lines if found.is_complete else [*lines, "ended early: better plans may not have been simulated"]


def _named(kind: str) -> str:
    from meshwright.evidence.log_comparison import KINDS

    return KINDS[kind].meaning if kind in KINDS else kind
