"""FlashInfer is told what torch's kernels read: a stand-in does what its documentation says of these arguments, by loops."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.executor.serving.scattered_blocks import served_work
from torch import Tensor

from meshwright.executor.models.weights.initialisation import RandomValues
from meshwright.executor.serving import paged_stage
from meshwright.executor.serving.page.flash_infer import WORKSPACE_BYTES, has_flash_infer
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(2, 32, 4, num_kv_heads=2, vocabulary_size=61, max_sequence_length=64)
OPTIONS = RunnerOptions(block_tokens=4, num_blocks=96, num_host_blocks=8, num_threads=1)


class PagedWrapper:
    """Of plan and run what the documentation of BatchPrefillWithPagedKVCacheWrapper says, one query after the other."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert layout == "NHD" and workspace.nbytes == WORKSPACE_BYTES

    def plan(self, **told: Any) -> None:
        self.told = SimpleNamespace(**told)
        assert (
            told["causal"] and told["qo_indptr"].dtype == told["paged_kv_last_page_len"].dtype == torch.int32
        )

    def run(self, query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        told, out = self.told, torch.empty_like(query)
        group = told.num_qo_heads // told.num_kv_heads
        for sequence in range(len(told.qo_indptr) - 1):
            first, last = told.qo_indptr[sequence : sequence + 2].tolist()
            low, high = told.paged_kv_indptr[sequence : sequence + 2].tolist()
            length = (high - low - 1) * told.page_size + int(told.paged_kv_last_page_len[sequence])
            key, value = (
                each[told.paged_kv_indices[low:high].long()].flatten(0, 1)[:length] for each in cache
            )
            for row in range(first, last):
                place = length - (last - row)  # causal masks end together
                begin = 0 if told.window_left < 0 else max(0, place - told.window_left)
                seen = slice(begin, place + 1)
                scores = (
                    torch.einsum("hd,chd->hc", query[row], key[seen].repeat_interleave(group, 1))
                    * told.sm_scale
                )
                out[row] = torch.einsum(
                    "hc,chd->hd", scores.softmax(1), value[seen].repeat_interleave(group, 1)
                )
        return out


@pytest.mark.parametrize("window", [0, 7])
def test_it_is_told_what_others_read(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, forks, swaps and chunks beside decodes give the same logits."""
    model = (
        MODEL.changed(architecture="mistral", sliding_window=window, sliding_layers=(1,)) if window else MODEL
    )
    served = ServedModel(model, RandomValues(2), "float32", Path("."))
    expected = served_work(TorchRunner(served, OPTIONS))
    monkeypatch.setattr(paged_stage, "has_flash_infer", lambda dtype, device: True)
    monkeypatch.setitem(
        sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=PagedWrapper)
    )
    runner = TorchRunner(served, OPTIONS)
    for found, one in zip(served_work(runner), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-6)
    runner.close()


def test_it_is_for_cuda_alone() -> None:
    assert not has_flash_infer(torch.bfloat16, torch.device("cpu"))
