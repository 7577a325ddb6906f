"""Operator: one kernel-sized piece of work (a matrix product, a norm, ...), what the cost model prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

OperatorKind = Literal[
    "matmul",
    "grouped_matmul",
    "attention",
    "cached_attention",
    "elementwise",
    "activation",
    "norm",
    "routing",
    "permutation",
    "embedding",
    "loss",
    "optimizer",
    "host_copy",
]
Phase = Literal["forward", "backward", "input_gradient", "weight_gradient"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operation as one device runs it, `count` times over.

    `flops` and `bytes` are of ONE occurrence; `total_flops` and `total_bytes` multiply by `count`.
    Bytes are the least traffic with memory of the unfused operation: every input read once, every
    output written once, nothing kept in a cache between operators.

    Shapes by kind (all local to the device):
        matmul       (m, n, k): [m, k] @ [k, n] -> [m, n]. In phase input_gradient m counts tokens, n the
                     layer's inputs, k its outputs; in weight_gradient m outputs, n inputs, k tokens
        grouped_matmul (groups, m, n, k): as many products of a matmul's shape in one kernel, one for each
                     expert; where the rows do not divide by the experts, m is rounded up, FLOPs and bytes are not
        attention    (batch, heads, kv_heads, sequence, head_dim, causal): causal is 0 where every key is seen,
                     1 where those up to the query's own are, w > 1 where the last w of these are; head_dim is
                     the mean of a query's and a value's width where they differ (latent attention)
        cached_attention (sequences, heads, kv_heads, keys, head_dim, window, bytes): one new token of each sequence, which
                     reads so many cached keys and values (the mean of the sequences; of a window at most its own, 0: no
                     window), numbers of so many bytes
        elementwise  (rows, columns) of the result
        activation   (rows, columns) of the result: GELU, or SiLU (or GELU) of a gate times up
        norm         (rows, columns)
        routing      (tokens, experts, experts_per_token): probabilities of the logits, and the best of them
        permutation  (rows, columns): tokens copied to the experts that want them, or gathered from these
        embedding    (tokens, hidden, vocabulary)
        loss         (tokens, vocabulary)
        optimizer    (parameters,)
        host_copy    (parameters,): between the device's memory and the host's
    `phase` tells a kind from its backward: "backward", or for a matmul the two halves by name.
    `label` names the operator for people ("qkv", "down dW"); it does not enter equality.
    """

    kind: OperatorKind
    flops: float
    bytes: float
    shape: tuple[int, ...]
    count: int = 1
    phase: Phase = "forward"
    label: str = field(default="", compare=False)

    @property
    def variant(self) -> str:
        """Kind and phase in one word: "matmul", "matmul_weight_gradient", "attention_backward", ..."""
        return self.kind if self.phase == "forward" else f"{self.kind}_{self.phase}"

    @property
    def total_flops(self) -> float:
        """Floating-point operations of all `count` occurrences."""
        return self.flops * self.count

    @property
    def total_bytes(self) -> float:
        """Bytes moved to and from memory by all `count` occurrences."""
        return self.bytes * self.count


def total_flops(operators: Iterable[Operator]) -> float:
    """Floating-point operations of a list of operators."""
    return sum(operator.total_flops for operator in operators)


def total_bytes(operators: Iterable[Operator]) -> float:
    """Bytes moved to and from memory by a list of operators."""
    return sum(operator.total_bytes for operator in operators)


def repeated(operators: Iterable[Operator], count: int) -> tuple[Operator, ...]:
    """The same operators, each `count` times as often; none when `count` is zero."""
    if count == 0:
        return ()
    if count == 1:
        return tuple(operators)
    return tuple(replace(operator, count=operator.count * count) for operator in operators)


def merged(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Equal operators (labels aside) joined into one with the counts added; order of first appearance."""
    counts: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], Operator] = {}
    for operator in operators:
        key = (operator.kind, operator.flops, operator.bytes, operator.shape, operator.phase)
        counts[key] = counts.get(key, 0) + operator.count
        first.setdefault(key, operator)
    return tuple(
        first[key] if first[key].count == count else replace(first[key], count=count)
        for key, count in counts.items()
    )
