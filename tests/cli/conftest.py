"""What the tests of the command line share: a runner, a cache of their own, files to work on, the pool of workers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright import api
from meshwright.executor.job.pool import Pool
from tests.cli.running import Runner, rough_profile, runner, small_plan
from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """Runs a command in this process; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield runner(capsys)
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are as wide as where nobody says how wide; what starts the tests may."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache that is empty and of this test alone; and no width of a terminal, which a shell may hand on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def profile(cache: Path) -> None:
    """A profile in the cache, so that nothing has to be measured."""
    rough_profile().save(cache / "meshwright" / "profile.json")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A small plan for two processes."""
    path = tmp_path / "plan.toml"
    small_plan().save(path)
    return path


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """A simulated trace."""
    path = tmp_path / "trace.npz"
    api.simulate(schedule="1f1b", stages=2, microbatches=2).save(path)
    return path


@pytest.fixture
def checkpoint_folder(tmp_path: Path) -> Path:
    """A folder of checkpoints with one, of one tensor."""
    import torch

    from meshwright.executor.checkpoint.checkpoint import RankCheckpoints
    from meshwright.executor.checkpoint.config import CheckpointConfig
    from meshwright.executor.checkpoint.index import CheckpointInfo
    from meshwright.executor.checkpoint.planner import RankFacts
    from meshwright.executor.layout.piece import Piece
    from meshwright.specs.training.checkpoints import Checkpoints

    folder = tmp_path / "checkpoints"
    made = RankCheckpoints(
        CheckpointConfig(Checkpoints(str(folder))), lambda: [Piece("a", (3,), (0,), torch.ones(3))]
    )
    made.save(CheckpointInfo(1), RankFacts())
    made.close()
    return folder


@pytest.fixture
def schedule_file(tmp_path: Path) -> Path:
    """A user's file of schedules: one that is legal, one that is not, one that crashes."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def wave(p, m):\n"
        "    return [[f'F{k}' for k in range(m)] + [f'B{k}' for k in range(m)] for _ in range(p)]\n\n\n"
        "def backwards(p, m):\n"
        "    return [list(reversed(row)) for row in wave(p, m)]\n\n\n"
        "def crash(p, m):\n"
        "    return 1 / 0\n"
    )
    return path


@pytest.fixture
def shared_pool(gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Commands that train use the session's pool."""

    monkeypatch.setattr("meshwright.executor.job.pool.Pool", lambda number: contextlib.nullcontext(gloo_pool))
    return gloo_pool
