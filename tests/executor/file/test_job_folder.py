"""Folders of jobs: gone when the job ends, swept by the next where its owner was killed, never under a living one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from meshwright.executor.file.job_folder import OWNED, PREFIX, job_folder, sweep

OWNER = """
import time
from meshwright.executor.file.job_folder import job_folder

with job_folder() as folder:
    (folder / "large.npz").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR of the test, also of what it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_job_however_that_ends(tmp_path: Path) -> None:
    with job_folder() as folder:
        (folder / "inner").mkdir()
        assert folder.parent == tmp_path and folder.name.startswith(PREFIX)
    with pytest.raises(KeyboardInterrupt), job_folder():
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_is_swept_by_the_next_and_never_before(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with job_folder():
            assert (left / "large.npz").is_file()
        owner.kill()
    assert (left / "large.npz").is_file()
    with job_folder() as folder:
        assert not left.exists() and list(tmp_path.iterdir()) == [folder]


def test_folders_of_others_and_without_a_lock_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}plain").mkdir()
    theirs = tmp_path / f"{PREFIX}theirs"
    theirs.mkdir()
    (theirs / OWNED).touch()
    (tmp_path / "meshwright-corpus").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.undo()
    sweep(tmp_path)
    assert not theirs.exists() and len(list(tmp_path.iterdir())) == 2
