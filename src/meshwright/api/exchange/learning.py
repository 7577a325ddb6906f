"""`calibrate_runs`: what a user's own runs, logs beside their plans or a table, say of every next plan on such GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.exchange.importing import compare_log
from meshwright.api.subjects.loading import cluster_named
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.own_run import OwnRun
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import counted

if TYPE_CHECKING:
    from meshwright.evidence.log_comparison import LogComparison
    from meshwright.evidence.tables.table import TrainingRow
    from meshwright.prediction.own_runs.posterior import Posterior

PathLike = str | os.PathLike[str]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class LearnedStack:
    """What runs taught.

    Attributes:
        profile: for `--profile`: the runs, of which every verb learns the same again.
        posterior: what they say. comparisons: of the logs among them, in their order.
        left_out: rows of tables that say nothing, with the reason.
    """

    profile: Profile
    posterior: Posterior
    comparisons: tuple[LogComparison, ...] = ()
    left_out: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units, for --json."""
        from meshwright.prediction.own_runs import finding

        weights = finding.weights(self.posterior).tolist()
        return {
            "device": self.profile.device,
            "num_runs": len(self.profile.runs),
            "effective_runs": sum(weights),
            "runs": [
                {
                    "name": run.name,
                    "measured_s": run.measured_s,
                    "predicted_s": run.predicted_s,
                    "ratio": run.ratio,
                    "weight": weight,
                    "is_outlier": weight < finding.OUTLIER,
                }
                for run, weight in zip(self.profile.runs, weights)
            ],
            "factors": [
                {
                    "kind": each.kind,
                    "prior_spread": each.prior,
                    "factor": each.value,
                    "spread": each.spread,
                    "learned": each.learned,
                }
                for each in finding.factors(self.posterior)
            ],
            "readings": finding.readings(self.posterior),
            "scatter_scale": float(self.posterior.scale) ** 0.5,
            "advice": list(finding.advice(self.posterior)),
            "left_out": list(self.left_out),
        }


def calibrate_runs(
    logs: Sequence[tuple[Plan | PathLike, PathLike]] = (),
    tables: Sequence[PathLike] = (),
    *,
    cluster: str | ClusterSpec | None = None,
    progress: Progress | None = None,
) -> LearnedStack:
    """What runs on one kind of GPU teach.

    Args:
        logs: plans with the logs, or saved traces, of their runs.
        tables: CSV files of the calibration schema (`evidence.tables.table`), one measured run a row.
        cluster: where the plans ran, if not where they say.
        progress: told a run and the share that is done.

    Raises SpecError: no run; a log in which no step is, or that is not of its plan; a table with no row that can be
    predicted; runs on different GPUs, or on processes. UnknownNameError: a column that the schema lacks.
    """
    from meshwright.prediction.own_runs.posterior import Posterior
    from meshwright.prediction.own_runs.prior import packaged_priors

    if not logs and not tables:
        raise SpecError("no run is given", allowed="logs with their plans, or tables of runs")
    comparisons, found, left_out = [], list[tuple[str, OwnRun]](), list[str]()
    for plan, log in logs:
        comparison, device, run = _of_log(plan, log, cluster)
        comparisons.append(comparison)
        found.append((device, run))
    for row in _rows(tables):
        if progress is not None:
            progress(row.row_id, (len(found) + len(left_out)) / (len(found) + len(left_out) + 1))
        try:
            found.append(_of_row(row))
        except MeshwrightError as error:
            left_out.append(f"{row.row_id}: {' '.join(str(error).split())}")
    if not found:
        raise SpecError(
            f"no row can be predicted, the first is {left_out[0]}", allowed="rows that say a whole plan"
        )
    device = _one_device(found)
    runs = tuple(run for _, run in found)
    profile = Profile(device=device, runs=runs, source=f"{counted(len(runs), 'run')}: {_names(runs)}")
    return LearnedStack(
        profile, Posterior.of(runs, packaged_priors().fit), tuple(comparisons), tuple(left_out)
    )


def _of_log(
    given: Plan | PathLike, log: PathLike, cluster: str | ClusterSpec | None
) -> tuple[LogComparison, str, OwnRun]:
    """A log beside its plan, the device, and both as a run."""
    from meshwright.prediction.own_runs.trait import run_traits

    plan = given if isinstance(given, Plan) else Plan.load(given)
    # what is measured corrects the prediction, which may so rest on a data sheet
    found = compare_log(plan, log, cluster=cluster, extrapolate=True)
    if found.mistaken:
        raise SpecError(
            f"{log} is not the log of this plan: {found.mistaken}",
            allowed="a plan and the log of its run",
            next="look which plan ran, `meshwright compare PLAN LOG` says more",
        )
    where = cluster_named(cluster or plan.cluster)
    if where.machine.is_here:
        raise SpecError(
            f"{log} is of processes of this machine",
            allowed="runs on GPUs",
            next="`meshwright calibrate` measures the kernels of this machine",
        )
    parts = {part.name: part.seconds for part in found.parts}
    traits = run_traits(plan, where)
    run = OwnRun(Path(log).name, found.run.median_s, found.predicted.value, parts, traits)
    return found, where.devices[0].name, run


def _rows(tables: Sequence[PathLike]) -> list[TrainingRow]:
    """The rows of tables. Raises SpecError where one has a column that the schema lacks, which may be a mistyped one."""
    from meshwright.evidence.tables.table import check_known_columns, read_training_table

    for table in tables:
        check_known_columns(Path(table))
    return [row for table in tables for row in read_training_table(Path(table))]


def _of_row(row: TrainingRow) -> tuple[str, OwnRun]:
    """The device and the run of a row."""
    from meshwright.evidence.tables.job import job_of
    from meshwright.evidence.tables.validate_training import predict_layout

    job = job_of(row)
    found = predict_layout(job.plan, job.cluster)
    run = OwnRun(row.row_id, row.measured_s, found.step.value, found.parts, found.traits)
    return job.cluster.devices[0].name, run


def _one_device(found: Sequence[tuple[str, OwnRun]]) -> str:
    """The GPU of all runs. Raises SpecError where they differ."""
    first = found[0][0]
    for device, run in found:
        if device != first:
            raise SpecError(
                f"run {found[0][1].name} is on {first}, run {run.name} on {device}",
                allowed="runs on one kind of GPU",
                next="make a profile of each",
            )
    return first


def _names(runs: Sequence[OwnRun]) -> str:
    """The first runs by name."""
    names = [run.name for run in runs[:3]]
    return ", ".join(names) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
