"""Folders of Hugging Face: logits equal transformers in both directions, and what is not the same is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.token_data import write_tokenizer
from torch import Tensor

from meshwright.executor.models.decoder import build_model, build_stage
from meshwright.executor.models.weights.hugging_face import (
    HuggingFaceSource,
    load_hugging_face,
    open_hugging_face,
    save_hugging_face,
)
from meshwright.executor.models.weights.parameter_map import NameMap, parameter_shapes
from meshwright.executor.models.weights.weights_folder import INDEX_FILE, WeightsFolder
from meshwright.specs.config.source import load_model
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec

transformers = pytest.importorskip("transformers")

TOLERANCE, OF_EXPERTS = 1e-4, 1e-5  # of logits in float32
NUM_TOKENS = 90  # more than a block of queries
SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK = {
    **SIZES, "num_key_value_heads": 4, "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 3,
    "moe_intermediate_size": 12, "first_k_dense_replace": 1, "q_lora_rank": 14, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT2},
    "gpt2 untied": {"model_type": "gpt2", **GPT2, "tie_word_embeddings": False},
    "gpt2 exact": {"model_type": "gpt2", **GPT2, "activation_function": "gelu", "n_inner": 50},
    "gpt2 epsilon": {"model_type": "gpt2", **GPT2, "layer_norm_epsilon": 1e-2},
    "llama": {"model_type": "llama", **SIZES},
    "llama tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
    "llama biases": {"model_type": "llama", **SIZES, "attention_bias": True, "mlp_bias": True},
    "llama all heads": {"model_type": "llama", **SIZES, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "llama one key": {"model_type": "llama", **SIZES, "num_key_value_heads": 1, "rope_theta": 200.0},
    "llama wide heads": {"model_type": "llama", **SIZES, "head_dim": 12},
    "llama linear": {"model_type": "llama", **SIZES, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama llama3": {"model_type": "llama", **SIZES, "rope_scaling": LLAMA3, "rope_theta": 500.0},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": None},
    "mistral window": {"model_type": "mistral", **SIZES, "sliding_window": 7, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen2 tied": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen2 window": {
        "model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16},
    "qwen3 tied": {"model_type": "qwen3", **SIZES, "head_dim": 8, "tie_word_embeddings": True},
    "qwen3 biases": {"model_type": "qwen3", **SIZES, "head_dim": 16, "attention_bias": True},
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 5, "num_experts_per_tok": 2},
    "mixtral window": {
        "model_type": "mixtral", **SIZES, "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7,
        "tie_word_embeddings": True,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    },
    "qwen2_moe dense": {
        "model_type": "qwen2_moe", **SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20, "norm_topk_prob": True, "mlp_only_layers": [0],
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "head_dim": 16, "norm_topk_prob": True,
    },
    "qwen3_moe sparse": {
        "model_type": "qwen3_moe", **SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "head_dim": 8, "norm_topk_prob": False, "decoder_sparse_step": 2, "attention_bias": True,
    },
    "deepseek_v2": {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v2 groups": {
        **DEEPSEEK, "model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
        "routed_scaling_factor": 4.0, "rms_norm_eps": 1e-3, "attention_bias": True,
    },
    "deepseek_v3": {**DEEPSEEK, "model_type": "deepseek_v3", "n_group": 3, "topk_group": 2},
    "llama yarn": {"model_type": "llama", **SIZES, "rope_scaling": YARN, "rope_theta": 500.0},
    "qwen3_moe yarn": {
        "model_type": "qwen3_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "head_dim": 16, "rope_scaling": {**YARN, "truncate": False, "beta_fast": 4.0},
    },
    "deepseek_v2 yarn": {
        **DEEPSEEK, "model_type": "deepseek_v2",
        "rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek_v3 yarn": {
        **DEEPSEEK, "model_type": "deepseek_v3", "n_group": 3, "topk_group": 2,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "gpt_oss": {
        "model_type": "gpt_oss", **SIZES, "head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 2,
        "sliding_window": 7,
    },
    "gpt_oss unscaled": {
        "model_type": "gpt_oss", **SIZES, "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 5,
        "head_dim": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "tie_word_embeddings": True,
    },
    "deepseek_v3 plain": {
        **DEEPSEEK, "model_type": "deepseek_v3", "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "first_k_dense_replace": 0, "q_lora_rank": None,
    },
}  # fmt: skip


def _tolerance(name: str) -> float:
    return OF_EXPERTS if "experts" in "".join(VARIANTS[name]) else TOLERANCE


def _tokens() -> Tensor:
    return torch.randint(0, 61, (2, NUM_TOKENS), generator=torch.Generator().manual_seed(3))


def _theirs(config: dict[str, Any]) -> Any:
    """A model of transformers with every parameter away from zero and one."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    model = transformers.AutoModelForCausalLM.from_config(made).float().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        corrections = (buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias"))
        for parameter in (*model.parameters(), *corrections):
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(_tokens()).logits
    return found


