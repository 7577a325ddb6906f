"""The held-out loss of plans that divide a model in other ways is that of a pipeline, and so is the training loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import small_plan

from meshwright.api.trainings.training import Training, run_training
from meshwright.executor.job.pool import Pool
from meshwright.specs.training.source import Source

PLANS: dict[str, dict[str, Any]] = {
    "dp": {"pp": 1, "dp": 2},
    "tp": {"pp": 1, "tp": 2},
    "tp and sequences": {"pp": 1, "tp": 2, "sequence_parallel": True},
    "zero1": {"pp": 1, "dp": 2, "sharding": "zero1"},
    "zero3": {"pp": 1, "dp": 2, "sharding": "zero3"},
    "split vocabulary": {"vocabulary": "one_barrier"},
    "split vocabulary, two barriers": {"vocabulary": "two_barriers"},
    "dualpipe": {"schedule": "dualpipe"},
}
TOLERANCE = 1e-4  # of loss curves in float32


@pytest.mark.slow
def test_every_layout_finds_the_same_held_out_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"part {number} of what is to be learned. " * 20)

    def trained(pool: Pool, **choices: Any) -> Training:
        source = Source(tmp_path, evaluate_every=1, num_evaluated=2)
        return run_training(
            small_plan(**choices), iterations=2, source=source, pool=pool, measures_memory=False
        )

    with Pool(2) as pool:
        expected = trained(pool)
        assert len(expected.held_out_losses) == 2
        for name, choices in PLANS.items():
            found = trained(pool, **choices)
            assert found.held_out_losses == pytest.approx(expected.held_out_losses, rel=TOLERANCE), name
            assert found.result.losses == pytest.approx(expected.result.losses, rel=TOLERANCE), name
