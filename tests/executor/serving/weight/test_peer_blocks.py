"""Weights that lie with a neighbour: the same logits bit by bit, a window of them here, and no file is asked again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.executor.serving.paged_case import FAMILIES, their_model
from tests.executor.serving.scattered_blocks import served_work
from tests.executor.serving.weight.test_block_window import OPTIONS, all_fetched, bound_bytes

from meshwright.executor.models.weights.hugging_face import HuggingFaceSource
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.executor.serving.weight.peer_blocks import peer_of
from meshwright.specs.error import ExecutionError


@pytest.mark.parametrize("window", [2, 5])
def test_what_a_neighbour_has_computes_what_stays_would(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    their_model(FAMILIES["llama tied"], tmp_path)
    served = open_served(tmp_path)
    stays, options = TorchRunner(served, OPTIONS), all_fetched(served, window)
    pooled = TorchRunner(served, replace(options, fetched=replace(options.fetched, source="peer")))
    monkeypatch.delattr(HuggingFaceSource, "value")
    for found, expected in zip(served_work(pooled), served_work(stays), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert 0 < pooled.peak_weight_bytes[0] <= bound_bytes_of(window, tmp_path, monkeypatch)
    pooled.close()


def bound_bytes_of(window: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """The largest window, by what the files hold."""
    monkeypatch.undo()
    return bound_bytes(open_served(folder), window)


def test_a_neighbour_is_no_rank_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [peer_of(torch.device("cuda", rank), 2).index for rank in range(2)] == [2, 3]
    assert peer_of(torch.device("cpu"), 8) == torch.device("cpu")
    with pytest.raises(ExecutionError, match="device 4, and 4 are there"):
        peer_of(torch.device("cuda", 1), 3)
