"""Files of weights as memory-mapped arrays: what safetensors wrote is what is read, and what is broken is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from meshwright.serving.stored.safetensors_folder import SafetensorsFolder
from meshwright.specs.error import ExecutionError

VALUES = torch.linspace(-3.0, 5.0, 35).reshape(5, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_are_those_that_were_written(tmp_path, dtype) -> None:
    save_file({"other": torch.ones(3), "x": VALUES.to(dtype)}, tmp_path / "model.safetensors")
    stored = SafetensorsFolder(tmp_path).tensor("x", (5, 7))
    np.testing.assert_array_equal(stored.numbers(), VALUES.to(dtype).float().numpy())
    assert isinstance(stored.data.base, np.memmap) and not stored.data.flags.writeable


def test_tensors_of_other_formats_are_there_and_refused_when_asked_for(tmp_path) -> None:
    save_file({"x": VALUES.to(torch.int8), "y": VALUES}, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert folder.tensor("y", (5, 7)).format == "F32"
    with pytest.raises(ExecutionError, match="x is stored as I8"):
        folder.tensor("x", (5, 7))


def test_missing_tensors_and_other_shapes_are_refused_by_name(tmp_path) -> None:
    save_file({"x": VALUES}, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    with pytest.raises(ExecutionError, match="no tensor 'y'"):
        folder.tensor("y", (5, 7))
    with pytest.raises(ExecutionError, match=r"x is \(5, 7\)"):
        folder.tensor("x", (7, 5))


def test_a_folder_without_files_or_with_a_missing_shard_is_refused(tmp_path) -> None:
    with pytest.raises(ExecutionError, match="has no safetensors file"):
        SafetensorsFolder(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "model-1.safetensors"}}))
    with pytest.raises(ExecutionError, match=r"names model-1.safetensors, which is not in the folder"):
        SafetensorsFolder(tmp_path)
    index.write_text("{}")
    with pytest.raises(ExecutionError, match="is no index"):
        SafetensorsFolder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}}))
    with pytest.raises(ExecutionError, match="which is not in the folder"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 60, -20])
def test_a_file_that_is_cut_short_is_refused(tmp_path, kept) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": VALUES}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ExecutionError, match="cannot be read"):
        SafetensorsFolder(tmp_path)


def test_a_header_longer_than_any_is_refused(tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(ExecutionError, match="its header would have"):
        SafetensorsFolder(tmp_path)
