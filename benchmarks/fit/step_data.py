"""Measured training steps, ready to be fitted and predicted: rows with their plans, programs and families of chips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.costs.kernel.curve import family_of
from meshwright.costs.step.step_costs import StepConstants
from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.step_program import StepProgram, simulated_s, step_program
from meshwright.specs.error import MeshwrightError

Progress = Callable[[str, float], None]
# Rows that say they recompute everything and reach more of the peak than products do did not: they are predicted, not
# fitted (of A100 and H100 products alone reach 0.67 to 0.7 in steps).
MOST_UTILISATION = 0.70


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """A row with what is simulated for it."""

    job: TrainingJob
    program: StepProgram
    family: str

    @property
    def row(self) -> TrainingRow:
        """The row of the table."""
        return self.job.row

    @property
    def is_fitted(self) -> bool:
        """May constants be fitted on it? Not where it does what no price has, nor where its recompute was partial."""
        plan = self.job.plan
        if self.job.unpriced:
            return False
        if plan.recompute != "full":
            return True
        tokens = plan.workload.global_batch * plan.workload.sequence_length
        flops = tokens * plan.model.train_flops_per_token(plan.workload.sequence_length) * 4 / 3
        peak = self.job.cluster.devices[0].peak_flops_per_s("float8" if plan.float8 else plan.dtype)
        return flops / (self.row.measured_s * plan.num_devices * peak) <= MOST_UTILISATION

    def predict(self, constants: StepConstants) -> float:
        """Seconds of a step at these constants."""
        return simulated_s(self.program, constants)


def measured_steps(
    rows: Sequence[TrainingRow], progress: Progress | None = None
) -> tuple[list[MeasuredStep], dict[str, str]]:
    """Rows that can be planned and priced, and of the others (row_id) the reason."""
    found, skipped = [], {}
    for number, row in enumerate(rows):
        if progress is not None:
            progress(row.row_id, number / len(rows))
        try:
            job = job_of(row)
            family = family_of(job.cluster.devices[0])
            if family is None:
                skipped[row.row_id] = f"no step was measured on a relative of {job.cluster.devices[0].name}"
                continue
            found.append(MeasuredStep(job, step_program(job.plan, job.cluster), family))
        except MeshwrightError as error:
            skipped[row.row_id] = str(error)
    return found, skipped