def _our_logits(folder: Path) -> Tensor:
    model, source = open_hugging_face(folder)
    stage = build_stage(model, range(model.num_layers), True, True, source=source)
    with torch.no_grad():
        found: Tensor = stage(_tokens())
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_a_folder_of_theirs(name: str, tmp_path: Path) -> None:
    theirs = _theirs(VARIANTS[name])
    expected = _logits(theirs)
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(_our_logits(tmp_path), expected, rtol=0, atol=_tolerance(name))
    assert expected.std() > 0.1  # a model of zeros would agree, too


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_a_folder_of_ours(name: str, tmp_path: Path) -> None:
    theirs = _theirs(VARIANTS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    model, parameters = load_hugging_face(tmp_path / "theirs")
    generator = torch.Generator().manual_seed(9)
    trained = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in parameters.items()
    }
    stage = build_model(model)
    loaded = stage.load_state_dict(trained, strict=False)
    assert loaded.missing_keys == (["head.weight"] if model.has_tied_embeddings else [])
    save_hugging_face(model, trained, tmp_path / "ours", shard_bytes=20_000)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs) and again.dtype == torch.float32
    with torch.no_grad():
        expected = stage(_tokens())
    atol = _tolerance(name) * max(
        1.0, float(expected.abs().max())
    )  # of larger logits: what was added is no small change
    torch.testing.assert_close(_logits(again), expected, rtol=0, atol=atol)
    assert load_model(tmp_path / "ours").digest == model.digest


def test_shapes_and_names_are_those_of_the_stage() -> None:
    for config in VARIANTS.values():
        model = load_model(config)
        stage = build_model(model)
        held = {**stage.global_parameters(), **dict(stage.named_buffers())}
        expected = {name: tuple(x.shape) for name, x in held.items()}
        assert parameter_shapes(model) == expected


def test_a_stage_reads_its_own_tensors_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _theirs(VARIANTS["llama"]).save_pretrained(tmp_path)
    model, source = open_hugging_face(tmp_path)
    read: list[str] = []
    whole = WeightsFolder.tensor

    def tensor(self: WeightsFolder, name: str) -> Tensor:
        read.append(name)
        return whole(self, name)

    monkeypatch.setattr(WeightsFolder, "tensor", tensor)
    build_stage(model, range(1, 2), False, False, source=source)
    assert len(read) == 9 and all(name.startswith("model.layers.1.") for name in read)


def test_sharded_and_headless_folders_of_theirs(tmp_path: Path) -> None:
    theirs = _theirs(VARIANTS["qwen2 tied"])
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / INDEX_FILE).is_file()
    torch.testing.assert_close(_our_logits(tmp_path / "shards"), _logits(theirs), rtol=0, atol=TOLERANCE)
    theirs.model.save_pretrained(tmp_path / "headless")
    assert "embed_tokens.weight" in WeightsFolder(tmp_path / "headless").names
    torch.testing.assert_close(_our_logits(tmp_path / "headless"), _logits(theirs), rtol=0, atol=TOLERANCE)


def test_rows_are_read_without_the_others(tmp_path: Path) -> None:
    theirs = _theirs(VARIANTS["llama"])
    theirs.save_pretrained(tmp_path)
    folder, name = WeightsFolder(tmp_path), "model.embed_tokens.weight"
    assert folder.shape(name) == (61, 32)
    assert torch.equal(folder.rows(name, 5, 9), folder.tensor(name)[5:9])


def test_half_precision_and_tokenizer_travel(tmp_path: Path) -> None:
    source = tmp_path / "theirs"
    _theirs({**VARIANTS["llama"], "eos_token_id": 7}).save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    model, parameters = load_hugging_face(source)
    save_hugging_face(model, parameters, tmp_path / "ours", tokenizer_from=source, dtype=torch.bfloat16)
    assert (tmp_path / "ours" / "tokenizer.json").read_text() == "{}"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert again.dtype == torch.bfloat16 and again.config.eos_token_id == 7
    _, half = load_hugging_face(tmp_path / "ours", torch.float32)
    for name, value in parameters.items():
        assert torch.equal(half[name], value.bfloat16().float())


