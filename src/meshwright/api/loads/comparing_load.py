"""`compare_load`: what a plan says of a load beside what a server did with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.evidence.load_comparison import LoadComparison
from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.serving.load.load_record import LoadFigures
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError


def compare_load(
    predicted: ServedPlan | Mapping[str, Any] | str | Path, measured: LoadFigures | Mapping[str, Any] | str | Path
) -> LoadComparison:  # fmt: skip
    """Figures, ratios, and what they mean for the plan.

    Args:
        predicted: a plan of `plan_load`, or what `plan --requests -o FILE.json` wrote, whose first layout is taken.
        measured: what `bench_serve` gave, or what `bench serve -o FILE.json` wrote.

    Raises SpecError where a file is neither, or they are of different loads.
    """
    if isinstance(predicted, ServedPlan):
        predicted = predicted.to_dict()
    elif not isinstance(predicted, Mapping):
        predicted = _first_layout(Path(predicted))
    if isinstance(measured, LoadFigures):
        measured = asdict(measured)
    elif not isinstance(measured, Mapping):
        measured = _read(Path(measured), "num_finished", "`bench serve -o FILE.json`")
    return LoadComparison.of(predicted, measured)


def _first_layout(file: Path) -> Mapping[str, Any]:
    layouts = _read(file, "layouts", "`plan MODEL CLUSTER --requests FILE -o FILE.json`")["layouts"]
    if not isinstance(layouts, list) or not layouts:
        raise SpecError(f"{file} has no layout", allowed="one at least")
    found: Mapping[str, Any] = layouts[0]
    return found


def _read(file: Path, field: str, writer: str) -> dict[str, Any]:
    """A result as JSON. Raises SpecError where it is not this command's."""
    try:
        found = json_of(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}", allowed=f"what {writer} writes") from None
    if not isinstance(found, dict) or field not in found:
        raise SpecError(f"{file} has no {field}", allowed=f"what {writer} writes")
    return found
