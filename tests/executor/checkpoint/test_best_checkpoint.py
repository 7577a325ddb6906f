"""The best checkpoint: its name is written as the latest one's, it is swept by nobody, and it is never another's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.api import verify_checkpoint
from meshwright.executor.checkpoint.folder import (
    BEST,
    LATEST,
    begin,
    best_before,
    checkpoint_at,
    folder_and_name,
    latest_checkpoint,
    publish,
    recover,
    steps_in,
)
from meshwright.executor.checkpoint.index import INDEX_FILE, CheckpointIndex, CheckpointInfo
from meshwright.executor.file.new_file import watching
from meshwright.specs.error import SpecError


class Crash(Exception):
    """What a process dies of."""


def _publish(folder: Path, step: int, keep: int = 1, is_best: bool = False) -> None:
    partial = begin(folder, step)
    (partial / INDEX_FILE).write_text(CheckpointIndex(CheckpointInfo(step), {}, {}).text())
    publish(partial, keep, is_best)


def test_the_best_stays_whatever_is_swept(tmp_path: Path) -> None:
    for step, is_best in ((1, True), (2, True), (3, False), (4, False)):
        _publish(tmp_path, step, is_best=is_best)
    assert steps_in(tmp_path) == [2, 4]
    assert checkpoint_at(tmp_path / BEST) == tmp_path / "step-2" == best_before(tmp_path, 4)
    assert checkpoint_at(tmp_path / LATEST) == tmp_path / "step-4" == checkpoint_at(tmp_path)
    assert latest_checkpoint(*folder_and_name(tmp_path / BEST)) == tmp_path / "step-2"
    assert verify_checkpoint(tmp_path / BEST).problems.keys() == {tmp_path / "step-2"}
    _publish(tmp_path, 5, is_best=True)
    assert steps_in(tmp_path) == [5] and checkpoint_at(tmp_path / BEST) == tmp_path / "step-5"


def test_a_training_that_goes_back_before_its_best_forgets_the_name(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _publish(tmp_path, step, keep=3, is_best=step < 3)
    assert best_before(tmp_path, 2) == tmp_path / "step-2"
    assert best_before(tmp_path, 1) is None and not (tmp_path / BEST).exists()
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("text", ["step-9", "", "no\xffne"])
def test_a_name_of_no_best_is_refused_and_the_latest_stays(tmp_path: Path, text: str) -> None:
    _publish(tmp_path, 1, is_best=True)
    (tmp_path / BEST).write_text(text, encoding="latin-1")
    for find in (checkpoint_at, lambda path: latest_checkpoint(*folder_and_name(path))):
        with pytest.raises(SpecError, match="best names no checkpoint that is there"):
            find(tmp_path / BEST)
    assert checkpoint_at(tmp_path) == tmp_path / "step-1" and best_before(tmp_path, 1) is None


def test_a_crash_while_the_best_is_published_leaves_whole_ones(tmp_path: Path) -> None:
    """At every change of the disk: what `best` names is there, and what `latest` names."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        _publish(folder, 1, is_best=True)
        changes = itertools.count()

        def die(operation: str, path: Path, at: int = at, changes: Iterator[int] = changes) -> None:
            if next(changes) == at:
                raise Crash

        try:
            with watching(die):
                _publish(folder, 2, is_best=True)
        except Crash:
            recover(folder)
            assert checkpoint_at(folder / BEST).name in ("step-1", "step-2")
            assert checkpoint_at(folder) in (folder / "step-1", folder / "step-2")
            continue
        assert at > 5
        return
