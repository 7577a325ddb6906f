"""A folder of safetensors files: tensors read one by one or row by row, and a whole folder written shard by shard."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000  # the size at which published folders are commonly cut


class WeightsFolder:
    """The tensors of a folder by name. Opening reads only the headers; files are memory-mapped and stay open.

    Raises ExecutionError for a folder without safetensors, a missing file, or one that cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._opened: dict[str, Any] = {}
        self._file_of = self._index()

    @property
    def names(self) -> frozenset[str]:
        """All tensors."""
        return frozenset(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, which is not read."""
        return tuple(self._slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in the dtype of the file."""
        found: Tensor = self._open(self._file(name)).get_tensor(name)
        return found

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows `first` to `last` - 1 of a tensor; no others are read."""
        found: Tensor = self._slice(name)[first:last]
        return found

    def _index(self) -> dict[str, str]:
        """The file of every tensor: from the index, or from the files' own headers."""
        index = self.folder / INDEX_FILE
        if index.is_file():
            return self._read_index(index)
        whole = self.folder / WEIGHTS_FILE
        files = [whole] if whole.is_file() else sorted(self.folder.glob("*.safetensors"))
        if not files:
            others = sorted(path.name for path in self.folder.glob("*.bin")) if self.folder.is_dir() else []
            raise ExecutionError(
                f"{self.folder} has no safetensors file{f', only {others[0]}' if others else ''}",
                allowed=f"{WEIGHTS_FILE}, or shards with {INDEX_FILE}",
                next="save the model with save_pretrained(..., safe_serialization=True)",
            )
        return {name: path.name for path in files for name in self._open(path.name).keys()}

    def _read_index(self, index: Path) -> dict[str, str]:
        try:
            file_of = dict(json_of(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise ExecutionError(f"{index} is no index: {error}", allowed="JSON with 'weight_map'") from None
        for file in sorted(set(file_of.values())):
            if Path(file).name != file or not (self.folder / file).is_file():
                raise ExecutionError(
                    f"{index} names {file}, which is not in the folder", next="copy the missing shard"
                )
        return file_of

    def _file(self, name: str) -> str:
        if name not in self._file_of:
            raise ExecutionError(
                f"{self.folder} has no tensor {name!r}", allowed=f"one of its {len(self._file_of)} tensors"
            )
        return self._file_of[name]

    def _slice(self, name: str) -> Any:
        return self._open(self._file(name)).get_slice(name)

    def _open(self, file: str) -> Any:
        if file not in self._opened:
            path = self.folder / file
            try:
                self._opened[file] = safe_open(str(path), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ExecutionError(
                    f"{path} cannot be read: {error}",
                    next="copy the file again; it is cut short or is no safetensors",
                ) from None
        return self._opened[file]


def write_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    value: Callable[[str], Tensor],
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
    files: Sequence[Path] = (),
) -> Path:
    """Write config.json, the tensors of `shapes` in their order, and copies of `files`; return the folder.

    `value` is asked for one tensor after the other and a shard is the most that is held. The folder appears under its
    name when it is whole.

    Raises:
        ExecutionError: the folder exists and is not empty, or a value has another shape.
    """
    target = Path(folder)
    with _appearing(target) as made:
        (made / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
        shards = _shards(shapes, dtype.itemsize, shard_bytes)
        file_of: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = (
                WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            )
            file_of |= dict.fromkeys(names, file)
            tensors = {name: _checked(name, value(name), shapes[name], dtype) for name in names}
            save_file(tensors, str(made / file), metadata={"format": "pt"})
            shutil.copymode(
                made / "config.json", made / file
            )  # some versions of safetensors let only the owner read
        if len(shards) > 1:
            total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
            index = {"metadata": {"total_size": total}, "weight_map": file_of}
            (made / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for path in files:
            shutil.copyfile(path, made / path.name)
    return target


def _shards(shapes: Mapping[str, Sequence[int]], itemsize: int, shard_bytes: int) -> list[list[str]]:
    """Names cut into runs of at most `shard_bytes`; a larger tensor is a shard of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        tensor_bytes = math.prod(shape) * itemsize
        if shards[-1] and size + tensor_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor_bytes
    return shards


def _checked(name: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    if tuple(value.shape) != tuple(shape):
        raise ExecutionError(f"{name} is {tuple(value.shape)}", allowed=f"{tuple(shape)}, as the model says")
    return value.detach().to("cpu", dtype).contiguous().clone()  # parts of one tensor share its storage


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name at the end, and is gone after an error."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExecutionError(
            f"{target} exists", allowed="a new folder, or an empty one", next="choose another name"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield made
        made.chmod(0o755)  # mkdtemp makes a private one
        os.replace(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
