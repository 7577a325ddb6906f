"""Attention in parts: bytes of what goes between them and of what devices exchange along cp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.plan.plan import Plan
from meshwright.stage.relay.relay_work import Widths, relay_bytes


class _Widths(NamedTuple):
    """Numbers of a token on a device: queries, keys, values, results, heads, what Ulysses' devices get of a projection."""

    query: int
    keys: int
    values: int
    attended: int
    heads: int
    parts: int


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
        keys, values = num_kv_heads * own.head_dim, num_kv_heads * own.value_dim
        found.append(_Widths(query, keys, values, num_heads * own.value_dim, num_heads, parts))
    return _Widths(*(max(own) for own in zip(*found, strict=True)))


def attention_bytes(plan: Plan) -> Mapping[str, float]:
    """Bytes on one device of what goes between the parts of attention and between steps of a ring, per token of the whole
    microbatch, by name. Keys and values of all devices are gathered."""
    widths, size = _widths(plan), dtype_bytes(plan.dtype) / plan.cp
    relays = dict(relay_bytes(plan, Widths(*widths[:-1])))
    return {
        **relays,
        "query": size * widths.query,
        "all_blocks": plan.cp * relays["block"],
        **dict.fromkeys(("qkv", "head_parts", "own_heads"), size * widths.parts),
        **dict.fromkeys(("attended", "token_parts", "attended_parts"), size * widths.attended),
    }
