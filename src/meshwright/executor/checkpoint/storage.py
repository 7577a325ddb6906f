"""How torch.distributed.checkpoint writes tensors here: safetensors files and a JSON index; nothing is pickled."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from meshwright.executor.checkpoint.folder import PARTIAL, begin, free_bytes, publish, step_name
from meshwright.executor.checkpoint.index import (
    INDEX_FILE,
    CheckpointIndex,
    CheckpointInfo,
    StoredBox,
    StoredFile,
    StoredTensor,
)
from meshwright.executor.file.new_file import NO_SPACE, NewFile, flush_folder, remove, write_text
from meshwright.specs.error import ExecutionError

TENSOR_FILE = "tensors-{rank}.safetensors"
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
HEADER_ALIGNMENT = (
    8  # safetensors pads its header with blanks to a multiple of this, so that numbers are aligned
)

Progress = Callable[[int], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileResult:
    """What one rank's file became; travels with every box to the coordinator."""

    name: str
    key: str
    size_bytes: int = 0
    sha256: str = ""


class FolderWriter(StorageWriter):
    """Writes one safetensors file a rank into a partial folder, which the coordinator publishes; the last ``keep`` stay.

    ``progress`` is called with bytes that were written.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        files: Mapping[str, str],
        keep: int,
        progress: Progress | None = None,
        is_best: bool = False,
    ) -> None:
        self.folder, self.step, self.files, self.keep = folder, step, files, keep
        self.progress, self.is_best = progress, is_best
        self.partial = Path()
        self._is_coordinator = False

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one save to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The coordinator plans, and makes the folder then."""
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: is there room? Then make the folder, and name every rank's file.

        Raises:
            ExecutionError: it does not fit on the disk.
        """
        needed, free = sum(_num_bytes(item) for plan in plans for item in plan.items), free_bytes(self.folder)
        if needed > free:
            raise no_space(self.folder, needed, free)
        partial = begin(self.folder, self.step)
        return [
            replace(plan, storage_data={"partial": str(partial), "rank": rank, "needed": needed})
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """This rank's boxes, in one file."""
        done: Future[list[WriteResult]] = Future()
        self.partial = Path(plan.storage_data["partial"])
        self._needed = plan.storage_data["needed"]
        try:
            done.set_result(self._write(plan, planner) if plan.items else [])
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(self.folder, self._needed, free_bytes(self.folder)) from error
            raise
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        name = TENSOR_FILE.format(rank=plan.storage_data["rank"])
        keys = {item.index: box_key(item) for item in plan.items}
        with NewFile(self.partial / name, self.progress) as file:
            boxes = [(keys[item.index], _box(item)) for item in plan.items]
            file.write(header_of([(key, box.properties.dtype, box.chunk.sizes) for key, box in boxes]))
            for item in plan.items:
                file.write(bytes_of(planner.resolve_data(item)))
        return [
            WriteResult(
                item.index, _num_bytes(item), FileResult(name, keys[item.index], file.size_bytes, file.sha256)
            )
            for item in plan.items
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all ranks have written: the index, then the folder gets its name.

        Raises:
            ExecutionError: a rank wrote where the coordinator cannot see it, or the disk is full.
        """
        boxes = {result.index: result.storage_data for rank in results for result in rank}
        written = {box.name: StoredFile(box.size_bytes, box.sha256) for box in boxes.values()}
        for name, file in written.items():
            path = self.partial / name
            if not path.is_file() or path.stat().st_size != file.size_bytes:
                raise ExecutionError(
                    f"{path} was written by a rank and is not here",
                    next="give a folder of checkpoints that all hosts share",
                )
        try:
            for name, text in self.files.items():
                kept = write_text(self.partial / name, text)
                written[name] = StoredFile(kept.size_bytes, kept.sha256)
            index = CheckpointIndex(
                CheckpointInfo(**metadata.planner_data), _stored(metadata, boxes), written
            )
            write_text(self.partial / INDEX_FILE, index.text())
            flush_folder(self.partial)
            publish(self.partial, self.keep, self.is_best)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(self.folder, self._needed, free_bytes(self.folder)) from error
            raise

    def abandon(self) -> None:
        """After a failure, when all ranks have ended: the coordinator removes the partial folder."""
        left = self.folder / (step_name(self.step) + PARTIAL)
        if not self._is_coordinator or not left.exists():
            return
        try:
            remove(left)
        except OSError as error:  # the failure itself is what is told
            _log.warning("what a failed checkpoint has left cannot be removed: %s", error)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Only made by name, never guessed from an address."""
        return False


def no_space(folder: Path, needed_bytes: int, free: int) -> ExecutionError:
    """The disk is full."""
    return ExecutionError(
        f"no space for a checkpoint in {folder}: it needs {needed_bytes / 1e9:.3f} GB ({needed_bytes} bytes), "
        f"{free / 1e9:.3f} GB ({free} bytes) are free; those that were there are whole",
        next="free some space, keep fewer (--keep), or give another folder",
    )


def box_key(item: WriteItem) -> str:
    """Name of a box in its file: the tensor's own where the box is all of it, else with its offsets."""
    chunk, size = _box(item).chunk, _box(item).size
    if tuple(chunk.sizes) == tuple(size):
        return item.index.fqn
    return f"{item.index.fqn}@{','.join(str(at) for at in chunk.offsets)}"


def _box(item: WriteItem) -> Any:
    assert item.tensor_data is not None, "only tensors are planned"
    return item.tensor_data


def _num_bytes(item: WriteItem) -> int:
    box = _box(item)
    return int(box.chunk.sizes.numel()) * int(box.properties.dtype.itemsize)


def header_of(entries: Sequence[tuple[str, torch.dtype, Sequence[int]]]) -> bytes:
    """Length and JSON that stand before the numbers of a safetensors file, which follow in the order of the entries."""
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, dtype, shape in entries:
        begin_byte, end = end, end + prod(shape) * dtype.itemsize
        fields[key] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [begin_byte, end],
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: Any) -> memoryview:
    """The numbers of a tensor, row-major, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _stored(metadata: Metadata, boxes: Mapping[MetadataIndex, FileResult]) -> dict[str, StoredTensor]:
    tensors = {}
    for name, found in metadata.state_dict_metadata.items():
        assert isinstance(found, TensorStorageMetadata), "only tensors are planned"
        of_tensor = []
        for chunk in found.chunks:
            box = boxes[MetadataIndex(name, chunk.offsets)]
            of_tensor.append(StoredBox(box.name, box.key, tuple(chunk.offsets), tuple(chunk.sizes)))
        tensors[name] = StoredTensor(DTYPE_NAMES[found.properties.dtype], tuple(found.size), tuple(of_tensor))
    return tensors
