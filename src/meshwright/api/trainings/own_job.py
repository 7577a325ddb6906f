"""`run_job`: what trains or measures something that is no plan's model, by the name of who offers it."""

from __future__ import annotations

from meshwright import catalog
from meshwright.specs.training.job_report import JobReport, Said


def run_job(what: str, *, seed: int = 0, said: Said | None = None) -> JobReport:
    """Run a job of a system's own; `meshwright list jobs` has all with their options.

    Args:
        what: the name with its options.
        seed: keys every random choice.
        said: is told what is being done.

    Raises:
        PlanError: nobody knows the name, or it has no such option.
        MeshwrightError: as the job says.
    """
    job = catalog.filler("job", what)
    return catalog.job_runner(job)(job, seed, said or (lambda _: None))
