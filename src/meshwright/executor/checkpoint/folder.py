"""A folder of checkpoints: which there are, which one to go on from, publishing a new one, and order after a crash.

A crash at any point leaves every checkpoint that was published before, whole:

1. all files are written into ``step-N.partial`` and flushed;
2. an older ``step-N``, of a training that began again at an earlier step, is renamed to ``step-N.replaced``;
3. ``step-N.partial`` is renamed to ``step-N``;
4. ``latest`` is written aside and renamed, and so is ``best`` where no checkpoint before had a smaller held-out loss;
5. what is no longer kept is renamed to ``step-M.removed`` and deleted; the best one is always kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from pathlib import Path

from meshwright.executor.checkpoint.index import INDEX_FILE
from meshwright.executor.file.folder_lock import check_free
from meshwright.executor.file.new_file import make_folder, remove, rename, write_text
from meshwright.specs.error import SpecError

LATEST, BEST = "latest", "best"  # files that name a checkpoint
PARTIAL, REPLACED, REMOVED, ASIDE = ".partial", ".replaced", ".removed", ".new"
_STEP = re.compile(r"step-(\d+)")
_log = logging.getLogger(__name__)


def step_name(step: int) -> str:
    """Name of the checkpoint that was made when `step` steps were done."""
    return f"step-{step}"


def step_folders(folder: Path) -> list[Path]:
    """All that are named like a checkpoint, in order of steps, whatever is in them."""
    found = (_STEP.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return [folder / name[0] for name in sorted(filter(None, found), key=lambda name: int(name[1]))]


def steps_in(folder: Path) -> list[int]:
    """Steps of all published checkpoints, in order."""
    published = (path for path in step_folders(folder) if (path / INDEX_FILE).is_file())
    return [int(path.name.partition("-")[2]) for path in published]


def folder_and_name(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of checkpoints and which of them is meant: of "runs/best" runs and its best one, else the latest."""
    root = Path(path)
    if root.name in (LATEST, BEST) and root.is_file():
        return root.parent, root.name
    return root, LATEST


def latest_checkpoint(folder: str | os.PathLike[str], name: str = LATEST) -> Path | None:
    """The checkpoint to go on from, after putting the folder in order; None where there is none. `name`: BEST for the best.

    Raises:
        SpecError: `folder` is something else, a running training uses it, or no checkpoint is the best.
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise SpecError(f"{root} is a file", allowed="a folder of checkpoints")
    check_free(root)
    recover(root)
    steps = steps_in(root)
    if not steps:
        return None
    named = named_step(root, name)
    if named not in steps:
        if name == BEST:
            raise _no_best(root)
        _log.warning(
            "%s names no checkpoint that is there; step %d is the last one", root / LATEST, steps[-1]
        )
        named = steps[-1]
    return root / step_name(named)


def checkpoint_at(path: str | os.PathLike[str]) -> Path:
    """One checkpoint: `path` itself, what the file `path` names ("runs/best"), or the latest of a folder of checkpoints.

    Raises:
        SpecError: it is neither.
    """
    root, name = folder_and_name(path)
    if (root / INDEX_FILE).is_file():
        return root
    steps, named = steps_in(root), named_step(root, name)
    if not steps:
        raise SpecError(
            f"{root} has no checkpoint",
            allowed="the folder of one checkpoint (runs/step-40), a folder of checkpoints (runs), or its best (runs/best)",
        )
    if name == BEST and named not in steps:
        raise _no_best(root)
    return root / step_name(named if named in steps else steps[-1])


def _no_best(folder: Path) -> SpecError:
    return SpecError(
        f"{folder / BEST} names no checkpoint that is there",
        allowed="a folder of a training that was evaluated (--evaluate-every)",
        next=f"take the latest, {folder}",
    )


def named_step(folder: Path, name: str = LATEST) -> int | None:
    """What `latest` says, or `best`."""
    try:
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _STEP.fullmatch(text.strip())
    return int(found[1]) if found else None


def recover(folder: Path) -> None:
    """Remove what a crash has left, and put back what it had only moved away."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name, suffix = path.name.removesuffix(path.suffix), path.suffix
        if suffix == ASIDE and name in (LATEST, BEST):
            remove(path)
        if suffix not in (PARTIAL, REPLACED, REMOVED) or not _STEP.fullmatch(name):
            continue
        if suffix == REPLACED and not (folder / name).exists():
            _log.warning(
                "%s was being replaced when a training ended; the old one is put back", folder / name
            )
            with contextlib.suppress(FileNotFoundError):  # another process of the same job has done it
                rename(path, folder / name)
        else:
            _log.info("removing %s, which was not finished", path)
            remove(path)


def begin(folder: Path, step: int) -> Path:
    """An empty place for a new checkpoint."""
    make_folder(folder)
    partial = folder / (step_name(step) + PARTIAL)
    if partial.exists():
        remove(partial)
    make_folder(partial)
    return partial


def publish(partial: Path, keep: int, is_best: bool = False) -> Path:
    """Let a finished checkpoint be the latest, and the best where it is, and remove those that are no longer kept."""
    folder, final = partial.parent, partial.with_suffix("")
    replaced = final.with_suffix(REPLACED)
    if final.exists():
        if replaced.exists():
            remove(replaced)
        rename(final, replaced)
    rename(partial, final)
    for name in (LATEST, BEST)[: 1 + is_best]:
        aside = folder / (name + ASIDE)
        write_text(aside, final.name + "\n")
        rename(aside, folder / name)
    if replaced.exists():
        remove(replaced)
    _prune(folder, keep)
    return final


def _prune(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` up to the latest, and the best.

    Later ones are of a training that somebody went back from: they are replaced when this one gets there.
    """
    latest, best = named_step(folder), named_step(folder, BEST)
    past = [step for step in steps_in(folder) if latest is not None and step <= latest]
    for step in past[:-keep]:
        if step == best:
            continue
        path = folder / step_name(step)
        removed = path.with_suffix(REMOVED)
        try:
            rename(path, removed)
            remove(removed)
        except OSError as error:  # the new checkpoint is there all the same
            _log.warning("the old checkpoint %s cannot be removed: %s", path, error)


def best_before(folder: Path, step: int) -> Path | None:
    """The best checkpoint of a folder in which a training goes on at `step`; None: there is none.

    A best one of a later step is of a training that somebody went back from: its name is forgotten, because others will be
    made in its place.
    """
    best = named_step(folder, BEST)
    if best is not None and best > step:
        _log.warning("the training goes back to step %d, before its best (step %d)", step, best)
        remove(folder / BEST)
        best = None
    return folder / step_name(best) if best in steps_in(folder) and best is not None else None


def nearest(folder: Path) -> Path:
    """What is there already of a folder's path."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def free_bytes(folder: Path) -> int:
    """Free space where a folder is, or will be."""
    return shutil.disk_usage(nearest(folder)).free
