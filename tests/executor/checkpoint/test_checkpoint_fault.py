"""Crashes and failures at every write, fsync, rename, mkdir and remove of a save: a whole checkpoint is always there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.executor.checkpoint.stored_case import assert_same, cut, save, stored, tensors, whole
from torch import Tensor

from meshwright.executor.checkpoint import storage as checkpoint_storage
from meshwright.executor.checkpoint.folder import latest_checkpoint, steps_in
from meshwright.executor.checkpoint.verify import problems
from meshwright.executor.file.new_file import watching
from meshwright.specs.error import ExecutionError

NUM_OPERATIONS = 15  # of the shortest save at least: files, folder, names; so that a test of none is noticed


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matters is that fsync is called, which `Disk` sees; a thousand of them take a minute."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Crash(BaseException):
    """The machine has lost its power."""


class Disk:
    """Counts operations, fails from the `fails_at`-th on, and knows what is not flushed then."""

    def __init__(self, fails_at: int, error: BaseException, only: str = "", once: bool = False) -> None:
        self.fails_at, self.error, self.only, self.once = fails_at, error, only, once
        self.done: list[str] = []
        self.unflushed: set[Path] = set()  # files whose content may be lost
        self.unnamed: set[Path] = set()  # files that their folder may not know
        self.careless: list[Path] = []  # what was published although it might be lost

    def __call__(self, operation: str, path: Path) -> None:
        """What `watching` calls before every operation."""
        if self.only in ("", operation):
            self.done.append(f"{operation} {path.name}")
            number = len(self.done)
            if number == self.fails_at or (number > self.fails_at and not self.once):
                raise self.error
        if operation == "write":
            self.unflushed.add(path)
            self.unnamed.add(path)
        elif operation == "fsync":
            self.unflushed.discard(path)
            self.unnamed -= {file for file in self.unnamed if file.parent == path}
        elif operation == "rename":
            self.careless += [file for file in self.unnamed if path in file.parents]
            self.careless += [file for file in self.unflushed if path in (file, *file.parents)]

    def lose_power(self) -> None:
        """What was not flushed is half there."""
        for path in self.unflushed:
            if path.exists():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


Situation = Callable[[Path], None]


def first(folder: Path) -> None:
    """Nothing is there."""


def second(folder: Path) -> None:
    """One is there, and `keep=1` removes it."""
    save(folder, 10, cut(tensors(10.0), 1))


def again(folder: Path) -> None:
    """A training has gone back from step 20 to step 10, and comes to step 20 again."""
    save(folder, 20, cut(tensors(-20.0), 2))
    save(folder, 10, cut(tensors(10.0), 1))


def prepare(folder: Path, situation: Situation) -> None:
    """The folder in this situation: saved once beside it, then copied."""
    kept = folder.with_name(f"kept-{situation.__name__}")
    if not kept.exists():
        situation(kept)
    if kept.exists():
        shutil.copytree(kept, folder)


def known(step: int) -> list[dict[str, Tensor]]:
    """What a checkpoint of this step may hold."""
    return [tensors(10.0)] if step == 10 else [tensors(20.0), tensors(-20.0)]


def operations(folder: Path, situation: Situation) -> list[str]:
    """Of a save at step 20 that nothing disturbs."""
    situation(folder)
    disk = Disk(10**9, Crash())
    with watching(disk):
        save(folder, 20, cut(tensors(20.0), 3), keep=1)
    assert not disk.unflushed and not disk.careless, "files and names are flushed before they are published"
    return disk.done


def assert_whole(folder: Path, is_required: bool) -> None:
    """What is gone on from is whole and holds what was saved; the folder is in order and takes the next one."""
    latest = latest_checkpoint(folder)
    assert latest is not None or not is_required
    if latest is not None:
        assert problems(latest) == []
        found = stored(latest)
        candidates = known(int(latest.name.split("-")[1]))
        assert any(all(found[n].equal(t) for n, t in one.items()) for one in candidates)
    for step in steps_in(folder):
        assert problems(folder / f"step-{step}") == []
    if folder.exists():
        names = {path.name for path in folder.iterdir()} - {"latest"}
        assert names == {f"step-{step}" for step in steps_in(folder)}
    assert_same(stored(save(folder, 30, whole(tensors(30.0)))), tensors(30.0))
    assert latest_checkpoint(folder) == folder / "step-30"


@pytest.mark.parametrize("situation", [first, second, again])
def test_a_crash_anywhere_leaves_a_whole_checkpoint(situation: Situation, tmp_path: Path) -> None:
    count = len(operations(tmp_path / "whole", situation))
    assert count >= NUM_OPERATIONS
    for number in range(1, count + 1):
        folder = tmp_path / str(number)
        prepare(folder, situation)
        disk = Disk(number, Crash())
        with watching(disk), pytest.raises((Crash, ExecutionError)):
            save(folder, 20, cut(tensors(20.0), 3), keep=1)
        assert len(disk.done) == number, "after a crash nothing more is done"
        disk.lose_power()
        assert_whole(folder, is_required=situation is not first)


def test_a_crash_while_order_is_made_does_no_harm(tmp_path: Path) -> None:
    for number in range(1, len(operations(tmp_path / "whole", again)) + 1):
        folder = tmp_path / str(number)
        prepare(folder, again)
        with watching(Disk(number, Crash())), pytest.raises((Crash, ExecutionError)):
            save(folder, 20, cut(tensors(20.0), 3), keep=1)
        for crash in range(1, 6):  # the first operations of `recover`, one crash after the other
            with watching(Disk(crash, Crash())):
                try:
                    latest_checkpoint(folder)
                except Crash:
                    continue
        assert_whole(folder, is_required=True)


@pytest.mark.parametrize("situation", [first, second, again])
def test_one_failure_anywhere_is_told_and_does_no_harm(situation: Situation, tmp_path: Path) -> None:
    done = operations(tmp_path / "whole", situation)
    num_told = 0
    for number in range(1, len(done) + 1):
        folder = tmp_path / str(number)
        prepare(folder, situation)
        error = OSError(errno.EIO, "the disk is broken")
        with watching(Disk(number, error, once=True)):
            try:
                save(folder, 20, cut(tensors(20.0), 3), keep=1)
            except ExecutionError as told:
                num_told += 1
                assert "the disk is broken" in str(told)
        assert_whole(folder, is_required=situation is not first)
    removing = sum(
        "step-10" in line for line in done
    )  # what cannot be removed is a warning: the new one is there
    assert num_told >= len(done) - removing - 2


def test_a_full_disk_leaves_the_one_before_and_says_how_much_is_missing(tmp_path: Path) -> None:
    situation = second
    count = sum(line.startswith("write") for line in operations(tmp_path / "whole", situation))
    for number in range(1, count + 1):
        folder = tmp_path / str(number)
        prepare(folder, situation)
        full = Disk(number, OSError(errno.ENOSPC, "No space left on device"), only="write")
        with watching(full), pytest.raises(ExecutionError, match=r"it needs .* \(\d+ bytes\), .* are free"):
            save(folder, 20, cut(tensors(20.0), 3), keep=1)
        assert not list(folder.glob("*.partial")), "a full disk is not left fuller"
        assert_whole(folder, is_required=True)


def test_what_cannot_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(checkpoint_storage, "free_bytes", lambda folder: 100)
    disk = Disk(1, Crash())
    with (
        watching(disk),
        pytest.raises(ExecutionError, match=r"\(100 bytes\) are free; those that were there are whole"),
    ):
        save(tmp_path, 20, cut(tensors(20.0), 3))
    assert not disk.done and sorted(tmp_path.iterdir()) == before
