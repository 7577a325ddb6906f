"""What freezing and low-rank additions change in the work of a block: weight gradients that nobody needs, products beside.

An addition's two products are (T, inputs) by (inputs, rank) and (T, rank) by (rank, outputs); then its result is scaled
and added. Its backward scales the gradient, makes both input gradients and adds to that of the matrix's input. Tensor
parallelism divides B of a matrix that it divides by outputs, and A of one that it divides by inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meshwright.specs.model.adaptation import LORA_A, LORA_B, LORA_COLUMNS, lora_sizes
from meshwright.specs.operator import Operator
from meshwright.stage.operator.layer import (
    SCALE_TOUCHES,
    Linear,
    MicrobatchShape,
    residual_add,
)

if TYPE_CHECKING:
    from meshwright.specs.model.model import ModelSpec

# Modules of the executor by the label of what computes their weight gradient.
_MODULES: dict[str, tuple[str, ...]] = {
    "qkv": ("qkv",),
    "output": ("attention_output",),
    "gate_up": ("gate_up",),
    "up": ("gate_up",),
    "down": ("down",),
    "q and k norm": ("query_norm", "key_norm"),
    "query": ("latent_attention.query",),
    "query down": ("latent_attention.narrow_query",),
    "query up": ("latent_attention.widen_query",),
    "query latent norm": ("latent_attention.narrow_query_norm",),
    "key-value down": ("latent_attention.narrow_key_value",),
    "key-value up": ("latent_attention.widen_key_value",),
    "key-value latent norm": ("latent_attention.narrow_key_value_norm",),
    **dict.fromkeys(("router", "router projection"), ("mixture.router",)),
    "experts gate_up": ("mixture.expert_gate_up",),
    "experts down": ("mixture.expert_down",),
    "shared gate_up": ("mixture.shared.gate_up",),
    "shared down": ("mixture.shared.down",),
    "shared gate": ("mixture.shared_gate",),
}


def trained_operators(trained: Sequence[str], part: str, operators: Sequence[Operator]) -> Iterator[Operator]:
    """Weight gradients of a block's part that are of a parameter in `trained` ("qkv.weight", "mlp_norm.bias")."""
    for operator in operators:
        base, _, kind = operator.label.rpartition(" ")
        modules = (part,) if base == "norm" else _MODULES[base]
        # one sum over rows gives both of a norm
        attributes = ("weight", "bias") if "norm" in base else ("bias",) if kind == "db" else ("weight",)
        if any(f"{module}.{attribute}" in trained for module in modules for attribute in attributes):
            yield operator


def addition_forward(model: ModelSpec, target: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Both products and the sum, where this matrix has an addition."""
    found = []
    for first, second in _pairs(model, target, shape.tp):
        found += [
            first.forward(shape),
            second.forward(shape),
            residual_add(f"{target} addition", _whole(shape), second.num_out),
        ]
    return tuple(found)


def addition_input(model: ModelSpec, target: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Gradients of both products' inputs, and the sum of those of the matrix's input."""
    found = []
    for first, second in _pairs(model, target, shape.tp):
        work, dims = shape.num_tokens * second.num_out, (shape.num_tokens, second.num_out)
        num_bytes = SCALE_TOUCHES * work * shape.element_bytes
        found += [
            Operator("elementwise", work, num_bytes, dims, label=f"{target} addition scale"),
            second.input_gradient(shape),
            first.input_gradient(shape),
            residual_add(f"{target} addition gradient", _whole(shape), first.num_in),
        ]
    return tuple(found)


def addition_weight(model: ModelSpec, target: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Both products' weight gradients."""
    return tuple(
        operator
        for first, second in _pairs(model, target, shape.tp)
        for linear in (first, second)
        for operator in linear.weight_gradient(shape)
    )


def _whole(shape: MicrobatchShape) -> MicrobatchShape:
    """Between gather and scatter of a divided sequence a device has all of its tokens."""
    return shape._replace(sequence_parallel=False)


def _pairs(model: ModelSpec, target: str, tp: int) -> list[tuple[Linear, Linear]]:
    """Both products on one device: B is divided by outputs where the matrix is, A by inputs."""
    sizes = lora_sizes(model).get(target)
    if sizes is None:
        return []
    num_in, num_out = sizes
    if target in LORA_COLUMNS:
        num_out //= tp
    else:
        num_in //= tp
    first = Linear(f"{target} {LORA_A}", num_in, model.lora_rank, False)
    return [(first, Linear(f"{target} {LORA_B}", model.lora_rank, num_out, False))]
