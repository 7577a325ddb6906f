"""How far off steps are that are priced with the constants of other families, as those of a chip are on which no step ran.

Every family of chips is taken for one without a step: its constants are the medians of the others'. What is printed is the
80th percentile of the errors, and of AMD's rows, which nothing was fitted on, every one, beside the median utilisation.

Run: python benchmarks/borrowed_steps.py [TABLE.csv ...]   (tables as `meshwright validate training` reads them)
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from meshwright import catalog
from meshwright.costs.kernel.curve import family_of
from meshwright.costs.step.profile import StepFit, packaged_step_profile
from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.error import MeshwrightError

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "calibration"
USUAL = ("training/*.csv", "training_wild/primus_amd.csv")  # what constants were fitted on, and AMD


def without(family: str, fit: StepFit) -> StepFit:
    """The fit as it would be had no step of the family been measured."""
    others = {name: each for name, each in fit.constants.items() if name != family}
    return replace(fit, constants=others | {family: replace(fit, constants=others).typical})


def steps(rows: Iterable[TrainingRow]) -> Iterator[tuple[str, TrainingJob, Predicted]]:
    """Family, job and prediction of the first core row of every configuration that can be planned."""
    fit, seen = packaged_step_profile().fit, set()
    for row in rows:
        if not row.is_core or row.config_key in seen:
            continue
        seen.add(row.config_key)
        try:
            job = job_of(row)
        except MeshwrightError:
            continue
        family = family_of(job.cluster.devices[0]) or ""
        given = without(family, fit) if family in fit.constants else fit
        schedule = catalog.find_schedule(job.plan.schedule)
        if family:
            yield family, job, predict(job.plan, job.cluster, schedule=schedule, fit=given)


def main() -> int:
    """Print the errors of families, and of rows of chips without steps. Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tables", type=Path, nargs="*", default=sorted(path for each in USUAL for path in BESIDE.glob(each))
    )
    tables = parser.parse_args().tables
    if not tables:
        print(f"skipped: no tables are given and {BESIDE} has none", file=sys.stderr)
        return 0
    measured = packaged_step_profile().fit.constants
    errors: dict[str, list[float]] = defaultdict(list)
    unfitted: list[tuple[TrainingRow, Predicted]] = []
    for family, job, found in steps(read_rows(tables).rows):
        errors[family].append(found.step.value / job.row.measured_s - 1)
        unfitted += [(job.row, found)] if family not in measured else []
    for family, each in sorted(errors.items()):
        sizes = np.abs(each)
        print(
            f"{family}: {len(sizes)} rows, median error {np.median(sizes):.1%}, 80th percentile "
            f"{np.quantile(sizes, 0.8):.1%}, bias {np.median(each):+.1%}"
        )
    used = [found.flops.used(row.measured_s).mfu or 0.0 for row, found in unfitted]
    for (row, found), mfu in zip(unfitted, used, strict=True):
        print(
            f"{row.row_id}: {found.step.value:.2f} s, measured {row.measured_s:.2f} s, "
            f"{found.step.value / row.measured_s - 1:+.1%}; at these rows' own median utilisation "
            f"{mfu / median(used) - 1:+.1%}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
