"""The table of contents of a checkpoint, ``checkpoint.json``: facts, tensors with their boxes, files with their hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.record import record

INDEX_FILE = "checkpoint.json"
SCHEMA = 1
# Bits of the dtypes that safetensors names (its format's page), those that are trained here.
DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1}


@dataclass(frozen=True)
class StoredBox:
    """A box of a tensor, and where it is: the tensor named ``key`` of a safetensors file."""

    file: str
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the whole model; its boxes cover it, and no two overlap."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[StoredBox, ...]

    @property
    def size_bytes(self) -> int:
        """Of all its numbers."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class StoredFile:
    """What a file must be."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class CheckpointInfo:
    """Where a training was.

    ``step``: steps done, so the next one has this number. ``samples`` and ``tokens``: consumed by all replicas since the
    very first step. ``loss``: of the last step, nats a token; ``held_out_loss``: where it was found after it.
    ``data_digest``: of the corpus ("" where it has none). ``seed`` is the whole state of randomness: every draw is keyed by
    (seed, step, sample, layer). ``num_ranks``: of the job that wrote it. ``training``: `Training.to_dict()`. ``versions``:
    of what wrote it.
    """

    step: int
    samples: int = 0
    tokens: int = 0
    seed: int = 0
    loss: float | None = None
    held_out_loss: float | None = None
    data_digest: str = ""
    num_ranks: int = 1
    training: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointIndex:
    """All that a checkpoint says about itself."""

    info: CheckpointInfo
    tensors: Mapping[str, StoredTensor]
    files: Mapping[str, StoredFile]

    @property
    def size_bytes(self) -> int:
        """Of all files but the index."""
        return sum(file.size_bytes for file in self.files.values())

    def text(self) -> str:
        """As it stands in its file."""
        fields = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(fields) + "\n"


def read_index(checkpoint: str | Path) -> CheckpointIndex:
    """The index of one checkpoint's folder.

    Raises:
        SpecError: there is none, it is of a newer schema, or it is broken.
    """
    path = Path(checkpoint) / INDEX_FILE
    try:
        fields = json_of(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(
            f"{checkpoint} is no checkpoint: it has no {INDEX_FILE}",
            allowed="the folder of one checkpoint, such as runs/step-40",
        ) from None
    except ValueError as error:
        raise SpecError(f"{path} cannot be read: {error}", next="take an earlier checkpoint") from error
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise SpecError(
            f"{path} has schema {schema}",
            allowed=f"up to {SCHEMA}",
            next=f"upgrade meshwright to the version that wrote it ({_writer(fields)}) or later",
        )
    try:
        index = record(CheckpointIndex, {key: fields[key] for key in fields if key != "schema"}, INDEX_FILE)
        _check(index)
    except (SpecError, TypeError) as error:
        raise SpecError(f"{path} is broken: {error}", next="take an earlier checkpoint") from error
    return index


def _writer(fields: Mapping[str, Any]) -> str:
    """Version of meshwright that wrote an index of a schema that we do not know."""
    info = fields.get("info")
    versions = info.get("versions") if isinstance(info, dict) else None
    return str(versions.get("meshwright", "unknown")) if isinstance(versions, dict) else "unknown"


def _check(index: CheckpointIndex) -> None:
    """Every file lies in the folder itself, and the boxes of every tensor cover it: the index may come from anywhere.

    Raises SpecError.
    """
    named = {box.file for tensor in index.tensors.values() for box in tensor.boxes}
    for name in (*index.files, *named):
        if Path(name).name != name or name in ("", ".", ".."):
            raise SpecError(f"{name!r} is no name of a file in the folder")
    if unknown := named - index.files.keys():
        raise SpecError(f"boxes lie in {sorted(unknown)[0]!r}, which is no file of it")
    for tensor in index.tensors.values():
        if tensor.dtype not in DTYPE_BYTES:
            raise SpecError(f"dtype {tensor.dtype!r} is none of {', '.join(DTYPE_BYTES)}")
        if error := box_error(tensor.shape, [(box.offsets, box.sizes) for box in tensor.boxes]):
            raise SpecError(error)


def box_error(shape: tuple[int, ...], boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> str:
    """What is wrong with boxes (offsets, sizes) that should cover a tensor of `shape` exactly once; "" if nothing is."""
    for offsets, sizes in boxes:
        inside = all(0 <= at and at + n <= whole for at, n, whole in zip(offsets, sizes, shape))
        if len(offsets) != len(shape) or len(sizes) != len(shape) or not inside:
            return f"the box at {list(offsets)} of {list(sizes)} does not lie in a tensor of {list(shape)}"
    covered = sum(prod(sizes) for _, sizes in boxes)
    if covered != prod(shape):
        return f"its boxes hold {covered} numbers, a tensor of {list(shape)} has {prod(shape)}"
    if len(boxes) > 1 and shape:
        begins = np.array([offsets for offsets, _ in boxes])
        ends = begins + np.array([sizes for _, sizes in boxes])
        meet = ((begins[:, None] < ends[None]) & (begins[None] < ends[:, None])).all(axis=2)
        if meet.sum() > len(boxes):  # every box meets itself
            return "two of its boxes overlap"
    return ""
