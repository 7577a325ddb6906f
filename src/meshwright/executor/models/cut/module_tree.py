"""What tensor rules read of a torch module: names, shapes and roles of its parameters, and heads of its attention."""

from __future__ import annotations

from torch import Tensor, nn

from meshwright.specs.training.tensor_rule import Role, Tree, TreeParameter

# Attributes of a module around an attention's layers that count its heads: of queries, and of keys and values.
HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads")
KEY_VALUE_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
KEY_VALUE_LAYERS = ("k_proj", "v_proj", "k", "v", "key", "value", "wk", "wv")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
IN_PROJECTION = "in_proj"  # of torch's own attention: three layers in parameters of its own


def module_tree(model: nn.Module, prefix: str = "") -> Tree:
    """Every parameter of a module, each tied one once; names begin with `prefix`."""
    return tuple(_parameter(model, prefix, name, p) for name, p in model.named_parameters())


def _parameter(model: nn.Module, prefix: str, name: str, parameter: Tensor) -> TreeParameter:
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    role, layer = _role(owner, parameter), path
    if isinstance(owner, nn.MultiheadAttention) and attribute.startswith(IN_PROJECTION):
        role = "vector" if parameter.dim() == 1 else "linear"
        layer = f"{path}.{IN_PROJECTION}".removeprefix(".")
    around = model.get_submodule(layer.rpartition(".")[0])
    heads = num_heads(around, layer.rpartition(".")[2])
    place = (prefix + layer).removesuffix(".")  # a layer that is no part of another module
    return TreeParameter(prefix + name, tuple(parameter.shape), role, parameter.itemsize, place, heads)


def num_heads(around: nn.Module, layer: str) -> int:
    """Heads of the attention that a module says it is, of keys and values for their layers; 0: it does not say."""
    names = (*KEY_VALUE_COUNTS, *HEAD_COUNTS) if layer in KEY_VALUE_LAYERS else HEAD_COUNTS
    counts = (getattr(around, name, None) for name in names)
    return next((count for count in counts if isinstance(count, int)), 0)


def is_reversed(layer: nn.Module) -> bool:
    """Is its weight [inputs, outputs]? The layer of that name in the transformers library has it so."""
    return any(kind.__name__ == "Conv1D" for kind in type(layer).__mro__)


def _role(module: nn.Module, parameter: Tensor) -> Role:
    if parameter.dim() == 1:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "other" if module.max_norm or module.scale_grad_by_freq or module.sparse else "table"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, CONVOLUTIONS) and module.groups == 1:
        return "convolution"
    return "linear_in_out" if is_reversed(module) and parameter.dim() == 2 else "other"
