"""open_document: what files hold, as a document, by what is in them; nothing in them is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.api import load, subject
from meshwright.api.subjects.subject import plan_subject
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.document.document import Document
from meshwright.workbench.document.followed import METRICS, newest_metrics
from meshwright.workbench.document.plan import plan_document
from meshwright.workbench.document.result import result_document
from meshwright.workbench.document.run import metrics_of, run_document
from meshwright.workbench.document.trace import comparison_document, subject_document, trace_document

ALLOWED = (
    "a plan (.toml), a program, a trace (.npz), metrics of a training (.jsonl) or the folder they are in, what a command "
    "wrote with --json; or two traces"
)
MOST_BYTES = 256 << 20  # of a file of JSON


def open_document(
    files: Sequence[Path], *, cluster: str | ClusterSpec | None = None, extrapolate: bool = False
) -> Document:
    """The document of one file, or of two traces side by side.

    Args:
        cluster: where a plan runs, if not on the cluster that it names.
        extrapolate: as of `subject`.

    Raises SpecError for what cannot be looked at, and as readers of plans, programs and traces do.
    """
    if len(files) == 1:
        return _document(files[0], cluster, extrapolate)
    if len(files) != 2 or any(each.suffix != ".npz" for each in files):
        raise SpecError(f"{len(files)} files at once", allowed=f"one file, or two traces (.npz): {ALLOWED}")
    first, second = (Trace.load(_there(each)) for each in files)
    return comparison_document(first, second, f"{files[0].name} and {files[1].name}")


def _document(file: Path, cluster: str | ClusterSpec | None, extrapolate: bool) -> Document:
    if file.is_dir():
        return _folder(file)
    _there(file)
    if file.suffix == ".jsonl":
        return run_document(file, metrics_of(_text(file), file.name))
    if file.suffix == ".json" and '"meshwright-profile"' not in (text := _text(file)):
        return result_document(_json(text, file), file.name)
    found = load(file)
    if isinstance(found, Trace):
        title = str(found.metadata.get("label") or found.metadata.get("plan") or file.name)
        return trace_document(found, title)
    if isinstance(found, Plan):
        made = plan_subject(found, cluster, extrapolate=extrapolate)
        assert made.predicted is not None, "a plan is predicted"
        return plan_document(made.predicted)
    if isinstance(found, ModelSpec | ClusterSpec | Profile):
        raise SpecError(f"{file.name} is a {_word(found)}", allowed=ALLOWED, next=f"meshwright show {file}")
    return subject_document(subject(found), file.name)


def _folder(folder: Path) -> Document:
    """A run: the newest metrics in a folder."""
    newest = newest_metrics(folder)
    if newest is None:
        raise SpecError(
            f"the folder {folder} has no metrics of a training",
            allowed=f"a folder with {METRICS}",
            next="train with --metrics FILE.jsonl",
        )
    return run_document(folder, metrics_of(_text(newest), newest.name))


def _word(found: Any) -> str:
    words = {ModelSpec: "model", ClusterSpec: "cluster", Profile: "profile"}
    return next(word for kind, word in words.items() if isinstance(found, kind))


def _there(file: Path) -> Path:
    if not file.is_file():
        raise SpecError(f"there is no file {file}", allowed=ALLOWED)
    return file


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise SpecError(f"{file} has {file.stat().st_size:,} bytes", allowed=f"at most {MOST_BYTES:,}")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not text", allowed=ALLOWED) from None
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}", next="check the path") from None


def _json(text: str, file: Path) -> Any:
    try:
        return json_of(text)
    except ValueError as error:
        raise SpecError(f"{file} is no JSON: {error}", allowed=ALLOWED) from None
