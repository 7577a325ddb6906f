"""Placements as tables and pictures: what each does to moves and loads, and how that grows over the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from meshwright.api.subjects.placing import PlacedExperts, PlacementTrial, StepsTrial
from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import CHARACTER_WIDTH
from meshwright.specs.error import SpecError

WIDTH, HEIGHT = 760, 380  # pixels
LINE_HEIGHT = 15  # pixels of a name
PLOTTED = 0.85  # of the picture


def placement_rows(trial: PlacementTrial) -> list[dict[str, Any]]:
    """A row for each algorithm."""
    rows = []
    for each in trial.rows:
        row = {
            "by": each.name, "leave the device": _share(each.moved), "fitted": _share(each.moved_fitted),
            "by loads alone": _share(each.moved_by_loads),
        }  # fmt: skip
        if trial.shape.num_nodes > 1:
            row["leave the node"] = _share(each.moved_nodes)
        rows.append({**row, "busiest": f"{each.imbalance:.2f}"})
    return rows


def steps_rows(found: Sequence[StepsTrial]) -> list[dict[str, Any]]:
    """A row for each algorithm and every run of steps."""
    rows = []
    for each in found:
        num_devices = each.trial.shape.num_devices
        for row in each.trial.rows:
            stay = None if row.moved is None else 1 - row.moved
            by_loads = None if row.moved_by_loads is None else 1 - row.moved_by_loads
            rows.append(
                {
                    "steps": _steps(each), "affinity (bits)": f"{each.trial.affinity_bits:.3f}", "by": row.name,
                    "stay": _share(stay), "of chance": "" if stay is None else f"{stay * num_devices:.2f}",
                    "by loads alone": _share(by_loads), "busiest": f"{row.imbalance:.2f}",
                }
            )  # fmt: skip
    return rows


def write_trade_off(trial: PlacementTrial, path: Path) -> None:
    """Every placement as a point: moves that leave the device against the busiest device, on tokens not fitted to. A line
    joins those that no other beats in both."""
    placed = [each for each in trial.rows if each.moved is not None]
    if not placed:
        raise SpecError("placements with copies only", allowed="one without, whose moves can be counted")
    front, labels = undominated(placed), names_apart(placed)
    chart = Chart(
        [
            Series("", *_places(front), place=0, dashed=True),
            Series("", *_places(placed), "points", labels, [each.name for each in placed], place=0),
        ],
        f"{trial.shape.num_devices} devices, {trial.others.num_tokens:,} tokens that were not fitted to",
        "share of moves that leave the device", "busiest device over the mean", width=WIDTH, height=HEIGHT, legend=False,
    )  # fmt: skip
    path.write_text(chart_svg(chart) + "\n", encoding="utf-8")


def undominated(placed: Sequence[PlacedExperts]) -> list[PlacedExperts]:
    """Those that no other equals or beats in both moves and load, the fewest moves first."""
    found: list[PlacedExperts] = []
    for each in sorted(placed, key=lambda row: (row.moved or 0.0, row.imbalance)):
        if not found or each.imbalance < found[-1].imbalance:
            found.append(each)
    return found


def names_apart(placed: Sequence[PlacedExperts]) -> list[str]:
    """Names beside points, of those whose text covers no other one; the rest is told when pointed at."""
    x, y = (_scaled(each, size) for each, size in zip(_places(placed), (WIDTH, HEIGHT), strict=True))
    labels: list[str] = []
    for place, each in enumerate(placed):
        wide = CHARACTER_WIDTH * len(each.name)
        is_covered = any(
            labels[other]
            and abs(y[place] - y[other]) < LINE_HEIGHT
            and -wide < x[place] - x[other] < CHARACTER_WIDTH * len(labels[other])
            for other in range(place)
        )
        labels.append("" if is_covered else each.name)
    return labels


def _scaled(values: Sequence[float], size: int) -> list[float]:
    """In pixels, as far as the plot is nearly as large as the picture."""
    low, high = min(values), max(values)
    return [(each - low) / ((high - low) or 1.0) * size * PLOTTED for each in values]


def write_growth(found: Sequence[StepsTrial], path: Path) -> None:
    """The share of moves that stay on their device, step by step; dashed what loads alone keep there."""
    names = [row.name for row in found[0].trial.rows if row.moved is not None]
    if not names:
        raise SpecError("placements with copies only", allowed="one without, whose moves can be counted")
    last, series = [each.last for each in found], []
    form: Literal["line", "points"] = "line" if len(found) > 1 else "points"
    for place, name in enumerate(names):
        rows = [next(row for row in each.trial.rows if row.name == name) for each in found]
        series += [
            Series(name, last, [1 - (row.moved or 0.0) for row in rows], form, place=place),
            Series("", last, [1 - (row.moved_by_loads or 0.0) for row in rows], place=place, dashed=True),
        ]
    shape = found[0].trial.shape
    chart = Chart(
        series, f"Moves that stay on one of {shape.num_devices} devices; dashed: by loads alone", "step", "share that stays",
        levels=[("by chance", 1 / shape.num_devices)], y_from_zero=True, width=WIDTH, height=HEIGHT,
    )  # fmt: skip
    path.write_text(chart_svg(chart) + "\n", encoding="utf-8")


def _places(placed: Sequence[PlacedExperts]) -> tuple[list[float], list[float]]:
    return [each.moved or 0.0 for each in placed], [each.imbalance for each in placed]


def _steps(each: StepsTrial) -> str:
    return str(each.first) if each.first == each.last else f"{each.first} to {each.last}"


def _share(value: float | None) -> str:
    return "copies" if value is None else f"{value:.1%}"
