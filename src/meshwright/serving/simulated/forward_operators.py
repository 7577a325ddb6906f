"""Operators of a step that serves: rows of all requests packed, attention over what is cached, the head on wanted rows.

Kernels are those of an engine that is made for serving: an addition to the residual stream and the norm behind it are one,
so are an activation's two operations, and attention of all prompt chunks is one packed kernel, that of all decodes another.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import NamedTuple

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.routed.whole_experts import of_whole_experts, with_all_tokens
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.block import Attention
from meshwright.specs.operator import Operator
from meshwright.specs.plan.plan import Plan
from meshwright.stage.chain.chain import ChainStep
from meshwright.stage.chain.segment_work import step_operators
from meshwright.stage.operator.layer import local_sizes
from meshwright.stage.work import microbatch_shape

ATTENTION = "attention"  # the step of a chain, behind its norm and before it is added
ON_WANTED_ROWS = frozenset(("final_norm", "head", "cross_entropy", "exponentials", "split_cross_entropy"))
# Touches of each element: of a norm with the addition before it (stream and branch read, stream and result written) over
# those of a norm alone; of SiLU(gate) * up in one kernel over those in two.
ADD_NORM_SHARE, GATED_SHARE = 4 / 2, 3 / 5
PRODUCTS = 4  # FLOPs of a pair of tokens for each number of a head: scores, and the sum of values


class CachedHeads(NamedTuple):
    """What attention of one block reads of its cache on one device: heads of queries and of keys, numbers of a key or value,
    and how many of these a token has."""

    heads: int
    kv_heads: int
    width: int
    numbers_per_token: int


def cached_heads(attention: Attention, tp: int) -> CachedHeads:
    """Of latent attention the latent, which all heads share and every device of tp has whole: its keys and values are one, so
    half of its numbers count as each."""
    heads = attention.num_heads // tp
    if attention.latent:
        numbers = attention.latent.key_value_rank + attention.latent.rotary_head_dim
        return CachedHeads(heads, 1, -(-numbers // 2), numbers)
    kv_heads = attention.num_kv_heads // tp
    width = (attention.head_dim + attention.value_dim + 1) // 2
    return CachedHeads(heads, kv_heads, width, kv_heads * (attention.head_dim + attention.value_dim))


def serving_operators(
    plan: Plan,
    step: ChainStep,
    batch: BatchShape,
    weight_bytes: int,
    attention_dp: int,
    cache_bytes: int,
) -> tuple[Operator, ...]:
    """What one step of a stage's chain runs for a batch, on one device. `weight_bytes`: of a number of the matrices, and of
    what they are multiplied with; results are in the plan's format. ``attention_dp``: groups of devices that attend for
    sequences of their own. ``cache_bytes``: of a number of a key or value."""
    is_shared_out = step.name == ATTENTION and attention_dp > 1
    batch = batch.share(attention_dp) if is_shared_out else batch
    rows = batch.num_rows if step.name in ON_WANTED_ROWS else batch.num_tokens
    if not rows:
        return ()
    shape = microbatch_shape(plan)._replace(num_sequences=1, sequence_length=rows)
    if is_shared_out:
        shape = shape._replace(tp=plan.tp // attention_dp, sequence_parallel=False)
    experts = plan.model.layers[max(0, step.block)].experts if plan.ep > 1 and attention_dp == 1 else None
    shape = shape if experts is None else of_whole_experts(shape, experts)
    found: list[Operator] = []
    for operator in step_operators(plan, shape, step, "F"):
        if experts is not None:
            operator = with_all_tokens(operator, shape, experts, plan.model.hidden_size)
        if operator.kind == "attention":
            found += attention_operators(plan, max(0, step.block), batch, shape.tp, cache_bytes)
        elif operator.kind == "grouped_matmul":
            found.append(of_touched_experts(operator, shape.element_bytes, weight_bytes))
        elif operator.kind == "matmul":
            m, n, k = operator.shape
            num_bytes = (m * k + k * n) * weight_bytes + m * n * shape.element_bytes
            found.append(replace(operator, bytes=float(num_bytes)))
        elif operator.label != "residual":  # else with the norm behind it
            found.append(_fused(operator, has_gate=plan.model.has_gated_mlp))
    return tuple(found)


def _fused(operator: Operator, *, has_gate: bool) -> Operator:
    """The operator with the traffic of serving's own kernels."""
    if operator.kind == "activation" and has_gate:
        return replace(operator, bytes=operator.bytes * GATED_SHARE)
    if operator.label == "norm":
        return replace(operator, bytes=operator.bytes * ADD_NORM_SHARE)
    return operator


def of_touched_experts(operator: Operator, element_bytes: int, weight_bytes: int) -> Operator:
    """Of few rows only the experts that these go to are read: of E, n rows that choose alike touch E (1 - (1 - 1/E)^n)."""
    groups, _, n, k = operator.shape
    rows = operator.flops / (2.0 * n * k)
    touched = max(1, round(groups * (1.0 - (1.0 - 1.0 / groups) ** rows)))
    num_bytes = rows * n * element_bytes + (rows * k + touched * n * k) * weight_bytes
    return replace(operator, bytes=num_bytes, shape=(touched, max(1, -(-round(rows) // touched)), n, k))


def attention_operators(
    plan: Plan, block: int, batch: BatchShape, tp: int, cache_bytes: int
) -> tuple[Operator, ...]:
    """Attention of one block, whose heads `tp` devices share: of all chunks, and of all decodes, which read numbers of
    `cache_bytes`.

    Chunks of T tokens that see P pairs in all are priced as equal sequences of the same tokens and pairs: T^2 / 2P of them,
    at least one. A window leaves every token at most its own length.
    """
    attention, size = plan.model.layers[block].attention, dtype_bytes(plan.dtype)
    local, cached = local_sizes(plan.model, tp, plan.expert_tp, block), cached_heads(attention, tp)
    found: list[Operator] = []
    if batch.chunk_pairs:
        tokens, pairs, width = (
            batch.chunk_tokens,
            batch.chunk_pairs,
            (attention.head_dim + attention.value_dim + 1) // 2,
        )
        pairs = min(pairs, tokens * attention.window) if attention.window else pairs
        number = max(1, round(tokens * tokens / (2 * pairs)))
        length = max(1, round(sqrt(2 * pairs / number)))
        num_bytes = (2 * tokens * local.heads + 2 * number * length * local.kv_heads) * width * size
        dims = (number, local.heads, local.kv_heads, length, width, 1)
        found.append(
            Operator("attention", PRODUCTS * pairs * local.heads * width, num_bytes, dims, label="chunks")
        )
    if batch.num_decodes:
        keys = max(1, round(batch.num_context / batch.num_decodes))
        seen = min(keys, attention.window) if attention.window else keys
        own = 2 * cached.heads * cached.width * size
        num_bytes = batch.num_decodes * (seen * cached.numbers_per_token * cache_bytes + own)
        flops = PRODUCTS * batch.num_decodes * seen * cached.heads * cached.width
        heads = cached.heads, cached.kv_heads
        shape = (batch.num_decodes, *heads, keys, cached.width, attention.window, cache_bytes)
        found.append(Operator("cached_attention", flops, num_bytes, shape, label="decodes"))
    return tuple(found)
