"""Operators of a layer: each matrix product, norm, attention, ... of a decoder with its FLOPs and bytes.

Letters: T tokens of the microbatch on one device, b bytes of a number, m, n, k the dimensions of a product.
Tensor-parallel degree tp divides heads, intermediate sizes and vocabulary, with sequence parallelism also the
rows of norms and residuals; context-parallel degree cp divides every sequence. Their messages are in
`lowering.inner_exchange`.

Conventions: a multiply and an add are 2 FLOPs; bytes are each input read once and each output written once,
per unfused operation. The product of a weight gradient adds to the sum over microbatches in place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.model.block import Attention, BlockSpec
from meshwright.specs.model.division import check_division
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator, Phase
from meshwright.specs.plan.optimizer import UpdateRule
from meshwright.specs.sequence.sequence_part import Arrangement

# Attention copies q, k, v to contiguous heads (turning q and k as it goes) and its result back: a read and a
# write of each element, and the same with the gradients.
LAYOUT_TOUCHES = 2
ROTARY_FLOPS = 3  # a complex product of pairs: 6 operations for two numbers
GATED_TOUCHES, GATED_BACKWARD_TOUCHES = 5, 9  # silu 2, times up 3; backward: two products 3 each, silu 3
GATED_FLOPS, GATED_BACKWARD_FLOPS = 6, 12  # sigmoid as 4 operations, two products; twice that backward
GELU_TOUCHES, GELU_BACKWARD_TOUCHES = 2, 3
GELU_FLOPS, GELU_BACKWARD_FLOPS = 10, 20
ADD_TOUCHES = 3  # two inputs, one output
NORM_FLOPS, NORM_BACKWARD_FLOPS, NORM_WEIGHT_FLOPS = 6, 12, 3  # per element: square, mean, scale, weight; ...
NORM_TOUCHES, NORM_BACKWARD_TOUCHES, NORM_WEIGHT_TOUCHES = 2, 3, 2  # x, y; x, dy, dx; x, dy
LOSS_FLOPS, LOSS_BACKWARD_FLOPS = 5, 3  # exponential, maximum, sum, subtraction per logit
LOSS_TOUCHES, LOSS_BACKWARD_TOUCHES = 2, 4  # logits, log-probabilities; their sparse gradient, saved, result
EMBEDDING_BACKWARD_TOUCHES = 3  # the gradient's row read, the sum's row read and written
# Of logits under a cap c * tanh(x / c), as three operations: each reads and writes; backward tanh reads one more.
CAP_TOUCHES, CAP_BACKWARD_TOUCHES = 6, 7
CAP_FLOPS, CAP_BACKWARD_FLOPS = 8, 5  # tanh as 6 operations
SCALE_TOUCHES = 2  # one array times a number into another


class MicrobatchShape(NamedTuple):
    """What one instruction works on: `num_sequences` rows of `sequence_length` tokens in format `dtype`.

    `tp` devices share every block's matrices, `ep` devices its experts: each has num_experts / ep of them and,
    as all of them route their own tokens, as many rows as without. `expert_tp` devices share an expert's matrices (0: `tp`),
    and have the rows of all of them. `cp` devices share every sequence, whose
    tokens lie as `arrangement` says; what is counted is the device's that attends to most, for which the others wait.
    `heads_degree` of them divide the heads among themselves while they attend; where keys and values of others come
    `in_pieces`, what is attended is merged. Gradients are summed in
    `gradient_dtype` (empty: as `dtype`). `sequence_parallel`: norms and residuals are divided along tp. `attention`:
    as of a plan; "flash" stores no score matrix. ``num_earlier``: tokens of each sequence in front of these rows, whose keys
    and values attention reads, too (chunks of sequences; with cp 1). ``document_length``: of the documents that attention
    stays within, packed one behind the other (0: a sequence is one text).
    """

    num_sequences: int
    sequence_length: int
    dtype: str = "float32"
    tp: int = 1
    ep: int = 1
    cp: int = 1
    sequence_parallel: bool = False
    expert_tp: int = 0
    attention: str = "flash"
    gradient_dtype: str = ""
    arrangement: Arrangement = "zigzag"
    heads_degree: int = 1
    in_pieces: bool = False
    num_earlier: int = 0
    document_length: int = 0
    expert_load: float = 1.0

    @property
    def attended(self) -> MicrobatchShape:
        """The same tokens as attention sees them: documents are its sequences. Of a chunk that cuts documents each has no
        more tokens in front of it than a document."""
        length = self.document_length
        if not length or length >= self.sequence_length + self.num_earlier:
            return self
        if length > self.sequence_length:
            earlier = self.num_earlier % length
            return self._replace(num_earlier=min(earlier, length - self.sequence_length), document_length=0)
        number = self.num_sequences * (self.sequence_length // length)
        return self._replace(
            num_sequences=number, sequence_length=length, num_earlier=0, document_length=0,
            arrangement=self.arrangement if length > self.attending_length else "zigzag",
        )  # fmt: skip

    @property
    def num_tokens(self) -> int:
        """Tokens of the microbatch on one device of a context-parallel group."""
        return self.num_sequences * self.local_length

    @property
    def local_length(self) -> int:
        """Tokens of one sequence on one device, rounded up."""
        return -(-self.sequence_length // self.cp)

    @property
    def ring_degree(self) -> int:
        """Devices, or groups of those that divide heads, whose queries are of different tokens while they attend."""
        return self.cp // self.heads_degree

    @property
    def attending_length(self) -> int:
        """Tokens of one sequence whose queries a device has while it attends."""
        return -(-self.sequence_length // self.ring_degree)

    @property
    def num_rows(self) -> int:
        """Tokens that norms and residuals of one device work on."""
        return -(-self.num_tokens // self.tp) if self.sequence_parallel else self.num_tokens

    @property
    def num_routed_tokens(self) -> int:
        """Tokens whose rows go through the experts of this device, and are permuted for it: its own part of those of tp
        devices, of as many devices as share an expert's matrices."""
        return -(-self.num_tokens * (self.expert_tp or self.tp) // self.tp)

    @property
    def num_sent_tokens(self) -> int:
        """Tokens whose rows this device sends to their experts: those of its part of the stream; without sequence parallelism
        those that no other device of its tensor-parallel group sends to other matrices."""
        if self.sequence_parallel:
            return -(-self.num_tokens // self.tp)
        return -(-self.num_tokens * min(self.tp, self.expert_tp or self.tp) // self.tp)

    def num_own_rows(self, num_per_token: int) -> int:
        """Rows of a device's own tokens, whatever the routing; but for choices that a capacity drops."""
        return math.ceil(self.num_routed_tokens * num_per_token * min(1.0, self.expert_load))

    def num_expert_rows(self, num_per_token: int) -> int:
        """Rows that the experts of the busiest device get, of tokens that go to so many experts each."""
        return math.ceil(self.num_routed_tokens * num_per_token * self.expert_load)

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return dtype_bytes(self.dtype)


class Linear(NamedTuple):
    """A projection of T rows, local to the device."""

    label: str
    num_in: int
    num_out: int
    has_bias: bool

    def forward(self, shape: MicrobatchShape) -> Operator:
        """[T, in] @ [in, out]; the bias rides along."""
        return _matmul(self.label, (shape.num_tokens, self.num_out, self.num_in), shape)

    def input_gradient(self, shape: MicrobatchShape) -> Operator:
        """[T, out] @ [out, in]."""
        dims = (shape.num_tokens, self.num_in, self.num_out)
        return _matmul(f"{self.label} dX", dims, shape, "input_gradient")

    def weight_gradient(self, shape: MicrobatchShape) -> tuple[Operator, ...]:
        """[out, T] @ [T, in] added to the sum over microbatches, and the column sum for a bias."""
        dims = (self.num_out, self.num_in, shape.num_tokens)
        product = _matmul(f"{self.label} dW", dims, shape, "weight_gradient")
        if not self.has_bias:
            return (product,)
        work, dims_bias = shape.num_tokens * self.num_out, (shape.num_tokens, self.num_out)
        size_bytes = work * shape.element_bytes
        return (product, Operator("elementwise", work, size_bytes, dims_bias, label=f"{self.label} db"))


def _matmul(
    label: str, dims: tuple[int, int, int], shape: MicrobatchShape, phase: Phase = "forward"
) -> Operator:
    """[m, k] @ [k, n], each matrix touched once; a sum in place is read as well as written."""
    m, n, k = dims
    result_bytes = shape.element_bytes
    if phase == "weight_gradient":
        result_bytes = 2 * dtype_bytes(shape.gradient_dtype or shape.dtype)
    size_bytes = (m * k + k * n) * shape.element_bytes + m * n * result_bytes
    return Operator("matmul", 2.0 * m * n * k, size_bytes, dims, phase=phase, label=label)


def residual_add(label: str, shape: MicrobatchShape, columns: int) -> Operator:
    """Sum of two [T, columns] arrays into a third; with sequence parallelism of T / tp rows."""
    work = shape.num_rows * columns
    size_bytes = ADD_TOUCHES * work * shape.element_bytes
    return Operator("elementwise", work, size_bytes, (shape.num_rows, columns), label=label)


def norm_forward(label: str, rows: int, columns: int, shape: MicrobatchShape) -> Operator:
    """RMSNorm or LayerNorm of `rows` rows."""
    work = rows * columns
    size_bytes = NORM_TOUCHES * work * shape.element_bytes
    return Operator("norm", NORM_FLOPS * work, size_bytes, (rows, columns), label=label)


def norm_backward(label: str, rows: int, columns: int, shape: MicrobatchShape) -> Operator:
    """Gradient of a norm's input."""
    work = rows * columns
    size_bytes = NORM_BACKWARD_TOUCHES * work * shape.element_bytes
    flops = NORM_BACKWARD_FLOPS * work
    return Operator("norm", flops, size_bytes, (rows, columns), phase="backward", label=f"{label} backward")


def norm_weight(label: str, rows: int, columns: int, shape: MicrobatchShape) -> Operator:
    """Gradient of a norm's weight: a sum over rows."""
    work = rows * columns
    size_bytes = NORM_WEIGHT_TOUCHES * work * shape.element_bytes
    return Operator("elementwise", NORM_WEIGHT_FLOPS * work, size_bytes, (rows, columns), label=f"{label} dW")


class LocalSizes(NamedTuple):
    """Sizes of one block on one device of a tensor-parallel group."""

    heads: int
    kv_heads: int
    query: int
    key: int
    value: int
    result: int
    intermediate: int
    expert_intermediate: int
    shared_intermediate: int
    vocabulary: int


def local_sizes(model: ModelSpec, tp: int, expert_tp: int = 0, number: int = 0) -> LocalSizes:
    """Sizes of block `number` on one of `tp` devices, of experts on one of `expert_tp` (0: as many).

    Raises PlanError as `check_division`, and where the vocabulary does not divide: executed, its last rows are padding.
    """
    check_division(model, tp, expert_tp)
    if model.vocabulary_size % tp:
        raise PlanError(
            f"tp={tp} does not divide the vocabulary of {model.vocabulary_size} of {model.name}",
            allowed="a tensor-parallel degree that divides it",
            next="choose another degree; software pads a vocabulary that does not divide: give the model the padded one",
        )
    attention, experts = model.layers[number].attention, model.layers[number].experts
    heads, kv_heads = attention.num_heads // tp, attention.num_kv_heads // tp
    return LocalSizes(
        heads=heads,
        kv_heads=kv_heads,
        query=heads * attention.head_dim,
        key=kv_heads * attention.head_dim,
        value=kv_heads * attention.value_dim,
        result=heads * attention.value_dim,
        intermediate=0 if experts else model.layers[number].feed_forward.intermediate_size // tp,
        expert_intermediate=experts.intermediate_size // (expert_tp or tp) if experts else 0,
        shared_intermediate=experts.shared_intermediate_size // tp if experts else 0,
        vocabulary=model.vocabulary_size // tp,
    )


def attention_linears(hidden: int, attention: Attention, local: LocalSizes) -> tuple[Linear, ...]:
    """The projections before attention (q, k and v fused, or latent attention's), then output.

    Projections to a latent are whole on every device; those from it are divided with the heads.
    """
    latent, has_bias = attention.latent, attention.has_qkv_bias
    output = Linear("output", local.result, hidden, attention.has_output_bias)
    if latent is None:
        return (Linear("qkv", hidden, local.query + local.key + local.value, has_bias), output)
    queries: tuple[Linear, ...] = (Linear("query", hidden, local.query, False),)
    if latent.query_rank:
        queries = (
            Linear("query down", hidden, latent.query_rank, has_bias),
            Linear("query up", latent.query_rank, local.query, False),
        )
    unturned = local.heads * (attention.head_dim - latent.rotary_head_dim)
    return (
        *queries,
        Linear("key-value down", hidden, latent.key_value_rank + latent.rotary_head_dim, has_bias),
        Linear("key-value up", latent.key_value_rank, unturned + local.value, False),
        output,
    )


def mlp_linears(model: ModelSpec, block: BlockSpec, inner: int, prefix: str = "") -> tuple[Linear, Linear]:
    """Up (fused with the gate where there is one) and down of a block's MLP that is `inner` wide here."""
    hidden, width = model.hidden_size, 2 * inner if model.has_gated_mlp else inner
    has_bias = block.feed_forward.has_bias
    return (
        Linear(prefix + ("gate_up" if model.has_gated_mlp else "up"), hidden, width, has_bias),
        Linear(f"{prefix}down", inner, hidden, has_bias),
    )


def attention_norms(attention: Attention, local: LocalSizes, rows: int) -> tuple[tuple[str, int, int], ...]:
    """(label, rows, columns) of the norms inside attention: of q and k by heads, of the latents."""
    found = []
    if attention.has_query_key_norm:
        found.append(("q and k norm", rows * (local.heads + local.kv_heads), attention.head_dim))
    if attention.latent and attention.latent.query_rank:
        found.append(("query latent norm", rows, attention.latent.query_rank))
    if attention.latent:
        found.append(("key-value latent norm", rows, attention.latent.key_value_rank))
    return tuple(found)


def head_layout(
    model: ModelSpec, attention: Attention, local: LocalSizes, shape: MicrobatchShape
) -> Operator:
    """q, k, v to heads, q and k turned to their positions, and the result back; backward costs the same."""
    columns = local.query + local.key + local.value + local.result
    size_bytes = LAYOUT_TOUCHES * shape.num_tokens * columns * shape.element_bytes
    num_turned = 0 if model.has_learned_positions else local.query + local.key
    if attention.latent:  # the turned part of a key is one for all heads
        num_turned = (local.heads + 1) * attention.latent.rotary_head_dim
    flops = ROTARY_FLOPS * shape.num_tokens * num_turned
    return Operator("elementwise", flops, size_bytes, (shape.num_tokens, columns), label="rotary, heads")


def activation_forward(model: ModelSpec, rows: int, columns: int, shape: MicrobatchShape) -> Operator:
    """SiLU(gate) * up as two operations (GELU(gate) costs as much), or GELU."""
    touches, flops = (GATED_TOUCHES, GATED_FLOPS) if model.has_gated_mlp else (GELU_TOUCHES, GELU_FLOPS)
    size_bytes = touches * rows * columns * shape.element_bytes
    return Operator("activation", flops * rows * columns, size_bytes, (rows, columns), label="activation")


def activation_backward(model: ModelSpec, rows: int, columns: int, shape: MicrobatchShape) -> Operator:
    """Gradients of gate and up, or of GELU's input."""
    touches, flops = GELU_BACKWARD_TOUCHES, GELU_BACKWARD_FLOPS
    if model.has_gated_mlp:
        touches, flops = GATED_BACKWARD_TOUCHES, GATED_BACKWARD_FLOPS
    work, dims = rows * columns, (rows, columns)
    size_bytes = touches * work * shape.element_bytes
    return Operator(
        "activation", flops * work, size_bytes, dims, phase="backward", label="activation backward"
    )


def step_operators(num_parameters: int, dtype: str, rule: UpdateRule) -> tuple[Operator, ...]:
    """The optimizer on `num_parameters` local parameters whose master copy and gradient are `dtype`."""
    size_bytes, flops = num_parameters * rule.moved_bytes(dtype), num_parameters * rule.flops
    return (Operator("optimizer", flops, size_bytes, (num_parameters,), label=type(rule).__name__.lower()),)
