"""A decoder as an OpenVINO graph around paged attention, built straight from the tensors of a Hugging Face folder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import Node, Type
from openvino import opset13 as opset

from meshwright.serving.openvino import operation
from meshwright.serving.openvino.decoder_style import DecoderStyle, Rotary
from meshwright.serving.openvino.operation import parameter, product, real, turned, whole
from meshwright.serving.openvino.paged_attention import StepTables, block_inputs, paged_attention, step_tables
from meshwright.serving.stored.safetensors_folder import SafetensorsFolder
from meshwright.specs.model.block import Attention, FeedForward
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec

TOKEN_IDS, POSITIONS, ROWS, HIDDEN, LOGITS = "token_ids", "positions", "rows", "hidden", "logits"
_FORMATS = {"F32": Type.f32, "F16": Type.f16, "BF16": Type.bf16}
_DECOMPRESSION = "decompression_0"  # OpenVINO's name of the attribute
_BASE_PREFIX = "model."  # a folder of the model without a head does not have it


class DecoderSource(NamedTuple):
    """What a graph is built from: dimensions, what else its family does, and its tensors."""

    model: ModelSpec
    style: DecoderStyle
    weights: SafetensorsFolder


def decoder_graph(source: DecoderSource, layers: StageLayers) -> openvino.Model:
    """The graph of consecutive layers of a model.

    Inputs: ``token_ids [T]`` (behind a cut ``hidden [T, 1, width]``), ``positions [T]``, those of `StepTables`, ``rows [R]``
    where the head is, and blocks of keys and values of every layer. Output: ``logits [R, 1, V]``, before a cut ``hidden``.
    Weights are not copied: the graph, and what is compiled of it, read the folder's mapped files, so `source` has to outlive
    them.
    """
    return _GraphBuilder(source, layers).graph()


class _GraphBuilder:
    """Builds one graph; `inputs` gathers its parameters."""

    def __init__(self, source: DecoderSource, layers: StageLayers) -> None:
        self.model, self.style, self.weights = source
        self.layers = layers
        self.inputs: list[Node] = []
        self._rotary_tables: dict[Rotary, tuple[Node, Node]] = {}
        self._matrices: dict[str, Node] = {}
        self.positions = self._input(POSITIONS, [-1], Type.i64)
        self.tables: StepTables = step_tables()
        self.inputs += self.tables

    def graph(self) -> openvino.Model:
        """The whole graph."""
        x = (
            self._embedded()
            if self.layers.has_embedding
            else self._input(HIDDEN, self._hidden_shape, Type.f32)
        )
        first = self.layers.first_block
        for number in range(first, first + self.layers.num_blocks):
            x = self._block(x, number)
        name = HIDDEN
        if self.layers.has_head:
            name, x = LOGITS, self._head(x)
        x.output(0).set_names({name})
        return openvino.Model([opset.result(x)], self.inputs, self.model.name)

    def _embedded(self) -> Node:
        token_ids = self._input(TOKEN_IDS, [-1], Type.i64)
        table = self._matrix("model.embed_tokens.weight", self.model.vocabulary_size)
        x = opset.gather(table, opset.unsqueeze(token_ids, whole([1])), whole(0))
        return x if self.style.embedding_scale == 1.0 else opset.multiply(x, real(self.style.embedding_scale))

    def _block(self, x: Node, number: int) -> Node:
        """Attention and MLP on the residual stream."""
        block, prefix = self.model.layers[number], f"model.layers.{number}."
        assert isinstance(block.feed_forward, FeedForward)  # check_model refuses experts
        norms = ("post_attention_layernorm", "")
        if self.style.has_result_norms:
            norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        h = self._attention(self._norm(x, prefix + "input_layernorm"), number, block.attention)
        if self.style.has_result_norms:
            h = self._norm(h, prefix + "post_attention_layernorm")
        x = opset.add(x, h)
        h = self._mlp(self._norm(x, prefix + norms[0]), prefix + "mlp.", block.feed_forward)
        return opset.add(x, self._norm(h, prefix + norms[1]) if norms[1] else h)

    def _attention(self, x: Node, number: int, attention: Attention) -> Node:
        prefix, bias = f"model.layers.{number}.self_attn.", attention.has_qkv_bias
        table = self._rotary_table(self.style.rotary_of(attention), attention.head_dim)
        query = self._linear(x, prefix + "q_proj", attention.query_size, bias)
        key = self._linear(x, prefix + "k_proj", attention.key_size, bias)
        value = self._linear(x, prefix + "v_proj", attention.value_size, bias)
        for_query = self._turned(query, attention.num_heads, attention, prefix + "q_norm", table)
        for_key = self._turned(key, attention.num_kv_heads, attention, prefix + "k_norm", table)
        blocks = block_inputs(number, attention)
        self.inputs += blocks
        found = paged_attention(
            (for_query, for_key, _flat(value, attention.value_size)),
            blocks,
            self.tables,
            attention,
            self.style.score_scale(attention),
        )
        return self._linear(found, prefix + "o_proj", self.model.hidden_size, attention.has_output_bias)

    def _turned(
        self, x: Node, num_heads: int, attention: Attention, norm: str, table: tuple[Node, Node]
    ) -> Node:
        """Queries or keys normed where they are, and turned to their positions, ``[T, heads * D]``."""
        heads = opset.reshape(x, whole([-1, num_heads, 1, attention.head_dim]), False)
        if attention.has_query_key_norm:
            heads = self._norm(heads, norm, attention.head_dim)
        return _flat(turned(heads, table, attention.head_dim), num_heads * attention.head_dim)

    def _mlp(self, x: Node, prefix: str, mlp: FeedForward) -> Node:
        """Gate and up apart: fused as LLMMLP where a machine has AMX, and no copies of joined weights."""
        size, bias = mlp.intermediate_size, mlp.has_bias
        gate = self._linear(x, prefix + "gate_proj", size, bias)
        up = self._linear(x, prefix + "up_proj", size, bias)
        activated = operation.silu(gate) if self.style.activation == "silu" else operation.gelu_tanh(gate)
        return self._linear(opset.multiply(activated, up), prefix + "down_proj", self.model.hidden_size, bias)

    def _head(self, x: Node) -> Node:
        """Logits of the asked rows only: the others are dropped before the final norm."""
        rows = self._input(ROWS, [-1], Type.i64)
        x = self._norm(opset.gather(x, rows, whole(0)), "model.norm")
        name = "model.embed_tokens" if self.model.has_tied_embeddings else "lm_head"
        return product(x, self._matrix(f"{name}.weight", self.model.vocabulary_size))

    def _linear(self, x: Node, name: str, size: int, has_bias: bool) -> Node:
        columns = x.get_output_partial_shape(0)[2].get_length()
        y = product(x, self._matrix(f"{name}.weight", size, columns))
        return opset.add(y, real(self._vector(f"{name}.bias", size))) if has_bias else y

    def _norm(self, x: Node, name: str, size: int = 0) -> Node:
        weight = self._vector(f"{name}.weight", size or self.model.hidden_size)
        return operation.rms_norm(x, weight + np.float32(self.style.norm_offset), self.model.norm_epsilon)

    def _rotary_table(self, rotary: Rotary, head_dim: int) -> tuple[Node, Node]:
        if rotary not in self._rotary_tables:
            table = operation.rotary_table(self.positions, rotary.frequencies(head_dim))
            self._rotary_tables[rotary] = table
        return self._rotary_tables[rotary]

    def _matrix(self, name: str, rows: int, columns: int = 0) -> Node:
        """A weight in the format of its file, read as float32: in which one it is computed the compiled model says."""
        if name not in self._matrices:
            stored = self.weights.tensor(self._stored(name), (rows, columns or self.model.hidden_size))
            kind = _FORMATS[stored.format]
            tensor = openvino.Tensor(stored.data, openvino.Shape(list(stored.shape)), kind)
            constant = opset.constant(tensor, shared_memory=True)
            constant.set_friendly_name(name)
            self._matrices[name] = constant if kind == Type.f32 else _widened(constant)
        return self._matrices[name]

    def _vector(self, name: str, size: int) -> NDArray[np.float32]:
        return self.weights.tensor(self._stored(name), (size,)).numbers()

    def _stored(self, name: str) -> str:
        short = name.removeprefix(_BASE_PREFIX)
        return short if name not in self.weights.names and short in self.weights.names else name

    def _input(self, name: str, shape: list[int], kind: Type) -> Node:
        self.inputs.append(parameter(name, shape, kind))
        return self.inputs[-1]

    @property
    def _hidden_shape(self) -> list[int]:
        return [-1, 1, self.model.hidden_size]


def _widened(constant: Node) -> Node:
    """A constant of 16 bits read as float32, marked so that the plugin does not keep a copy of it in that format."""
    made = opset.convert(constant, "f32")
    made.get_rt_info()[_DECOMPRESSION] = ""
    return made


def _flat(x: Node, width: int) -> Node:
    return opset.reshape(x, whole([-1, width]), False)
