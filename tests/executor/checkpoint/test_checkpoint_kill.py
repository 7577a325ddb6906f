"""Twenty random SIGKILLs of a training that saves after every step: it always goes on from a whole checkpoint, bitwise."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.planned_case import Planned

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.folder import latest_checkpoint
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.checkpoint.verify import problems
from meshwright.executor.job.gather import Iteration
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.stage.mesh import device_order

NUM_KILLS = 20
LONGEST_S = (
    1.0  # between the first step of a run and its end; a step and its save take some hundredths of a second
)
FOREVER = 100_000  # iterations of a run that is going to be killed
CASE = Planned("tied", choices={"pp": 2, "schedule": "1f1b", "dtype": "float32"})


class Killed:
    """One run of the job that is killed, one of its ranks or all, some time after its first step."""

    def __init__(self, pool: Pool, draw: random.Random) -> None:
        self.pool, self.draw = pool, draw
        self.losses: list[float] = []

    def progress(self, iteration: Iteration) -> None:
        """Called after every iteration; the first one starts the clock."""
        self.losses.append(iteration.loss)
        if iteration.number == 0:
            ids = self.pool.process_ids
            doomed = ids if self.draw.random() < 0.5 else (self.draw.choice(ids),)
            threading.Timer(self.draw.uniform(0.0, LONGEST_S), self._kill, [doomed]).start()

    @staticmethod
    def _kill(process_ids: tuple[int, ...]) -> None:
        for process_id in process_ids:
            os.kill(process_id, signal.SIGKILL)


def resume(
    pool: Pool, folder: Path, iterations: int, killed: Killed | None = None
) -> tuple[int, list[float]]:
    """Go on from what is there, after seeing that it is whole: the first step, and the losses that were reached."""
    found = latest_checkpoint(folder)
    first = 0
    if found is not None:
        assert problems(found) == []
        first = read_index(found).info.step
    job, plan = CASE.job(iterations, first_step=first)
    config = CheckpointConfig(
        Checkpoints(str(folder), every=1, keep=2), resume_from="" if found is None else str(found)
    )
    job = replace(job, checkpoints=config)
    if killed is None:
        return first, pool.run(job, places=device_order(plan)).losses
    with pytest.raises(ExecutionError):
        pool.run(job, places=device_order(plan), progress=killed.progress)
    return first, killed.losses


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_kills(tmp_path: Path, gloo_pool: Pool) -> None:
    draw, seen, begins = random.Random(5), dict[int, float](), []
    with Pool(2) as pool:
        for _ in range(NUM_KILLS):
            first, losses = resume(pool, tmp_path, FOREVER, Killed(pool, draw))
            begins.append(first)
            for step, loss in enumerate(losses, first):
                assert seen.setdefault(step, loss) == loss, f"step {step} was another one before"
    first, losses = resume(gloo_pool, tmp_path, 3)
    for step, loss in enumerate(losses, first):
        assert seen.setdefault(step, loss) == loss
    job, plan = CASE.job(max(seen) + 1)
    assert gloo_pool.run(job, places=device_order(plan)).losses == [seen[step] for step in sorted(seen)]
    assert begins == sorted(begins) and len(set(begins)) > NUM_KILLS / 2  # it gets on
