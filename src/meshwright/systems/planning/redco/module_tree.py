"""Names and shapes of parameters in the order of their modules: what rules for tensor parallelism read; a few known trees.

torch keeps the weight of a linear layer as [outputs, inputs]; GPT-2's own layers keep [inputs, outputs].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["linear", "linear_in_out", "table", "vector", "other"]


@dataclass(frozen=True)
class TreeParameter:
    """One parameter. `role`: a linear weight (either way round), a table of rows to look up, a vector, or anything else."""

    name: str
    shape: tuple[int, ...]
    role: Role
    itemsize: int = 4

    @property
    def module(self) -> str:
        """Path of the layer that has it."""
        return self.name.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """Last name of that path, such as "c_proj"."""
        return self.module.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """Path of the module around the layer, such as "h.0.attn"."""
        return self.module.rpartition(".")[0]

    @property
    def num_outputs(self) -> int:
        """Of a linear weight."""
        return self.shape[1] if self.role == "linear_in_out" else self.shape[0]

    @property
    def num_inputs(self) -> int:
        """Of a linear weight."""
        return self.shape[0] if self.role == "linear_in_out" else self.shape[1]

    @property
    def num_bytes(self) -> int:
        """Of the whole parameter."""
        count = self.itemsize
        for size in self.shape:
            count *= size
        return count


Tree = tuple[TreeParameter, ...]


def _linear(
    name: str, num_outputs: int, num_inputs: int, has_bias: bool, in_out: bool = False
) -> Iterable[TreeParameter]:
    if in_out:
        yield TreeParameter(f"{name}.weight", (num_inputs, num_outputs), "linear_in_out")
    else:
        yield TreeParameter(f"{name}.weight", (num_outputs, num_inputs), "linear")
    if has_bias:
        yield TreeParameter(f"{name}.bias", (num_outputs,), "vector")


def _norm(name: str, width: int, has_bias: bool) -> Iterable[TreeParameter]:
    yield TreeParameter(f"{name}.weight", (width,), "vector")
    if has_bias:
        yield TreeParameter(f"{name}.bias", (width,), "vector")


def gpt2_tree(
    num_layers: int = 12, width: int = 768, vocabulary_size: int = 50257, positions: int = 1024
) -> Tree:
    """GPT-2 by the names of the transformers library, its head tied; defaults are the smallest published one."""
    found = [
        TreeParameter("wte.weight", (vocabulary_size, width), "table"),
        TreeParameter("wpe.weight", (positions, width), "table"),
    ]
    for layer in range(num_layers):
        block = f"h.{layer}"
        found += _norm(f"{block}.ln_1", width, True)
        found += _linear(f"{block}.attn.c_attn", 3 * width, width, True, in_out=True)
        found += _linear(f"{block}.attn.c_proj", width, width, True, in_out=True)
        found += _norm(f"{block}.ln_2", width, True)
        found += _linear(f"{block}.mlp.c_fc", 4 * width, width, True, in_out=True)
        found += _linear(f"{block}.mlp.c_proj", width, 4 * width, True, in_out=True)
    return (*found, *_norm("ln_f", width, True))


def llama_tree(
    num_layers: int = 32, width: int = 4096, num_units: int = 11008, kv_width: int = 4096, vocabulary_size: int = 32000
) -> Tree:  # fmt: skip
    """Llama by the names of the transformers library, with a head of its own; defaults are those of the 7B model."""
    found = [TreeParameter("model.embed_tokens.weight", (vocabulary_size, width), "table")]
    for layer in range(num_layers):
        block = f"model.layers.{layer}"
        for name, num_outputs in (("q_proj", width), ("k_proj", kv_width), ("v_proj", kv_width)):
            found += _linear(f"{block}.self_attn.{name}", num_outputs, width, False)
        found += _linear(f"{block}.self_attn.o_proj", width, width, False)
        for name in ("gate_proj", "up_proj"):
            found += _linear(f"{block}.mlp.{name}", num_units, width, False)
        found += _linear(f"{block}.mlp.down_proj", width, num_units, False)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found += _norm(f"{block}.{name}", width, False)
    found += _norm("model.norm", width, False)
    return (*found, *_linear("lm_head", vocabulary_size, width, False))
