"""Folders as quantisers write them, made of a folder that transformers wrote: codes are packed here one by one, in Python's
whole numbers, by the published layouts; and the folder of the numbers that these codes mean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 16  # inputs
BLOCK = (12, 20)  # outputs and inputs, so that the last blocks are cut
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ: nibble i of a word is output 8 w + AWQ_PLACES[i]
Packed = tuple[dict[str, Tensor], np.ndarray]  # tensors of a product, and the weight [O, I] that they mean


def _word(codes: list[int], num_bits: int) -> int:
    """Codes in a word of 32 bits with a sign, the first lowest."""
    word = sum(int(code) << (num_bits * place) for place, code in enumerate(codes))
    return word - (1 << 32) if word >= 1 << 31 else word


def _words(codes: np.ndarray, num_bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Rows of codes ``[n, m]`` as words ``[n, m * bits / 32]``."""
    per = 32 // num_bits
    order = order or tuple(range(per))
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per)))
    rows = [
        [_word([row[at + place] for place in order], num_bits) for at in range(0, len(row), per)]
        for row in padded
    ]
    return torch.tensor(rows, dtype=torch.int32)


def _codes(weight: np.ndarray, groups: np.ndarray, num_bits: int, seed: int) -> tuple[np.ndarray, ...]:
    """Codes ``[O, I]``, zeros and scales ``[O, G]`` (16 bits' worth), and what they mean."""
    random, num_groups = np.random.default_rng(seed), int(groups.max()) + 1
    most = (1 << num_bits) - 1
    zeros = random.integers(1, most, (len(weight), num_groups))
    widest = np.stack([np.abs(weight[:, groups == group]).max(1) for group in range(num_groups)], 1)
    scales = (2.2 * widest / most).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(weight / scales[:, groups]) + zeros[:, groups], 0, most).astype(int)
    return codes, zeros, scales, (codes - zeros[:, groups]).astype(np.float32) * scales[:, groups]


def awq(weight: np.ndarray, seed: int) -> Packed:
    groups = np.arange(weight.shape[1]) // GROUP
    codes, zeros, scales, meant = _codes(weight, groups, 4, seed)
    tensors = {
        "qweight": _words(codes.T, 4, AWQ_PLACES), "qzeros": _words(zeros.T, 4, AWQ_PLACES),
        "scales": torch.from_numpy(scales.T.copy()).half(),
    }  # fmt: skip
    return tensors, meant


def gptq(num_bits: int, version: int, is_ordered: bool) -> Callable[[np.ndarray, int], Packed]:
    def packed(weight: np.ndarray, seed: int) -> Packed:
        groups = np.arange(weight.shape[1]) // GROUP
        if is_ordered:  # by activation: groups of any inputs
            groups = np.random.default_rng(seed).permutation(groups)
        codes, zeros, scales, meant = _codes(weight, groups, num_bits, seed)
        tensors = {
            "qweight": _words(codes, num_bits).T.contiguous(),
            "qzeros": _words(zeros.T - (1 if version == 1 else 0), num_bits),
            "scales": torch.from_numpy(scales.T.copy()).half(),
            "g_idx": torch.from_numpy(groups.astype(np.int32)), "bias": torch.zeros(len(weight)).half(),
        }  # fmt: skip
        return tensors, meant

    return packed


def pack_quantised(
    num_bits: int, group: int, is_symmetric: bool, is_ordered: bool = False
) -> Callable[[np.ndarray, int], Packed]:
    def packed(weight: np.ndarray, seed: int) -> Packed:
        groups = np.arange(weight.shape[1]) // (group or weight.shape[1])
        if is_ordered:
            groups = np.random.default_rng(seed).permutation(groups)
        codes, zeros, scales, meant = _codes(weight, groups, num_bits, seed)
        tensors = {
            "weight_shape": torch.tensor(weight.shape),
            "weight_scale": torch.from_numpy(scales).bfloat16(),
        }
        scales = tensors["weight_scale"].float().numpy()
        if is_ordered:
            tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        if is_symmetric:
            zeros = np.full_like(zeros, 1 << (num_bits - 1))
        else:  # zeros of neighbouring outputs
            tensors["weight_zero_point"] = _words(zeros.T, num_bits).T.contiguous()
        meant = (codes - zeros[:, groups]).astype(np.float32) * scales[:, groups]
        return tensors | {"weight_packed": _words(codes, num_bits)}, meant

    return packed


