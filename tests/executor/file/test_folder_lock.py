"""The lock of a folder: kept from other processes, free when its owner ends, however; told where there are no locks."""

from __future__ import annotations

import errno
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from meshwright.executor.file.folder_lock import LOCK_FILE, FolderLock, check_free
from meshwright.specs.error import SpecError

OWNER = """
import sys, time
from pathlib import Path
from meshwright.executor.file.folder_lock import FolderLock

lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("taken", flush=True)
time.sleep(60)
"""


def test_a_folder_is_free_when_its_owner_is_killed(tmp_path: Path) -> None:
    check_free(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "taken\n"
        with pytest.raises(SpecError, match="a running training keeps its checkpoints in"):
            check_free(tmp_path)
        owner.kill()
    check_free(tmp_path)
    FolderLock(tmp_path).take()


def test_a_lock_is_taken_again_after_its_release(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "runs"), FolderLock(tmp_path / "runs")
    first.take()
    with pytest.raises(SpecError, match="wait until it ends"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_where_the_file_system_has_no_locks_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(lock: FileLock) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / LOCK_FILE).touch()
    monkeypatch.setattr(FileLock, "acquire", refuse)
    with caplog.at_level(logging.WARNING):
        check_free(tmp_path)
    assert "No locks available" in caplog.text


def test_a_folder_that_was_removed_is_locked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs"
    first, second = FolderLock(folder), FolderLock(folder)
    first.take()
    first.keep()
    assert not caplog.records
    shutil.rmtree(folder)
    first.keep()
    assert "was removed while it was in use" in caplog.text
    with pytest.raises(SpecError, match="wait until it ends"):
        second.take()
    first.release()
    second.take()


def test_of_two_trainings_in_a_folder_that_was_removed_the_later_one_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    first, second = FolderLock(folder), FolderLock(folder)
    first.take()
    shutil.rmtree(folder)
    second.take()
    with pytest.raises(SpecError, match="a running training keeps its checkpoints"):
        first.keep()
    second.release()
    first.take()
