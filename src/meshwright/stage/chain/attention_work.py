"""Attention in parts: bytes of what goes between them and of what devices exchange along cp, works of the steps of a ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from meshwright.ir.table import Work
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.operator import Operator, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.stage.exchange.inner import SUM_BYTES

RELAY_STEPS = {
    "ATTEND": "F",
    "ATTEND_AGAIN": "R",
    "ATTEND_BACKWARD": "I",
}  # steps of a relay -> the pass that they are of
FIRST = " first"  # behind a step's name: of the first one alone, where it is not as the others


def relay_works(works: Mapping[str, Work], num_steps: int) -> dict[str, Work]:
    """Of a segment that is a relay, by its works as a whole: what each step does, and what stands behind the steps nothing.

    Of pieces in a zigzag, and of stripes, every step does an equal part. Of contiguous ones the last device, which is the one
    counted, attends to its own piece in the first step, and to twice as many pairs in every other; with a window shorter
    than a piece the first step is all.
    """
    found = {
        name: work._replace(flops=0.0, bytes=0.0, share=0.0, operators=()) for name, work in works.items()
    }
    for step, name in RELAY_STEPS.items():
        first, other = (
            _step_work(works[name], step, num_steps, is_first=is_first) for is_first in (True, False)
        )
        found[step] = other
        if first != other:
            found[step + FIRST] = first
    return found


def _step_work(work: Work, step: str, num_steps: int, *, is_first: bool) -> Work:
    operators = tuple(own for each in work.operators for own in _of_step(each, num_steps, is_first=is_first))
    flops = total_flops(operators)
    return work._replace(
        name=step, flops=flops, bytes=total_bytes(operators), operators=operators,
        share=work.share * flops / work.flops if work.flops else work.share / num_steps,
    )  # fmt: skip


def _of_step(operator: Operator, num_steps: int, *, is_first: bool) -> tuple[Operator, ...]:
    """Causal products are dealt out one by one, all else in equal parts."""
    if operator.kind != "attention":
        return (replace(operator, flops=operator.flops / num_steps, bytes=operator.bytes / num_steps),)
    each = -(-operator.count // num_steps) if operator.count >= num_steps else 0
    count = operator.count - each * (num_steps - 1) if is_first else each
    return (replace(operator, count=count),) if count else ()


class _Widths(NamedTuple):
    """Numbers of a token on a device: queries, keys and values, results, what Ulysses' devices get of a projection, heads."""

    query: int
    block: int
    attended: int
    parts: int
    heads: int


def _widths(plan: Plan) -> _Widths:
    """Where blocks differ of the widest. A key-value head that Ulysses' devices share is there once for each of them."""
    found = []
    for kind in plan.model.kinds:
        own = kind.attention
        num_heads, num_kv_heads = own.num_heads // plan.tp, own.num_kv_heads // plan.tp
        query, each = num_heads * own.head_dim, own.head_dim + own.value_dim
        if plan.context_parallel.heads_degree > 1:
            num_kv_heads *= plan.context_parallel.repeats_of_key(num_heads, num_kv_heads)
        parts = query + num_kv_heads * each
        found.append(_Widths(query, num_kv_heads * each, num_heads * own.value_dim, parts, num_heads))
    return _Widths(*(max(own) for own in zip(*found, strict=True)))


def attention_bytes(plan: Plan) -> Mapping[str, float]:
    """Bytes on one device of what goes between the parts of attention and between steps of a ring, per token of the whole
    microbatch, by name. Keys and values of all devices are gathered."""
    widths, size = _widths(plan), dtype_bytes(plan.dtype) / plan.cp
    wide, block = max(size, SUM_BYTES / plan.cp), size * widths.block
    return {
        "query": size * widths.query,
        "block": block,
        "all_blocks": plan.cp * block,
        **dict.fromkeys(("qkv", "head_parts", "own_heads"), size * widths.parts),
        **dict.fromkeys(("attended", "token_parts", "attended_parts"), size * widths.attended),
        "travelling_block": block,
        **dict.fromkeys(("leaving_gradient", "arrived_gradient"), wide * widths.block),
        "query_sum": wide * widths.query,
        "attention_state": wide * (widths.attended + widths.heads),
    }
