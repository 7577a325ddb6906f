"""Attention over paged blocks by FlashInfer's kernels, on CUDA where it is installed (arXiv 2501.01005): no key is gathered.

Shapes: S sequences, T new tokens, N blocks, b tokens of a block, K key-value heads, G query heads of each, D numbers of one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.serving.engine.runner import StepInputs

PACKAGE = "flashinfer"
KERNEL_DTYPES = (torch.bfloat16,)  # others stay with torch's own kernels
WORKSPACE_BYTES = 128 << 20  # what its documentation asks for
NO_WINDOW = -1


def has_flash_infer(dtype: torch.dtype, device: torch.device) -> bool:
    """Is it there, and of use here?"""
    return device.type == "cuda" and dtype in KERNEL_DTYPES and find_spec(PACKAGE) is not None


class FlashInferReads:
    """What the layers with one window read in a step; planned when the first of them attends, which knows the heads."""

    def __init__(self, wrapper: Any, inputs: StepInputs, window: int, block_tokens: int) -> None:
        self._wrapper, self._inputs, self._window, self._block_tokens = wrapper, inputs, window, block_tokens
        self._is_planned = False

    def attend(
        self, query_TKGD: Tensor, keys: Tensor, values: Tensor, scale: float, sinks_KG: Tensor | None = None
    ) -> Tensor:
        """``keys``, ``values`` [N, b, K, D], new ones already in place -> [T, K * G * D]."""
        assert sinks_KG is None, "stages with sinks attend by torch's own kernels (`PagedStage`)"
        query = query_TKGD.flatten(1, 2)
        if not self._is_planned:
            self._plan(query, keys.shape[2], scale)
        found: Tensor = self._wrapper.run(query, (keys, values))
        return found.flatten(1)

    def _plan(self, query: Tensor, num_kv_heads: int, scale: float) -> None:
        given = self._inputs
        self._wrapper.plan(
            qo_indptr=_whole(given.query_starts), paged_kv_indptr=_whole(given.block_starts),
            paged_kv_indices=_whole(given.block_ids).to(query.device),
            paged_kv_last_page_len=_whole(filled(given, self._block_tokens)),
            num_qo_heads=query.shape[1], num_kv_heads=num_kv_heads, head_dim_qk=query.shape[2],
            page_size=self._block_tokens, causal=True, sm_scale=scale,
            window_left=self._window - 1 if self._window else NO_WINDOW,  # keys before a query's own
            q_data_type=query.dtype, kv_data_type=query.dtype,
        )  # fmt: skip
        self._is_planned = True


class FlashInferPages:
    """The kernels of one stage, with their working memory: a plan for every window of its layers."""

    def __init__(self, device: torch.device) -> None:
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[int, Any] = {}

    def reads(self, inputs: StepInputs, window: int, block_tokens: int) -> FlashInferReads:
        """Of the next step; those of the step before are no longer valid."""
        if window not in self._wrappers:
            import flashinfer

            self._wrappers[window] = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        return FlashInferReads(self._wrappers[window], inputs, window, block_tokens)


def filled(inputs: StepInputs, block_tokens: int) -> NDArray[np.int32]:
    """Tokens in the last block of every sequence, from 1 to `block_tokens`: [S]."""
    contexts = inputs.past_lengths + np.diff(inputs.query_starts)
    found: NDArray[np.int32] = ((contexts - 1) % block_tokens + 1).astype(np.int32)
    return found


def _whole(values: NDArray[np.int32]) -> Tensor:
    """A tensor of its own: a plan is read while the step's arrays are written anew."""
    return torch.from_numpy(values.astype(np.int32, copy=True))
