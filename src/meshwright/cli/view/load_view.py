"""What `meshwright plan --requests` found: a table of layouts, what it rests on, and the same for --json."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.text import Text

from meshwright.api.loads.load_text import answer_lines, objective_words, served_row, share_text
from meshwright.cli.frame.output import NarrowingTable, Result
from meshwright.cli.view.load_picture import load_report, write_load_svg
from meshwright.planner.serving.serving_search import ServingPlans
from meshwright.serving.fleet.saved_serving import SavedServing
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.simulated.step_overhead import HOST_S
from meshwright.specs.units import counted, format_seconds

NUM_SHOWN = 8
OPTIONAL = ("sequences", "tokens/s", "TTFT p50", "TPOT p99", "kWh/M tokens")
NAME_WIDTH = 20  # characters in which most names of plans stand on one line


def load_result(
    found: ServingPlans, objective: LatencyObjective, num_requests: int, top: int | None, saved: SavedServing
) -> Result:
    """For --json, the terminal and --explain."""
    shown = found[: top or NUM_SHOWN]
    data = {
        "layouts": [each.to_dict() for each in shown],
        "simulate_s": found.simulate_s,
        "num_ranked": found.num_ranked,
        "rejected": dict(found.rejected),
        "objective": {name: value for name, value in vars(objective).items() if value != float("inf")},
        "step_table_errors": {name: error._asdict() for name, error in found.table_errors.items()},
        "assumptions": list(found.assumptions),
    }
    head = f"{counted(num_requests, 'request')}, good within {objective_words(objective)}"
    rows = [served_row(each) for each in shown]
    view: list[Any] = [Text(head, style="bold"), NarrowingTable(rows, "plan", OPTIONAL, NAME_WIDTH)]
    view += [
        Text(line)
        for line in (
            *answer_lines(found),
            *_rejected_lines(found),
            *_error_lines(found),
            _counted_line(found),
        )
    ]
    return Result(
        data, view, {".svg": partial(write_load_svg, found), ".toml": saved.save}, partial(load_report, found, rows, head),
        explanation=[*found.assumptions, *_meaning()],
        took=f"{format_seconds(found.simulate_s)} in the loops of the whole load",
    )  # fmt: skip


def _rejected_lines(found: ServingPlans) -> list[str]:
    return list(dict.fromkeys(why.split("\n")[0] for why in found.rejected.values()))


def _error_lines(found: ServingPlans) -> list[str]:
    """Of the tables of all layouts, the worst."""
    errors = found.table_errors.values()
    if not errors:
        return []
    median, p95 = max(each.median for each in errors), max(each.p95 for each in errors)
    return [
        f"steps are read from tables of simulated ones: {share_text(median, 2)} off in the median, "
        f"at most {share_text(p95, 2)} in 95 of 100"
    ]


def _counted_line(found: ServingPlans) -> str:
    ranked = f"{counted(found.num_ranked, 'plan')} ranked in the busiest time, " if found.num_ranked else ""
    return f"{ranked}{counted(len(found), 'plan')} under the whole load"


def _meaning() -> list[str]:
    return [
        "TTFT counts queueing; TPOT is the mean time of an output's tokens behind its first; every request is in percentiles",
        "dollars and kWh are of a million output tokens, of all devices for the whole time",
        f"a step begins behind the one before; the host adds {format_seconds(HOST_S)} to each, as fitted on a log of vLLM",
    ]