def float8(scale_name: str, shape: str) -> Callable[[np.ndarray, int], Packed]:
    def packed(weight: np.ndarray, seed: int) -> Packed:
        rows, columns = weight.shape
        block = {"tensor": weight.shape, "channel": (1, columns), "block": BLOCK}[shape]
        scales = np.zeros((-(-rows // block[0]), -(-columns // block[1])), np.float32)
        spread = np.zeros_like(weight)
        for row, column in np.ndindex(scales.shape):
            at = np.s_[row * block[0] : (row + 1) * block[0], column * block[1] : (column + 1) * block[1]]
            scales[row, column] = spread[at] = np.abs(weight[at]).max() / 448  # the largest number
        stored = torch.from_numpy(weight / spread).to(torch.float8_e4m3fn)
        told = torch.from_numpy(scales) if shape != "tensor" else torch.tensor(scales.item())
        extra = {"input_scale": torch.tensor(0.5)}
        return {"weight": stored, scale_name: told, **extra}, stored.float().numpy() * spread

    return packed


def int8(weight: np.ndarray, seed: int) -> Packed:
    scales = np.abs(weight).max(1, keepdims=True) / 127
    codes = np.rint(weight / scales).astype(np.int8)
    tensors = {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scales)}
    return tensors, codes.astype(np.float32) * scales


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


FORMATS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray, int], Packed]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, gptq(4, 1, False)),
    "gptq ordered": ({"quant_method": "gptq", "bits": 8, "desc_act": True}, gptq(8, 1, True)),
    "gptq v2": ({"quant_method": "gptq", "bits": 2, "checkpoint_format": "gptq_v2"}, gptq(2, 2, False)),
    "fp8 blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": BLOCK},
        float8("weight_scale_inv", "block"),
    ),
    "fp8 tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, float8("weight_scale", "tensor")),
    "packed int4": (_compressed("pack-quantized", num_bits=4), pack_quantised(4, GROUP, False)),
    "packed ordered": (_compressed("pack-quantized", actorder="group"), pack_quantised(4, GROUP, True, True)),
    "packed int8": (_compressed("pack-quantized", num_bits=8), pack_quantised(8, 0, True)),
    "float-quantized": (_compressed("float-quantized", num_bits=8), float8("weight_scale", "channel")),
    "float-quantized blocks": (
        _compressed("float-quantized", strategy="block", block_structure=BLOCK), float8("weight_scale", "block"),
    ),
    "int-quantized": (_compressed("int-quantized", num_bits=8), int8),
}  # fmt: skip


def quantised(folder: Path, name: str, target: Path) -> tuple[Path, Path]:
    """The folder in this format, and the folder of the numbers that it means."""
    fields, pack = FORMATS[name]
    packed, plain = dict[str, Tensor](), dict[str, Tensor]()
    for number, (tensor, value) in enumerate(sorted(load_file(folder / "model.safetensors").items())):
        plain[tensor] = value.float()
        if value.ndim != 2 or tensor.split(".")[-2] in ("embed_tokens", "lm_head", "gate"):
            packed[tensor] = plain[tensor]
            continue
        tensors, meant = pack(value.float().numpy(), number)
        plain[tensor] = torch.from_numpy(np.ascontiguousarray(meant))
        more = {f"{tensor.removesuffix('.weight')}.{part}": each for part, each in tensors.items()}
        packed |= {each: values for each, values in more.items() if each not in packed}  # a real bias stays
    config = json.loads((folder / "config.json").read_text())
    made = []
    for kind, tensors, more in (("packed", packed, {"quantization_config": fields}), ("plain", plain, {})):
        made.append(target / kind)
        shutil.rmtree(made[-1], ignore_errors=True)
        made[-1].mkdir(parents=True)
        save_file(tensors, made[-1] / "model.safetensors", metadata={"format": "pt"})
        (made[-1] / "config.json").write_text(json.dumps({**config, **more}))
    return made[0], made[1]
