"""A training run as a document: its metrics, line by line as they were written, and what was predicted beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.api.trainings.drift import Drift
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import Figure
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.workbench.document.column import Column
from meshwright.workbench.document.document import Document, Section, SeriesLine, SeriesSection
from meshwright.workbench.document.table import cell_text

MOST_POINTS = 4_000  # of a line; of more an even selection
NEEDED = "step"
DRIFT = {each.name for each in fields(Drift)}
Row = Mapping[str, Any]


def metrics_of(text: str, where: str, first: int = 1) -> list[Row]:
    """The lines of a metrics file; the last, which may just be written, may be half a line. `first`: its number
    in the file.

    Raises SpecError where a line is no object with a step.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    found: list[Row] = []
    for number, line in enumerate(lines, first):
        try:
            row = json_of(line)
        except (ValueError, json.JSONDecodeError) as error:
            if number == first + len(lines) - 1 and found and not text.endswith("\n"):
                break
            raise SpecError(
                f"{where}, line {number} is no JSON: {error}", allowed="a line of JSON a step"
            ) from None
        if not isinstance(row, Mapping) or not isinstance(row.get(NEEDED), int):
            raise SpecError(
                f"{where}, line {number} is no step of a training",
                allowed='objects with "step", as `meshwright train --metrics` writes them',
            )
        found.append(row)
    if not found:
        raise SpecError(f"{where} has no steps", next="look again when the first step is done")
    return found


def run_document(path: Path, rows: Sequence[Row]) -> Document:
    """Loss, rates, and measured steps beside predicted ones."""
    last = rows[-1]
    sections: list[Section] = [
        *_series("loss", "Loss", rows, {"training": "loss", "held out": "held_out_loss"}, "nats a token", ""),
        *_series(
            "steps",
            "Seconds of a step",
            rows,
            {"measured": "measured_s", "predicted": "predicted_s"},
            "",
            "s",
        ),
        *_series("rate", "Tokens a second", rows, {"tokens/s": "tokens_per_s"}, "tokens/s", ""),
        *_series("learning_rate", "Learning rate", rows, {"learning rate": "learning_rate"}, "", ""),
        *_series("gradient_norm", "Norm of the gradient", rows, {"before clipping": "gradient_norm"}, "", ""),
    ]
    return Document(
        "run",
        path.name,
        f"{len(rows):,} step{'s' if len(rows) > 1 else ''}, the last is {last[NEEDED]:,}",
        _figures(rows),
        _drifts(rows),
        sections,
    )


def _figures(rows: Sequence[Row]) -> list[Figure]:
    last = rows[-1]
    found = [Figure("step", f"{last[NEEDED]:,}")]
    for name, key, unit in (
        ("loss", "loss", ""),
        ("step time", "measured_s", "s"),
        ("tokens/s", "tokens_per_s", ""),
    ):
        value = _number(last.get(key))
        if value is not None:
            note = (
                f"predicted {quantity(_number(last.get('predicted_s')), 's')}" if key == "measured_s" else ""
            )
            found.append(Figure(name, quantity(value, unit), note))
    share = _number(last.get("mfu"))
    return [*found, Figure("MFU", quantity(share, "share"))] if share is not None else found


def _drifts(rows: Sequence[Row]) -> list[str]:
    """What was told of predicted and measured steps drifting apart."""
    drifts = [row["drift"] for row in rows if isinstance(row.get("drift"), Mapping)]
    return [str(Drift(**each)) if set(each) == DRIFT else cell_text("drift", each) for each in drifts]


def _series(
    id: str, title: str, rows: Sequence[Row], keys: Mapping[str, str], y_title: str, unit: str
) -> list[Section]:
    """One chart over the steps; lines of which nothing is known are left out, and so is a chart without lines."""
    lines = []
    for label, key in keys.items():
        points = [(row[NEEDED], value) for row in rows if (value := _number(row.get(key))) is not None]
        if points:
            x, y = np.array(points, dtype=np.float64)[:: -(-len(points) // MOST_POINTS)].T
            lines.append(SeriesLine(label, Column.exact(x), Column.exact(y)))
    return [SeriesSection(id, title, lines, "step", y_title, y_unit=unit)] if lines else []


def _number(value: Any) -> float | None:
    """A finite number, or nothing."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and np.isfinite(value) else None
