"""What a search for layouts found: the best under the load as a table, all that were ranked as points."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.api.loads.load_text import answer_lines, served_row
from meshwright.planner.serving.served_plan import ServedPlan, answers
from meshwright.planner.serving.serving_search import ServingPlans
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.specs.units import counted
from meshwright.workbench.document.document import (
    Document,
    FrontierMark,
    FrontierSection,
    PlansSection,
    TableColumn,
)
from meshwright.workbench.document.result import undominated
from meshwright.workbench.document.table import cell_text

TEXTS = ("plan",)  # columns that stand to the left


def layouts_document(found: ServingPlans, load: str, id_of: Callable[[ServingPlan], str]) -> Document:
    """The document of a search. `load`: it in words; `id_of`: the words of the state of a plan."""
    rows = [served_row(each) for each in found]
    columns = [
        TableColumn(key, key, key not in TEXTS) for key in dict.fromkeys(key for row in rows for key in row)
    ]
    texts = [{column.key: cell_text("", row.get(column.key)) for column in columns} for row in rows]
    misfits = list(dict.fromkeys(why.split("\n")[0] for why in found.rejected.values()))
    return Document(
        "load",
        f"Layouts of {found.model} on {found.cluster}",
        f"{load}; {counted(found.num_ranked, 'plan')} ranked",
        notes=[*misfits, *found.assumptions],
        sections=[
            PlansSection(
                "layouts", "Layouts that serve the load", columns, texts, [id_of(each.plan) for each in found], 0,
                " ".join(_sentence(line) for line in answer_lines(found)),
            ),
            FrontierSection(
                "frontier", "Good requests against time per token", _marks(found, id_of),
                "good requests a second of each device", "time per output token, median", "", "s",
                "Every plan that was ranked and is good for at least half as many requests as the best.",
            ),
        ],
    )  # fmt: skip


def _marks(found: ServingPlans, id_of: Callable[[ServingPlan], str]) -> list[FrontierMark]:
    """Of plans that are an answer to the load; more good requests and less time are better."""
    plans = [each for each in answers(found.ranked or found) if _tpot_s(each) == _tpot_s(each)]
    points = [(each.report.goodput_per_s / each.plan.num_devices, _tpot_s(each)) for each in plans]
    best = undominated([(-good, tpot_s) for good, tpot_s in points])
    return [
        FrontierMark(good, tpot_s, _name(each), id_of(each.plan), place in best)
        for place, (each, (good, tpot_s)) in enumerate(zip(plans, points, strict=True))
    ]


def _name(each: ServedPlan) -> str:
    """What tells it from the others."""
    return f"{each.plan.name}, {each.plan.max_batch_tokens} tokens and {each.plan.max_sequences} sequences a step"


def _tpot_s(each: ServedPlan) -> float:
    return each.report.tpot_s["p50"]


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."
