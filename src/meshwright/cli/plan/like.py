"""What `meshwright plan --like FILE` shows: today's plan first, then the ranked ones, then the change in the file's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from meshwright.api.plans.like import PlansLike
from meshwright.api.plans.plan_text import compared_lines, plan_row, unsaid_lines
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.plan.asked import Asked
from meshwright.cli.plan.assumed import flag_of
from meshwright.cli.plan.cost import costs_data, costs_view
from meshwright.cli.plan.remark import details, ending, headlines, took
from meshwright.cli.plan.view import assumed_data, explained, plan_data, plan_table, told_lines
from meshwright.prediction.predicted import Predicted
from meshwright.reports.page.plan_page import Assumed
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError

TODAY = "today"
PLAN = "plan"  # of --to: our own file
SCRIPT = ".sh"  # of -o: the one suffix that says by itself that another program's words are meant
SCRIPTED = "megatron"  # what is started by a script
COLOURS = {"added": "green", "removed": "red", "changed": ""}


def like_result(
    out: Output, found: PlansLike, to: str, data: dict[str, Any], shown: Mapping[int, Predicted],
    costs: tuple[Asked, ClusterSpec],
) -> Result:  # fmt: skip
    """The result of the command.

    Args:
        to: whose words -o writes: "plan" or the file's own program.
        data, shown: what the command shows of a search.
        costs: the prices and failures that were asked for, and the cluster with its rates.
    """
    forms = _forms(found, to)
    if (
        found.exported is not None
        and out.path is not None
        and found.exported.suffix in forms
        and not found.patched
    ):
        out.note(f"your file could not be changed in place: {found.unpatched}")
        out.note("a file of its own is written, which has the plan and none of your other options")
        for line in found.exported.left_open:
            out.note(f"left to you: {line}")
    whole = {**data, **_data(found, costs), **assumed_data(_assumed(found, data))}
    last = ending(found.found, len(shown), len(whole["assumptions"]))
    view = [*_view(found, shown, costs), *told_lines([last])]
    lines = [*details(found.found, shown), *_counted(found), *explained(whole)]
    return Result(whole, view, forms, explanation=lines, took=took(found.found))


def _assumed(found: PlansLike, data: Mapping[str, Any]) -> list[Assumed]:
    """What today's file and the search rest on."""
    flags = {**{line: flag_of(line) for line in found.assumptions}, **data["overridden_by"]}
    return [Assumed(line, flag) for line, flag in flags.items()]


def check_target(like: Path, form: str, to: str | None) -> str:
    """Whose words -o writes; empty where the suffix decides. Raises PlanError for what does not go together."""
    if not form and like.suffix != ".toml":
        raise PlanError(
            f"--like {like} without --from",
            allowed="a plan (.toml), or --from megatron, torchtitan or deepspeed",
            next="add --from",
        )
    if to not in (None, PLAN, form):
        raise PlanError(
            f"--to {to} with --from {form or PLAN}",
            allowed=" or ".join(dict.fromkeys((form or PLAN, PLAN))),
            next=f"write the plan with -o plan.toml, then meshwright export plan.toml --to {to}",
        )
    return to or ""


def named_parts(model: str | None, cluster: str | None) -> tuple[str | None, str | None]:
    """MODEL and CLUSTER; one name alone is the cluster, which no file says."""
    return (None, model) if cluster is None else (model, cluster)


def check_said(
    model: str | None, cluster: str | None, global_batch: int | None, seq: int | None, form: str, to: str | None
) -> None:  # fmt: skip
    """Raise PlanError for what only a file of --like could say, or what belongs to it."""
    said = {"MODEL": model, "CLUSTER": cluster, "--global-batch": global_batch, "--seq": seq}
    missing = [name for name, value in said.items() if value is None]
    if missing:
        raise PlanError(
            f"{', '.join(missing)} not given",
            allowed="meshwright plan MODEL CLUSTER --global-batch N --seq N",
            next="give it, or --like FILE --from megatron, torchtitan or deepspeed, which says the job",
        )
    if form or to:
        raise PlanError(
            "--from and --to belong to --like",
            allowed="--like FILE --from megatron",
            next="give the file, or leave them out; meshwright export writes a plan in other words",
        )


def forms_of(form: str, to: str) -> tuple[str, ...]:
    """The suffixes of -o: our own file's and, unless --to says otherwise, those of the program behind --from."""
    return (".toml", ".csv", SCRIPT) if form == SCRIPTED and to != PLAN else (".toml", ".csv")


def _forms(found: PlansLike, to: str) -> dict[str, Callable[[Path], Any]]:
    """Writers by suffix: ours for .toml unless --to says otherwise, the program's for a suffix that is only its own."""
    forms: dict[str, Callable[[Path], Any]] = {".toml": found.best.plan.save, ".csv": found.found.to_csv}
    exported = found.exported
    if exported is not None and to != PLAN and (to or exported.suffix == SCRIPT):
        text = found.patched or exported.text
        forms[exported.suffix] = lambda path: path.write_text(text, encoding="utf-8")
    return forms


def _data(found: PlansLike, costs: tuple[Asked, ClusterSpec]) -> dict[str, Any]:
    faster = None if found.faster is None else {
        **plan_data(found.faster), "refusals": [each.to_dict() for each in found.faster_refusals],
    }  # fmt: skip
    return {
        "num_simulated": found.num_simulated,
        "today": {
            **plan_data(found.today),
            **costs_data(found.today, *costs),
            "fits": not found.misfit,
            "misfit": found.misfit or None,
        },
        "is_today_best": found.best is found.today,
        "diff": [each.to_dict() for each in found.changes],
        "exported": None if found.exported is None else found.exported.text,
        "patched": found.patched or None,
        "unpatched": found.unpatched or None,
        "refusals": [each.to_dict() for each in found.refusals],
        "faster_but_not_sayable": faster,
        "unknown_options": list(found.unknown),
    }


def _view(found: PlansLike, shown: Mapping[int, Predicted], costs: tuple[Asked, ClusterSpec]) -> list[Any]:
    """Head, tables, how today's compares, the change, what cannot be said, why the first is the first."""
    plan = found.today.plan
    head = f"{plan.model.name} on {plan.cluster}, {plan.workload.global_batch} sequences a step"
    listed: dict[Any, Predicted] = {TODAY: found.today, **shown}
    rows = [plan_row(place, each) for place, each in listed.items()]
    view: list[Any] = [Text(head, style="bold"), plan_table(rows), *costs_view(listed, *costs)]
    view += told_lines([*compared_lines(found), *unsaid_lines(found)])
    if found.changes:
        view += [Text(""), Text(_title(found), style="bold")]
        view += [Text(str(change), style=COLOURS[change.kind], overflow="fold") for change in found.changes]
    view += [Text(""), *told_lines(headlines(found.found, shown, costs[1]))]
    view += [Text(f"NOT understood, today's prediction is without it: {each}") for each in found.unknown]
    return view


def _counted(found: PlansLike) -> list[str]:
    """How many plans were simulated in all, where some of them cannot be said or were found twice."""
    if found.num_simulated == len(found):
        return []
    return [f"{found.num_simulated} simulated in all; the table has those that can be said, each once"]


def _title(found: PlansLike) -> str:
    program = found.exported.format if found.exported is not None else "our own file"
    return f"from today to the best plan, in the words of {program}"
