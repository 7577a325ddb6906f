"""How torch.distributed.checkpoint reads what `checkpoint_storage` wrote: by the index, and only what is asked for."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from meshwright.executor.checkpoint.index import CheckpointIndex
from meshwright.executor.checkpoint.storage import DTYPES, Progress
from meshwright.specs.error import ExecutionError


class FolderReader(StorageReader):
    """Reads boxes from a checkpoint's safetensors files, and of these only what is asked for."""

    def __init__(self, checkpoint: Path, index: CheckpointIndex, progress: Progress | None = None) -> None:
        self.checkpoint, self.index, self.progress = checkpoint, index, progress
        self._boxes = {
            MetadataIndex(name, box.offsets): box
            for name, tensor in index.tensors.items()
            for box in tensor.boxes
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index in torch's words."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(DTYPES[tensor.dtype]),
                    torch.Size(tensor.shape),
                    [ChunkStorageMetadata(torch.Size(b.offsets), torch.Size(b.sizes)) for b in tensor.boxes],
                )
                for name, tensor in self.index.tensors.items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """It has the index already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what the plan names into what the planner resolves.

        Raises:
            ExecutionError: a file is missing, or not what the index says.
        """
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[self._boxes[item.storage_index].file].append(item)
        for name, items in by_file.items():
            self._check_file(name)
            try:
                with safe_open(str(self.checkpoint / name), framework="pt", device="cpu") as file:
                    for item in items:
                        self._read(file, item, planner)
            except SafetensorError as error:
                raise ExecutionError(
                    f"{self.checkpoint / name} cannot be read: {error}",
                    next="resume from an earlier checkpoint",
                ) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _check_file(self, name: str) -> None:
        path, expected = self.checkpoint / name, self.index.files[name].size_bytes
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            is_there = "is missing" if found is None else f"has {found} bytes instead of {expected}"
            raise ExecutionError(
                f"{path} {is_there}",
                next="resume from an earlier checkpoint; `meshwright checkpoint verify` says which are whole",
            )

    def _read(self, file: Any, item: ReadItem, planner: LoadPlanner) -> None:
        box = self._boxes[item.storage_index]
        if tuple(item.lengths) == box.sizes:
            part: Tensor = file.get_tensor(box.key)
        else:
            begins_ends = zip(item.storage_offsets, item.lengths)
            part = file.get_slice(box.key)[tuple(slice(at, at + n) for at, n in begins_ends)]
        stored = DTYPES[self.index.tensors[item.storage_index.fqn].dtype]
        if part.shape != item.lengths or part.dtype != stored:
            raise ExecutionError(
                f"{self.checkpoint / box.file}: {box.key} is {part.dtype} of {list(part.shape)}, the index says {stored} of "
                f"{list(item.lengths)}",
                next="resume from an earlier checkpoint",
            )
        target = planner.resolve_tensor(item)
        with torch.no_grad():
            target.copy_(part)
        planner.commit_tensor(item, target)
        if self.progress is not None:
            self.progress(part.nbytes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Only made by name, never guessed from an address."""
        return False
