"""`inspect`, `verify` and `convert` of checkpoints; only `convert` needs torch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.api.subjects.diagnosing import require_torch
from meshwright.executor.checkpoint.folder import BEST, checkpoint_at, named_step, step_folders, steps_in
from meshwright.executor.checkpoint.index import CheckpointInfo, StoredTensor, read_index
from meshwright.executor.checkpoint.verify import problems
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.slot import Reference

PLAN_FILE = "plan.toml"
FORMATS = ("hugging_face", "safetensors")
DTYPES = ("float32", "bfloat16", "float16", "float64")
OTHERS = "numbers"  # tensors that belong to no parameter


@dataclass(frozen=True)
class CheckpointContents:
    """What one checkpoint holds. ``plan``: text of the plan's file, "" without one. ``steps``: of all in its folder;
    ``best_step``: of the one with the least held-out loss, where the training was evaluated."""

    path: Path
    info: CheckpointInfo
    tensors: Mapping[str, StoredTensor]
    plan: str
    size_bytes: int
    num_files: int
    steps: Sequence[int]
    best_step: int | None = None

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """Number of tensors, of elements and bytes of parameters and of each part of the optimizer's state."""
        counts: dict[str, Counter[str]] = {}
        for name, tensor in self.tensors.items():
            prefix, slash, _ = name.partition("/")
            kind = prefix if slash else "parameters" if tensor.shape else OTHERS
            counts.setdefault(kind, Counter()).update(num_tensors=1, size_bytes=tensor.size_bytes)
        return [
            {"kind": kind, **counts[kind]}
            for kind in sorted(counts, key=lambda kind: (kind != "parameters", kind))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, SI units."""
        tensors = [
            {
                "name": n,
                "dtype": t.dtype,
                "shape": list(t.shape),
                "size_bytes": t.size_bytes,
                "num_boxes": len(t.boxes),
            }
            for n, t in self.tensors.items()
        ]
        return {
            "path": str(self.path), **asdict(self.info), "training": _told(self.info.training), "plan": self.plan,
            "size_bytes": self.size_bytes,
            "num_files": self.num_files, "steps": list(self.steps), "best_step": self.best_step,
            "kinds": self.kinds, "tensors": tensors,
        }  # fmt: skip


def _told(training: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its training, with what follows from it: the model's dimensions beside its blocks, what is
    read without a table of its own, the options of its optimizer, and what is divided.
    """
    told = {**training.get("source", {}), **training}
    told["initial"] = training.get("source", {}).get("weights")
    if "model" in training:
        told["model"] = {**ModelSpec.from_dict(training["model"]).dimensions(), **training["model"]}
    if optimizer := training.get("optimizer"):
        told["optimizer"] = dict(Reference.of(optimizer["name"]).options) | optimizer
    if layout := training.get("layout"):
        divided = {"gathers_parameters": layout["value_axes"], "scatters_gradients": layout["gradient_axes"]}
        told["layout"] = {**layout, **{name: bool(axes) for name, axes in divided.items()}}
    return told


@dataclass(frozen=True)
class CheckpointVerification:
    """What is wrong with each checkpoint that was read."""

    problems: Mapping[Path, Sequence[str]]
    size_bytes: int

    @property
    def is_whole(self) -> bool:
        """Are all of them whole?"""
        return not any(self.problems.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = [{"path": str(path), "problems": list(found)} for path, found in self.problems.items()]
        return {"whole": self.is_whole, "read_bytes": self.size_bytes, "checkpoints": rows}


@dataclass(frozen=True)
class Conversion:
    """What was written."""

    checkpoint: Path
    target: Path
    format: str
    num_tensors: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "checkpoint": str(self.checkpoint), "target": str(self.target)}


def inspect_checkpoint(folder: str | os.PathLike[str]) -> CheckpointContents:
    """What one checkpoint holds, or the latest of a folder of them. Raises SpecError."""
    path = checkpoint_at(folder)
    index = read_index(path)
    plan = path / PLAN_FILE
    text = plan.read_text(encoding="utf-8") if PLAN_FILE in index.files and plan.is_file() else ""
    return CheckpointContents(
        path, index.info, index.tensors, text, index.size_bytes, len(index.files), steps_in(path.parent),
        named_step(path.parent, BEST),
    )  # fmt: skip


def verify_checkpoint(
    folder: str | os.PathLike[str], progress: Callable[[int], None] | None = None
) -> CheckpointVerification:
    """Read one checkpoint, or all of a folder of them, and compare every file with its hash.

    `progress` is called with the bytes that were read. Raises SpecError where there is none.
    """
    root, read = Path(folder), Counter[str]()
    paths = step_folders(root) or [checkpoint_at(root)]

    def count(num_bytes: int) -> None:
        read.update(size_bytes=num_bytes)
        if progress is not None:
            progress(num_bytes)

    return CheckpointVerification({path: problems(path, count) for path in paths}, read["size_bytes"])


def convert_checkpoint(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str = "hugging_face",
    dtype: str = "",
    tokenizer: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Write the parameters of a checkpoint (the latest of a folder of them) for other programs, to a new folder.

    Args:
        format: "hugging_face" (transformers loads it), or "safetensors" (one file, our own names).
        dtype: "float32", "bfloat16", ...; "": the checkpoint's.
        tokenizer: a folder (or its tokenizer.json) whose tokenizer is copied, too.

    Raises SpecError, UnknownNameError, ExecutionError.
    """
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    if dtype and dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    source = None if tokenizer is None else _tokenizer_folder(Path(tokenizer))
    path = checkpoint_at(folder)
    require_torch()
    from meshwright.executor.checkpoint.export import export

    number = export(path, Path(to), format, dtype, source)
    return Conversion(path, Path(to), format, number)


def _tokenizer_folder(given: Path) -> Path:
    """The folder of a tokenizer, or of its tokenizer.json, which `train` takes, too. Raises SpecError."""
    folder = given.parent if given.is_file() and given.name == "tokenizer.json" else given
    if not folder.is_dir():
        raise SpecError(
            f"{given} is no folder", allowed="a folder with a tokenizer's files, or its tokenizer.json"
        )
    return folder
