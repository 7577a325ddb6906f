"""What a measurement runs: every operator of a decoder at a few shapes, as the executor runs it.

Shape letters: T tokens, D hidden, N a layer's outputs, V vocabulary, B sequences, H heads, G key-value
heads, S sequence, K head size.
Operands rotate through several copies, because in a real stage they were last used many operators ago.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from math import prod
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from meshwright.executor.meter.compute_clock import compute_seconds
from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.embedding import accumulate_embedding, embedding
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.norm.rms_norm import accumulate_rms_norm, rms_norm
from meshwright.executor.ops.optimizer_step import Optimizer, OptimizerConfig
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.rank.slowed_compute import stretch

Thunk = Callable[[], object]
# Tokens of a microbatch by widths (outputs, inputs) of a projection: what two cores can train.
MATMUL_TOKENS = (64, 256, 1024)
MATMUL_WIDTHS = ((128, 128), (384, 128), (512, 512), (1536, 384), (384, 1024))
# (B, H, G, S, K), as an attention operator's shape is but for `causal`: rates depend on S and K, and little on how many heads
# there are.
ATTENTION_SHAPES = (
    *((4, 4, 4, 64, 32), (2, 4, 4, 64, 64), (2, 4, 4, 128, 32), (2, 4, 4, 128, 64)),
    *((1, 8, 8, 256, 32), (1, 6, 6, 256, 64), (4, 6, 6, 256, 64), (1, 4, 4, 512, 32), (1, 4, 4, 512, 64)),
)
ARRAY_SHAPES = ((64, 128), (256, 192), (256, 512), (1024, 512), (1024, 1024))
LOSS_SHAPES = ((128, 256), (512, 256), (256, 2048))
EMBEDDING_SHAPES = ((256, 256, 256), (1024, 384, 256))
OPTIMIZER_SHAPES = ((100_000,), (1_000_000,), (4_000_000,))
# Copies of operands together exceed this, more than a private second-level cache of common server cores.
ROTATION_BYTES = 4 << 20
MAX_COPIES = 16
ELEMENT_BYTES = 4  # float32
SMALL_CALL_ELEMENTS = 1 << 15  # below this a call is shorter than the clock is exact: time several at once
NORM_EPSILON = 1e-5
MIN_REPETITIONS = 5


class Case(NamedTuple):
    """One sample to take: `prepare` makes the operands and returns the call; `inner` calls are timed at once."""

    table: str
    shape: tuple[int, ...]
    prepare: Callable[[], Thunk]
    inner: int = 1


def compute_cases() -> tuple[Case, ...]:
    """All compute cases, in the order in which they are run."""
    return (
        *_matmul_cases(),
        *(Case("attention", (*s, 1), partial(attention, s, False)) for s in ATTENTION_SHAPES),
        *(Case("attention_backward", (*s, 1), partial(attention, s, True)) for s in ATTENTION_SHAPES),
        *_array_cases("elementwise", add),
        *_array_cases("activation", gated),
        *_array_cases("activation_backward", gated_backward),
        *_array_cases("norm", norm),
        *_array_cases("norm_backward", norm_backward),
        *(Case("loss", s, partial(loss, s, False)) for s in LOSS_SHAPES),
        *(Case("loss_backward", s, partial(loss, s, True)) for s in LOSS_SHAPES),
        *(Case("embedding", s, partial(lookup, s, False)) for s in EMBEDDING_SHAPES),
        *(Case("embedding_backward", s, partial(lookup, s, True)) for s in EMBEDDING_SHAPES),
        *(Case("optimizer", s, partial(adamw, s[0])) for s in OPTIMIZER_SHAPES),
    )


def _matmul_cases() -> Iterable[Case]:
    """Every width at every number of tokens, in the three layouts of forward, input and weight gradient."""
    for tokens, (num_out, num_in) in itertools.product(MATMUL_TOKENS, MATMUL_WIDTHS):
        sizes = (tokens, num_out, num_in)
        yield Case("matmul", sizes, partial(linear, *sizes))
        shape = (tokens, num_in, num_out)
        yield Case("matmul_input_gradient", shape, partial(input_gradient, *sizes))
        shape = (num_out, num_in, tokens)
        yield Case("matmul_weight_gradient", shape, partial(weight_gradient, *sizes))


def _array_cases(table: str, make: Callable[[int, int], Thunk]) -> Iterable[Case]:
    for shape in ARRAY_SHAPES:
        inner = 4 if shape[0] * shape[1] <= SMALL_CALL_ELEMENTS else 1
        yield Case(table, shape, partial(make, *shape), inner)


def rotating(sets: Sequence[Thunk]) -> Thunk:
    """A call that runs the next of `sets` each time."""
    cycle = itertools.cycle(sets)
    return lambda: next(cycle)()


def num_copies(num_elements: int) -> int:
    """How many copies of operands of `num_elements` numbers outgrow the private caches."""
    return max(2, min(MAX_COPIES, ROTATION_BYTES // (num_elements * ELEMENT_BYTES) + 1))


def rotated(num_elements: Callable[..., int]) -> Callable[[Callable[..., Thunk]], Callable[..., Thunk]]:
    """Of a function that makes one call: copies of it take turns, as many as its operands of so many numbers ask for."""

    def over_copies(make: Callable[..., Thunk]) -> Callable[..., Thunk]:
        @wraps(make)
        def made(*shape: Any) -> Thunk:
            return rotating([make(*shape) for _ in range(num_copies(num_elements(*shape)))])

        return made

    return over_copies


@rotated(lambda num_tokens, num_out, num_in: num_tokens * num_in + num_out * num_in)
def linear(num_tokens: int, num_out: int, num_in: int) -> Thunk:
    """x_TD @ w_ND.T."""
    x_TD, w_ND = torch.randn(num_tokens, num_in), torch.randn(num_out, num_in)
    return lambda: functional.linear(x_TD, w_ND)


@rotated(lambda num_tokens, num_out, num_in: num_tokens * num_out + num_out * num_in)
def input_gradient(num_tokens: int, num_out: int, num_in: int) -> Thunk:
    """dy_TN @ w_ND."""
    dy_TN, w_ND = torch.randn(num_tokens, num_out), torch.randn(num_out, num_in)
    return lambda: dy_TN @ w_ND


@rotated(lambda num_tokens, num_out, num_in: num_tokens * (num_out + num_in))
def weight_gradient(num_tokens: int, num_out: int, num_in: int) -> Thunk:
    """dy_TN.T @ x_TD."""
    dy_TN, x_TD = torch.randn(num_tokens, num_out), torch.randn(num_tokens, num_in)
    return lambda: dy_TN.t() @ x_TD


def backward_of(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Thunk:
    """Gradients of `inputs` through an operator that has run; its graph is kept for the next call."""
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _num_projected(shape: tuple[int, ...], is_backward: bool) -> int:
    """Numbers of a fused projection for attention of (B, H, G, S, K)."""
    batch, heads, kv_heads, sequence, head_dim = shape
    return batch * sequence * (heads + 2 * kv_heads) * head_dim


@rotated(_num_projected)
def attention(shape: tuple[int, ...], is_backward: bool) -> Thunk:
    """Causal attention, (B, H, G, S, K), of a fused projection; positions do not turn, `rotary` is an operator of its own."""
    batch, heads, kv_heads, sequence, head_dim = shape
    layout = HeadLayout(kv_heads, heads // kv_heads, head_dim)
    qkv = torch.randn(batch, sequence, (heads + 2 * kv_heads) * head_dim, requires_grad=is_backward)
    if not is_backward:
        return lambda: causal_attention(qkv, layout, None)
    return backward_of(causal_attention(qkv, layout, None), (qkv,))


@rotated(lambda rows, columns: 2 * rows * columns)
def add(rows: int, columns: int) -> Thunk:
    """A residual sum."""
    a_TD, b_TD = torch.randn(rows, columns), torch.randn(rows, columns)
    return lambda: a_TD + b_TD


@rotated(lambda rows, columns: 2 * rows * columns)
def gated(rows: int, columns: int) -> Thunk:
    """SiLU(gate) * up, gate and up being halves of one projection."""
    both_T2N = torch.randn(rows, 2 * columns)
    return lambda: gated_silu(both_T2N)


@rotated(lambda rows, columns: 4 * rows * columns)
def gated_backward(rows: int, columns: int) -> Thunk:
    """Gradient of both halves."""
    both_T2N = torch.randn(rows, 2 * columns, requires_grad=True)
    return backward_of(gated_silu(both_T2N), (both_T2N,))


@rotated(lambda rows, columns: rows * columns)
def norm(rows: int, columns: int) -> Thunk:
    """RMSNorm."""
    x_TD, weight_D = torch.randn(rows, columns), torch.ones(columns)
    return lambda: rms_norm(x_TD, weight_D, NORM_EPSILON)


@rotated(lambda rows, columns: 2 * rows * columns)
def norm_backward(rows: int, columns: int) -> Thunk:
    """Gradient of a norm's input, and its weight's gradient added to the sum."""
    x_TD = torch.randn(rows, columns, requires_grad=True)
    weight_D = torch.nn.Parameter(torch.ones(columns))
    output_TD = rms_norm(x_TD, weight_D, NORM_EPSILON)
    gradient_TD, r_T1 = torch.ones_like(output_TD), torch.ones(rows, 1)

    def both() -> None:
        torch.autograd.grad(output_TD, (x_TD,), gradient_TD, retain_graph=True)
        accumulate_rms_norm(x_TD.detach(), gradient_TD, r_T1, weight_D)

    return both


@rotated(lambda shape, is_backward: prod(shape))
def loss(shape: tuple[int, int], is_backward: bool) -> Thunk:
    """Cross entropy of logits_TV."""
    num_tokens, vocabulary = shape
    logits_TV = torch.randn(num_tokens, vocabulary, requires_grad=is_backward)
    target_T = torch.randint(vocabulary, (num_tokens,))
    if not is_backward:
        return lambda: token_cross_entropy(logits_TV, target_T, 1.0)
    return backward_of(token_cross_entropy(logits_TV, target_T, 1.0), (logits_TV,))


@rotated(lambda shape, is_backward: shape[0] * shape[1] + shape[2] * shape[1])
def lookup(shape: tuple[int, int, int], is_backward: bool) -> Thunk:
    """Lookup in table_VD, or adding gradients to the rows that were taken."""
    num_tokens, hidden, vocabulary = shape
    table_VD = torch.nn.Parameter(torch.randn(vocabulary, hidden))
    token_T = torch.randint(vocabulary, (num_tokens,))
    if not is_backward:
        return lambda: embedding(token_T, table_VD)
    gradient_TD = torch.randn(num_tokens, hidden)
    return lambda: accumulate_embedding(token_T, gradient_TD, table_VD, None)


def adamw(num_parameters: int) -> Thunk:
    """A clipped step of AdamW on parameters in a few tensors, gradients in place."""
    sizes = [num_parameters // 8] * 8
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = Optimizer(parameters, OptimizerConfig())
    return step.run


def time_case(run: Thunk, budget_s: float, inner: int = 1, compute_factor: float = 1.0) -> list[float]:
    """Seconds of one call, several times over, for about `budget_s`; one call warms up."""
    run()
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < MIN_REPETITIONS or time.perf_counter() < deadline:
        start = compute_seconds()
        for _ in range(inner):
            run()
        stretch(compute_factor, start)
        times.append((compute_seconds() - start) / inner)
    return times
