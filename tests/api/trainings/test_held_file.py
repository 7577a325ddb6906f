"""A file is held while its writer has it open, whoever asks how often, and no longer than the writer lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.api.trainings.held_file import hold, is_held

WRITER = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_SH); print(flush=True); input()"


def test_a_file_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        assert not is_held(path)
        hold(file)
        assert is_held(path) and is_held(path)
    assert not is_held(path)
    with pytest.raises(FileNotFoundError):
        is_held(tmp_path / "absent")


def test_a_writer_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert is_held(path)
        writer.kill()
        writer.wait()
    assert not is_held(path)