def test_generation_ends_where_a_document_ended_in_training(tmp_path: Path) -> None:
    """Not at token 2, which is Llama's own end and some letter of another tokenizer."""
    (tmp_path / "theirs").mkdir()
    _theirs(VARIANTS["llama"]).save_pretrained(tmp_path / "theirs")
    model, parameters = load_hugging_face(tmp_path / "theirs")
    write_tokenizer(tmp_path / "tokens")
    for name, tokenizer_from, end in (("bare", None, None), ("told", tmp_path / "tokens", 0)):
        save_hugging_face(model, parameters, tmp_path / name, tokenizer_from=tokenizer_from)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert again.config.eos_token_id == again.generation_config.eos_token_id == end
        modes = {path.name: path.stat().st_mode for path in (tmp_path / name).iterdir()}
        assert modes["model.safetensors"] == modes["config.json"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"logit_scale": 0.5}, "logit_scale"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "served, not trained"),
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic rotary scaling"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "another number of layers": ({"num_hidden_layers": 2}, "which llama models do not have"),
    "biases": ({"attention_bias": True}, "has no tensor"),
    "another width": ({"intermediate_size": 44}, "as config.json says"),
    "experts": ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}, "has no tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_give_other_logits_is_refused(name: str, tmp_path: Path) -> None:
    changed, message = REFUSED[name]
    _theirs(VARIANTS["llama"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises((SpecError, ExecutionError), match=message) as caught:
        load_hugging_face(tmp_path)
    assert caught.value.allowed or caught.value.next


@pytest.mark.parametrize(
    "changed",
    [
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"activation_function": "relu"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_gpt2_with_other_attention_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(changed))):
        load_model({**VARIANTS["gpt2"], **changed})


def test_a_folder_is_the_model_that_is_trained(tmp_path: Path) -> None:
    _theirs(VARIANTS["llama"]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    with pytest.raises(ExecutionError, match=r"rope_theta 10000\.0 there, 5000\.0 here"):
        HuggingFaceSource(tmp_path, replace(model, rope_theta=5000.0))
    with pytest.raises(ExecutionError, match="has no safetensors file"):
        WeightsFolder(tmp_path / "nothing")
    (tmp_path / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(ExecutionError, match="cannot be read"):
        WeightsFolder(tmp_path)


def test_what_a_family_cannot_say_is_not_written(tmp_path: Path) -> None:
    model = load_model(VARIANTS["llama"]).changed(has_query_key_norm=True)
    parameters = dict(build_model(model).global_parameters())
    with pytest.raises(SpecError, match="has_query_key_norm"):
        save_hugging_face(model, parameters, tmp_path / "ours")
    plain = load_model(VARIANTS["llama"])
    with pytest.raises(ExecutionError, match="have 'layers.0.key_norm.weight'"):
        save_hugging_face(plain, parameters, tmp_path / "ours")
    parameters.pop("final_norm.weight")
    with pytest.raises(ExecutionError, match="lack 'final_norm.weight'"):
        save_hugging_face(plain, parameters, tmp_path / "ours")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    model = load_model(VARIANTS["llama"])
    parameters: dict[str, Tensor] = dict(build_model(model).global_parameters())
    save_hugging_face(model, parameters, tmp_path / "ours")
    with pytest.raises(ExecutionError, match="exists"):
        save_hugging_face(model, parameters, tmp_path / "ours")
    parameters["head.weight"] = parameters["head.weight"][:, :3]
    with pytest.raises(ExecutionError, match=r"lm_head.weight is \(61, 3\)"):
        save_hugging_face(model, parameters, tmp_path / "broken")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_places_are_one_to_one() -> None:
    for config in VARIANTS.values():
        names = NameMap(load_model(config))
        parts = [part for place in names.names.values() for part in place.parts]
        assert sorted(parts) == sorted(names.shapes)
    with pytest.raises(ExecutionError, match="has no parameter 'layers.0.router.weight'"):
        NameMap(ModelSpec.decoder(2, 32, 4)).place("layers.0.router.weight")
