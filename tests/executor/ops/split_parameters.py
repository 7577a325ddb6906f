"""Gives the modules of a user's model their split-backward form, or says which parameter has none."""

from __future__ import annotations

from torch import nn

from meshwright.executor.ops.embedding import SplitEmbedding
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.norm.layer_norm import SplitLayerNorm
from meshwright.executor.ops.norm.rms_norm import SplitRMSNorm
from meshwright.specs.error import ExecutionError

SPLIT_FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: SplitLinear,
    nn.Embedding: SplitEmbedding,
    nn.LayerNorm: SplitLayerNorm,
    nn.RMSNorm: SplitRMSNorm,
}


def split_parameters(module: nn.Module) -> nn.Module:
    """Turn every Linear, Embedding, LayerNorm and RMSNorm in `module` into its split form, in place.

    Parameters, their names, ties and hooks stay as they are. Raises ExecutionError, before anything is
    changed, naming each trainable parameter whose module has no split form; those modules would otherwise
    compute weight gradients in the input half, where a schedule has no time for them.
    """
    without_form = [
        f"{prefix}.{name}".lstrip(".") + f" ({type(child).__name__})"
        for prefix, child in module.named_modules()
        for name, parameter in child.named_parameters(recurse=False)
        if parameter.requires_grad and not _has_split_form(child)
    ]
    if without_form:
        raise ExecutionError(
            f"no split backward for {', '.join(without_form)}",
            allowed=", ".join(form.__name__ for form in SPLIT_FORMS) + " of torch.nn, not subclasses",
            next="choose a schedule without split backward, or write these layers with those modules",
        )
    for child in module.modules():
        if type(child) in SPLIT_FORMS and next(child.parameters(recurse=False), None) is not None:
            # The split form adds no state, so changing the class keeps hooks, ties and references.
            child.__class__ = SPLIT_FORMS[type(child)]
    return module


def _has_split_form(module: nn.Module) -> bool:
    """A class of SPLIT_FORMS, either side, in a configuration the split form computes."""
    if type(module) not in SPLIT_FORMS and type(module) not in SPLIT_FORMS.values():
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    if isinstance(module, nn.RMSNorm):
        return len(module.normalized_shape) == 1
    return True
