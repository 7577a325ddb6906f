"""TorchRunner: a decoder in this process that computes packed tokens over paged blocks; the reference for other engines.

    runner = TorchRunner(open_served("models/llama"), RunnerOptions(dtype="float32", num_blocks=512))
    logits = runner.forward(inputs)         # [R, V], until the next call
    runner.close()

Shapes: R rows whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.adapter.loaded_adapters import LoadedAdapters
from meshwright.executor.serving.paged_end import PagedHead
from meshwright.executor.serving.paged_stage import PagedStage, StagePlace
from meshwright.executor.serving.runner_options import (
    DEVICE_SHARE,
    HOST_SHARE,
    MOST_SEQUENCES,
    RunnerOptions,
    block_bytes,
)
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.weight.stage_weights import num_held
from meshwright.serving.engine.cut_inputs import cut_inputs
from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.serving.weight.expert_loads import SlotRows
from meshwright.serving.weight.expert_place import ExpertCache, ExpertCounts
from meshwright.serving.weight.weight_place import HEAD
from meshwright.specs.cluster.computer import memory_available_bytes
from meshwright.specs.error import ExecutionError


class TorchRunner:
    """A `Runner` in this process, on the CPU or on a CUDA device. `cache`: which experts are here; None: all of them.

    Raises:
        ExecutionError: the folder's tensors are not the model's, or not one block fits.
    """

    def __init__(self, served: ServedModel, options: RunnerOptions, cache: ExpertCache | None = None) -> None:
        if options.num_ranks > 1:
            raise ExecutionError(
                f"{options.num_ranks} ranks in one process", allowed="tp=1, pp=1", next="use a ParallelRunner"
            )
        options = completed(served, options, None if cache is None else cache.num_slots)
        if options.num_threads:
            torch.set_num_threads(options.num_threads)
        self.block_tokens, self.num_host_blocks = options.block_tokens, options.num_host_blocks
        self.vocabulary_size = served.model.vocabulary_size
        self.max_model_tokens = options.max_model_tokens
        self.num_blocks = options.num_blocks
        self._lock, self._adapters = threading.Lock(), LoadedAdapters()
        self._logits = LogitsBuffer(self.vocabulary_size)
        with torch.inference_mode():
            self._stage: PagedStage | None = PagedStage(
                served, StagePlace.whole(served.model), options, cache
            )

    @property
    def stage(self) -> PagedStage:
        """The model and its blocks. Raises ExecutionError when the runner is closed."""
        if self._stage is None:
            raise ExecutionError("the runner is closed", next="make a new one")
        return self._stage

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits [R, V] of the asked rows, valid until the next call."""
        with self._lock, torch.inference_mode():
            self._adapters.check(inputs.adapters)
            return self._logits.take(self.stage.forward(self.stage.packed(inputs)))

    def forward_cut(self, inputs: StepInputs, cuts: Sequence[int]) -> NDArray[np.float32]:
        """The same, of tokens that are cut at these numbers into parts which take turns at every part of a layer."""
        with self._lock, torch.inference_mode():
            self._adapters.check(inputs.adapters)
            steps = [self.stage.packed(each) for each in cut_inputs(inputs, cuts, self.block_tokens)]
            logits_RV = torch.cat(self.stage.forward_in_turns(steps))
            order = torch.from_numpy(np.argsort(np.argsort(inputs.rows, kind="stable"), kind="stable"))
            return self._logits.take(logits_RV[order.to(logits_RV.device)])

    def hidden_rows(self) -> NDArray[np.float32]:
        """See `EmbeddingRunner`."""
        with self._lock:
            head = self.stage.parts[HEAD]
            assert isinstance(head, PagedHead) and head.normed_RE is not None, (
                "held, and a forward came first"
            )
            found: NDArray[np.float32] = head.normed_RE.to("cpu", torch.float32).numpy()
            return found

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """See `Runner`."""
        with self._lock, torch.inference_mode():
            self.stage.blocks.move(swap_out, copies, swap_in)

    @property
    def peak_weight_bytes(self) -> tuple[int, ...]:
        """The most bytes of weights that were here at once so far, as of the one rank that this is."""
        return (self.stage.peak_weight_bytes,)

    def slot_rows(self) -> list[SlotRows]:
        """See `RoutingRunner`."""
        with self._lock:
            return self.stage.slot_rows()

    @property
    def expert_counts(self) -> ExpertCounts | None:
        """What came of experts that are fetched; None: all are here."""
        return self.stage.experts.counts if self.stage.experts else None

    def load_adapter(self, folder: str | os.PathLike[str]) -> int:
        """Read a folder of PEFT; give the number by which sequences ask for it. May be called while another thread computes.

        Raises ExecutionError where it is no such folder, or of another model.
        """
        adapter = AdapterFolder(folder, self.stage.model)
        with self._lock, torch.inference_mode():
            number = self._adapters.add()
            self.stage.load_adapter(number, adapter)
            return number

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter that no sequence has any more; its number is not given again."""
        with self._lock:
            self._adapters.drop(number)
            self.stage.drop_adapter(number)

    def close(self) -> None:
        """Let go of weights and blocks."""
        if self._stage is not None:
            self._stage.close()
        self._stage = None


class LogitsBuffer:
    """Logits in float32 on the host, in memory that is kept from step to step."""

    def __init__(self, vocabulary_size: int) -> None:
        self._buffer = torch.empty(0, vocabulary_size)

    def take(self, logits_RV: Tensor) -> NDArray[np.float32]:
        """[R, at least the vocabulary] -> [R, V]."""
        rows, width = len(logits_RV), self._buffer.shape[1]
        if len(self._buffer) < rows:
            is_pinned = logits_RV.device.type == "cuda"
            self._buffer = torch.empty(rows, width, pin_memory=is_pinned)
        self._buffer[:rows].copy_(logits_RV[:, :width])
        found: NDArray[np.float32] = self._buffer[:rows].numpy()
        return found


def completed(served: ServedModel, options: RunnerOptions, num_experts: int | None = None) -> RunnerOptions:
    """The options with what was left open: format, blocks, the longest sequence. `num_experts`: that are here at once, of
    all layers together; None: all.

    Raises:
        ExecutionError: not one block fits, or sequences are to be longer than the model's positions.
    """
    model, most = served.model, served.model.max_sequence_length
    if options.max_model_tokens > most:
        raise ExecutionError(
            f"max_model_tokens is {options.max_model_tokens}",
            allowed=f"1 to {most}, the positions of {model.name}",
        )
    options = replace(
        options, dtype=options.dtype or served.dtype, max_model_tokens=options.max_model_tokens or most
    )
    if options.num_blocks:
        return options
    wanted = MOST_SEQUENCES * -(-options.max_model_tokens // options.block_tokens)
    num_blocks = min(wanted, _free_bytes(served, options, num_experts) // block_bytes(model, options))
    if num_blocks < 1:
        raise ExecutionError(
            f"no block of keys and values of {model.name} fits beside its weights",
            next="more ranks, or a smaller dtype",
        )
    return replace(options, num_blocks=num_blocks)


def _free_bytes(served: ServedModel, options: RunnerOptions, num_experts: int | None) -> int:
    """What blocks of one rank may take: of a device what the weights leave, of the host a share for all ranks on it."""
    numbers = num_held(served, options.fetched, num_experts, options.expert_slots)
    weight_bytes = numbers * options.torch_dtype.itemsize // options.num_ranks
    device = torch.device(options.device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(DEVICE_SHARE * (free - weight_bytes))
    return int(HOST_SHARE * memory_available_bytes()) // options.num_ranks
