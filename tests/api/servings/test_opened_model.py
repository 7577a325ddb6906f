"""A model opened for serving: what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.opened_model import runner_of
from meshwright.specs.error import ExecutionError


def test_one_process_of_many_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of them would serve the whole model."""
    place = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ExecutionError, match="torchrun has started 4 processes.*once on each host"):
        runner_of(tmp_path, EngineChoice())
