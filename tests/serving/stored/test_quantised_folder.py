"""Quantised weights are the numbers that their codes mean, by packers of our own; what is not read is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serving.stored.packing import FORMATS, quantised

from meshwright.serving.stored.quantisation import layout_of
from meshwright.serving.stored.quantised_folder import QuantisedFolder, open_folder
from meshwright.serving.stored.safetensors_folder import EXPONENTS, FLOAT8, float8_values
from meshwright.specs.error import ExecutionError, SpecError


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Sizes that no word, group or block divides evenly where the format lets them."""
    folder, random = tmp_path_factory.mktemp("weights"), np.random.default_rng(3)
    shapes = {"a.q_proj": (48, 64), "a.up_proj": (80, 32), "embed_tokens": (9, 32)}
    tensors = {
        f"{name}.weight": torch.from_numpy(random.standard_normal(x)).float() for name, x in shapes.items()
    }
    save_file({**tensors, "norm.weight": torch.ones(32).half()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_what_their_codes_mean(name: str, weights: Path, tmp_path: Path) -> None:
    packed, plain = quantised(weights, name, tmp_path)
    folder = open_folder(packed, json.loads((packed / "config.json").read_text()))
    assert isinstance(folder, QuantisedFolder)
    wanted = load_file(plain / "model.safetensors")
    assert {each for each in folder.names if not each.endswith(".bias")} == set(wanted)
    for each, value in wanted.items():
        np.testing.assert_allclose(folder.numbers(each), value.numpy(), rtol=2e-7, atol=0)
        np.testing.assert_array_equal(folder.tensor(each, tuple(value.shape)).numbers(), folder.numbers(each))
    half = open_folder(packed, json.loads((packed / "config.json").read_text()), is_half=True)
    rounded = torch.from_numpy(folder.numbers("a.q_proj.weight")).bfloat16().float().numpy()
    np.testing.assert_array_equal(half.tensor("a.q_proj.weight", (48, 64)).numbers(), rounded)


def test_every_number_of_eight_bits_is_torchs() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for name, kind in ((FLOAT8, torch.float8_e4m3fn), (EXPONENTS, torch.float8_e8m0fnu)):
        np.testing.assert_array_equal(float8_values(name), codes.view(kind).float().numpy())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised by bitsandbytes are not read"),
        ({"quant_method": "awq", "version": "gemv"}, "version gemv"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "format marlin"),
        ({"quant_method": "gptq", "dynamic": {"-:lm_head": {}}}, "dynamic"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "transform_config": {"a": 1}},
            "transform_config",
        ),
    ],
)
def test_what_is_not_read_is_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        layout_of({"quantization_config": fields}, "config.json")


def test_a_weight_without_one_of_its_parts_is_refused(weights: Path, tmp_path: Path) -> None:
    packed, _ = quantised(weights, "awq", tmp_path)
    tensors = load_file(packed / "model.safetensors")
    scales = tensors.pop("a.q_proj.scales")
    (packed / "model.safetensors").unlink()  # it is mapped
    save_file(tensors, packed / "model.safetensors")
    config = json.loads((packed / "config.json").read_text())
    with pytest.raises(ExecutionError, match=r"a\.q_proj has no scales"):
        open_folder(packed, config).tensor("a.q_proj.weight", (48, 64))
    (packed / "model.safetensors").unlink()
    save_file({**tensors, "a.q_proj.scales": scales[:, :-8].contiguous()}, packed / "model.safetensors")
    with pytest.raises(
        ExecutionError, match=r"a\.q_proj\.weight cannot be read: scales \(4, 40\) of 48 outputs"
    ):
        open_folder(packed, config).tensor("a.q_proj.weight", (48, 64))
