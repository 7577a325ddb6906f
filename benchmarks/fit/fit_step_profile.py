"""Fits the constants of the step profile on tables of measured training steps, and writes the package's data.

python -m benchmarks.fit.fit_step_profile TABLE.csv ... -o src/meshwright/costs/profiles/steps.json

Its intervals are the expected ones until `fit_widths` has seen how far measured steps are from what it predicts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.costs.step.profile import MANY_DEVICES, StepProfile
from meshwright.evidence.tables.table import read_training_table

from .cross_validation import Folds, folds_of
from .step_data import MeasuredStep, measured_steps

SOURCE = "core rows of the published training runs that NOTICE names; constants fitted by benchmarks/fit/fit_step_profile.py"


def seen(steps: Sequence[MeasuredStep]) -> dict[str, dict[str, Any]]:
    """For each device what ran on it: the largest number of them, float8, experts."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        plan = step.job.plan
        of = found.setdefault(
            step.job.cluster.devices[0].name, {"most_devices": 0, "float8": False, "experts": False}
        )
        of["most_devices"] = max(of["most_devices"], plan.num_devices)
        of["float8"] = of["float8"] or bool(plan.float8)
        of["experts"] = of["experts"] or bool(plan.model.num_experts)
    return found


def step_profile(folds: Folds) -> StepProfile:
    """The fit of all rows, one without each source, and one without rows of many devices."""
    sources = sorted({step.row.source for step in folds.steps})
    left_out = {source: folds.fit((source,)) for source in sources}
    left_out[MANY_DEVICES] = folds.fit((MANY_DEVICES,), "size")
    return StepProfile(folds.fit(), left_out, seen(folds.steps), SOURCE)


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files of measured training steps")
    parser.add_argument("-o", "--output", required=True, type=Path)
    chosen = parser.parse_args(arguments)
    rows = [row for table in chosen.tables for row in read_training_table(table) if row.is_core]
    steps, skipped = measured_steps(rows)
    for row_id, reason in skipped.items():
        sys.stderr.write(f"{row_id}: {reason}\n")
    profile = step_profile(folds_of(steps))
    chosen.output.write_text(json.dumps(profile.to_dict(), indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(
        f"{len(steps)} rows, {len({step.row.source for step in steps})} sources -> {chosen.output}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
