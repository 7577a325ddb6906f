"""Names and shapes of experts' tensors in the files of Hugging Face, where every expert's matrices are tensors of their own.

"model.layers.3.mlp.experts.7.up_proj.weight"                   of Qwen
"model.layers.3.block_sparse_moe.experts.7.w3.weight"           of Mixtral
"""

from __future__ import annotations

from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import Parameter
from meshwright.specs.model.parameter_name import SINKS, STACKED, STACKED_BIAS

Shapes = dict[str, tuple[int, ...]]
GATE_UP, DOWN = STACKED
MIXTRAL_WORDS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def published_shapes(model: ModelSpec) -> Shapes:
    """Every tensor of a model's files by its name."""
    found: Shapes = {}
    for parameter in model.parameters():
        found |= _tensors(model, parameter)
    return found


def _tensors(model: ModelSpec, parameter: Parameter) -> Shapes:
    """The tensors of one parameter; of a stacked one an expert's rows each, of gate and up apart."""
    if model.has_expert_bias:  # one tensor of all experts in files, too
        return {parameter.name: parameter.shape}
    names = published_names(model, parameter.name)
    if not parameter.name.endswith(STACKED):
        return dict.fromkeys(names, parameter.shape)
    num_experts, num_rows, num_inputs = parameter.shape
    return dict.fromkeys(names, (num_rows * num_experts // len(names), num_inputs))


def published_names(model: ModelSpec, name: str) -> tuple[str, ...]:
    """What a parameter of a running model is called in files, its parts in order: expert by expert, gate before up."""
    if model.has_expert_bias:
        return (_of_gpt_oss(name),)
    is_mixtral = model.architecture == "mixtral"
    stacked = name.removesuffix(".weight")
    if is_mixtral:
        name, stacked = (each.replace(".mlp.", ".block_sparse_moe.") for each in (name, stacked))
    if not stacked.endswith(STACKED):
        return (name,)
    prefix, words = (
        stacked.rpartition(".")[0],
        ("down_proj",) if stacked.endswith(DOWN) else ("gate_proj", "up_proj"),
    )
    called = [MIXTRAL_WORDS[word] if is_mixtral else word for word in words]
    return tuple(f"{prefix}.{expert}.{word}.weight" for expert in range(model.num_experts) for word in called)


def _of_gpt_oss(name: str) -> str:
    """Attributes that are parts of a name, or are not said."""
    module, _, attribute = name.rpartition(".")
    if not module.endswith((*STACKED, SINKS)):
        return name
    return module if attribute == "weight" else f"{module.removesuffix('_proj')}{STACKED_BIAS}"
