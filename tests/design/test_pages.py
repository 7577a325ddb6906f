"""The pages build without a warning, and those of each version stand beside those of the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.design.source import CHECKOUT

BIN = Path(sys.executable).parent  # mike asks the PATH for mkdocs


def _run(folder: Path, *command: str) -> str:
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_versions_stand_beside_each_other(tmp_path: Path) -> None:
    """mike works on the branch of a repository: a new one with these pages."""
    shutil.copy(CHECKOUT / "mkdocs.yml", tmp_path)
    shutil.copytree(CHECKOUT / "docs", tmp_path / "docs")
    _run(tmp_path, "git", "init", "-q")
    _run(tmp_path, "git", "config", "user.name", "test")
    _run(tmp_path, "git", "config", "user.email", "test@example.org")
    _run(tmp_path, "git", "add", ".")
    _run(tmp_path, "git", "commit", "-q", "-m", "pages")
    for version in ("0.1", "0.2"):
        _run(
            tmp_path,
            str(Path(sys.executable).with_name("mike")),
            "deploy",
            "--update-aliases",
            version,
            "latest",
        )
    found = json.loads(_run(tmp_path, "git", "show", "gh-pages:versions.json"))
    assert [(row["version"], row["aliases"]) for row in found] == [("0.2", ["latest"]), ("0.1", [])]
    assert "systems/gpipe/index.html" in _run(tmp_path, "git", "ls-tree", "-r", "--name-only", "gh-pages:0.1")
