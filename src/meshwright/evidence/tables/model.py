"""Makes of a row of measured training runs the model and the cluster that it names; what is missing is assumed aloud."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.evidence.tables.table import TrainingRow, remarks_of
from meshwright.specs.cluster.cluster import ClusterSpec, Fabric, Level
from meshwright.specs.cluster.device import DeviceSpec, NodeSpec, load_device, usual_node
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.shape import Architecture

EFA = re.compile(r"\bEFA\b|elastic fabric", re.IGNORECASE)  # Amazon's network, as rows call it
VOCABULARY_MULTIPLE = 128  # Megatron-LM pads the vocabulary to a multiple of this times tp
FEEDFORWARD_FACTOR = 4  # of the hidden size, where the width of the MLP is not given
GATED_SHARE = 2 / 3  # a gated MLP with three matrices of this width has the parameters of one with two
GB_PER_S = 1e9
# What the tables call a device -> preset.
DEVICES: Mapping[str, str] = {
    "a100-80gb-sxm": "A100-80",
    "a100-40gb-sxm": "A100-40",
    "h100-80gb-sxm": "H100",
    "h200-141gb-sxm": "H200",
    "b200-sxm": "B200",
    "b300-sxm": "B300",
    "gb200-nvl72": "GB200",
    "gb300-nvl72": "GB300",
    "mi300x-192gb": "MI300X",
    "mi325x-256gb": "MI325X",
    "mi350x-288gb": "MI350X",
    "mi355x-288gb": "MI355X",
}
# DeepSeek-V3's latent attention (its config.json on the Hugging Face hub), where a row says no more than "mla".
LATENT: Mapping[str, int] = {
    "query_rank": 1536,
    "key_value_rank": 512,
    "rotary_head_dim": 64,
    "value_head_dim": 128,
    "head_dim": 192,
}
WINDOW = re.compile(r"sliding\D*(\d+)")
FULL_ATTENTION_EVERY = 2  # "alternating": every second block sees everything


def model_of(row: TrainingRow, tp: int, assumptions: list[str]) -> ModelSpec:
    """The model of a row for `tp` devices that share its vocabulary; adds to `assumptions`. Raises SpecError."""
    is_gated = bool(row.count("gated_mlp", _default(row, "gated_mlp", 1, "a gated MLP", assumptions)))
    hidden, heads = row.count("hidden"), row.count("heads")
    kv_heads = row.count("kv_heads") or _default(row, "kv_heads", heads, "as many as heads", assumptions)
    head_dim = row.count("head_dim") or _head_dim(row, hidden, heads, assumptions)
    fields: dict[str, Any] = {
        "num_layers": row.count("layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocabulary_size": _vocabulary(row, tp, assumptions),
        "max_sequence_length": row.sequence_length,
        "has_tied_embeddings": _is_tied(row, is_gated, assumptions),
        **_experts(row),
        **_windows(row),
        **_latent(row, heads, assumptions),
    }
    fields["intermediate_size"] = _feedforward(row, hidden, fields, assumptions)
    is_plain = not is_gated and not row.is_moe and kv_heads == heads and head_dim * heads == hidden
    is_gpt2 = is_plain and "key_value_rank" not in fields and "sliding_window" not in fields
    if not is_gated and not is_gpt2:
        _ungated_as_gated(fields, assumptions)
    if is_gpt2:
        fields |= {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True}
        assumptions.append(
            "a model without a gated MLP is GPT-2's kind: LayerNorm, biases, learned positions"
        )
    return ModelSpec.of_dimensions(
        name=row.text("model") or row.row_id,
        architecture="gpt2" if is_gpt2 else _architecture(row, fields),
        source=row.where,
        **{**fields, **_family(row, fields)},
    )


def cluster_of(row: TrainingRow, assumptions: list[str]) -> ClusterSpec:
    """The cluster of a row: one level where all devices are in one domain, else two. Raises UnknownNameError."""
    name = row.text("gpu")
    preset = DEVICES.get(name.lower(), name)
    device, usual = load_device(preset), usual_node(preset)
    num_devices = row.count("gpus")
    per_node = _devices_of_node(row, num_devices, usual, assumptions)
    node = Level(
        "node",
        per_node,
        usual.bandwidth_bytes_per_s,
        usual.latency_s,
        is_shared=usual.is_shared,
        wiring=usual.wiring,
    )
    inner = row.number("intra_GBps") * GB_PER_S or node.group_bytes_per_s(per_node)
    outer = row.number("inter_GBps") * GB_PER_S or usual.nic_bytes_per_s
    link = (
        inner * node.bandwidth_bytes_per_s / node.group_bytes_per_s(per_node)
    )  # tables tell all links of a GPU
    levels = [replace(node, bandwidth_bytes_per_s=link)]
    if num_devices > per_node:
        levels.append(Level("network", num_devices, outer, usual.nic_latency_s, fabric=_fabric(row)))
        if not row.text("inter_GBps"):
            assumptions.append(f"inter_GBps is empty: {outer / GB_PER_S:g} as usual for {device.name}")
    if not row.text("intra_GBps"):
        assumptions.append(f"intra_GBps is empty: {inner / GB_PER_S:g} as usual for {device.name}")
    return ClusterSpec(_cluster_name(num_devices, per_node, device), (device,) * num_devices, tuple(levels))


def _fabric(row: TrainingRow) -> Fabric:
    """What joins the nodes, where a word of the row says it."""
    return "efa" if EFA.search(remarks_of(row)) else "infiniband"


def _cluster_name(num_devices: int, per_node: int, device: DeviceSpec) -> str:
    nodes = num_devices // per_node
    return f"{nodes}x{per_node}x{device.name}" if nodes > 1 else f"{per_node}x{device.name}"


def _devices_of_node(row: TrainingRow, num_devices: int, usual: NodeSpec, assumptions: list[str]) -> int:
    """Devices of one domain: as given, all where they are fewer, and equally many in every domain."""
    given = row.count("gpus_per_node")
    if not given:
        given = usual.num_devices
        assumptions.append(f"gpus_per_node is empty: {given} as usual for the device")
    if num_devices <= given:
        return num_devices
    if num_devices % given == 0:
        return given
    per_node = max(count for count in range(1, given + 1) if num_devices % count == 0)
    assumptions.append(f"{num_devices} devices do not fill domains of {given}: {per_node} in each")
    return per_node


def _default(row: TrainingRow, column: str, value: int, words: str, assumptions: list[str]) -> int:
    if not row.text(column):
        assumptions.append(f"{column} is empty: {words}")
    return value


def _head_dim(row: TrainingRow, hidden: int, heads: int, assumptions: list[str]) -> int:
    if hidden % heads:
        raise SpecError(
            f"{row.where}: head_dim is empty and hidden {hidden} does not divide into {heads} heads",
            allowed="a head_dim, or a number of heads that divides hidden",
        )
    assumptions.append("head_dim is empty: hidden / heads")
    return hidden // heads


def _vocabulary(row: TrainingRow, tp: int, assumptions: list[str]) -> int:
    vocabulary = row.count("vocab")
    if vocabulary % tp == 0:
        return vocabulary
    multiple = VOCABULARY_MULTIPLE * tp
    padded = -(-vocabulary // multiple) * multiple
    assumptions.append(f"the vocabulary of {vocabulary} is padded to {padded}, a multiple of {multiple}")
    return padded


def _is_tied(row: TrainingRow, is_gated: bool, assumptions: list[str]) -> bool:
    """Megatron-LM ties GPT's embeddings unless told otherwise; Llama's kind from 7 billion parameters on has two tables."""
    if row.text("tied_emb"):
        return row.count("tied_emb") > 0
    assumptions.append(f"tied_emb is empty: {'two tables, as Llama' if is_gated else 'one table, as GPT-2'}")
    return not is_gated


def _feedforward(row: TrainingRow, hidden: int, fields: Mapping[str, Any], assumptions: list[str]) -> int:
    """Width of the dense MLP; where every block has experts the number is needed, but nothing has that width."""
    if row.count("ffn"):
        return row.count("ffn")
    if row.is_moe and not fields["dense_layers"]:
        return int(fields["expert_intermediate_size"])
    assumptions.append(f"ffn is empty: {FEEDFORWARD_FACTOR} x hidden")
    return FEEDFORWARD_FACTOR * hidden


def _experts(row: TrainingRow) -> dict[str, Any]:
    if not row.is_moe:
        return {}
    dense = min(row.count("dense_layers"), row.count("layers"))
    return {
        "num_experts": row.count("n_experts"),
        "num_experts_per_token": row.count("topk"),
        "expert_intermediate_size": row.count("moe_ffn") or row.count("ffn"),
        "shared_intermediate_size": row.count("shared_ffn"),
        "dense_layers": tuple(range(dense)),
    }


def _windows(row: TrainingRow) -> dict[str, Any]:
    """Of "sliding128 alternating" blocks 0, 2, 4, ... have the window; without "alternating" all have it."""
    attention = row.text("attention").lower()
    found = WINDOW.search(attention)
    if found is None or int(found[1]) >= row.sequence_length:
        return {}
    step = FULL_ATTENTION_EVERY if "alternat" in attention else 1
    return {"sliding_window": int(found[1]), "sliding_layers": tuple(range(0, row.count("layers"), step))}


def _latent(row: TrainingRow, heads: int, assumptions: list[str]) -> dict[str, Any]:
    if "mla" not in row.text("attention").lower():
        return {}
    assumptions.append("latent attention has the ranks and widths of DeepSeek-V3")
    return {**LATENT, "num_kv_heads": heads}


def _ungated_as_gated(fields: dict[str, Any], assumptions: list[str]) -> None:
    """Two matrices of the MLP become three with as many parameters: ungated models here are GPT-2's kind only."""
    for name in ("intermediate_size", "expert_intermediate_size", "shared_intermediate_size"):
        if fields.get(name):
            fields[name] = max(1, math.ceil(fields[name] * GATED_SHARE))
    assumptions.append(
        "an ungated MLP beside grouped heads or experts is a gated one with as many parameters"
    )


def _architecture(row: TrainingRow, fields: Mapping[str, Any]) -> Architecture:
    """The family whose blocks are like these: by the model's name, else by what the row describes."""
    name = row.text("model").lower().replace("-", "_")
    if "key_value_rank" in fields:
        return "deepseek_v3"
    if "gpt_oss" in name:
        return "gpt_oss"
    if "qwen3" in name:
        return "qwen3_moe" if row.is_moe else "qwen3"
    if "qwen2" in name and not row.is_moe:
        return "qwen2"
    if row.is_moe:
        return "deepseek_v3" if fields["shared_intermediate_size"] else "mixtral"
    return "llama"


def _family(row: TrainingRow, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the family's blocks have besides: norms of queries and keys (Qwen 3), biases (Qwen 2, GPT-OSS)."""
    architecture = _architecture(row, fields)
    if fields.get("has_qkv_bias"):
        return {}
    if architecture.startswith("qwen3"):
        return {"has_query_key_norm": True}
    if architecture == "qwen2":
        return {"has_qkv_bias": True}
    if architecture == "gpt_oss":
        return {"has_qkv_bias": True, "has_output_bias": True}
    return {}
