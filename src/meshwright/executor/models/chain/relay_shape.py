"""Shapes of what devices along cp send each other: blocks of keys and values, queries, what comes back, and gradients.

Shapes: B samples, s tokens of a device, H query and K key-value heads of a tensor-parallel device, D numbers of a query's
head, V of a value's, w numbers of the tensors' dtype for one of the dtype that sums are kept in.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.specs.model.block import Attention
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.sequence.context_parallel import ContextParallel
from meshwright.stage.relay.rounds import AGAIN, RELAYS, Round

# What a relay's segment reads, and sends first, and what its steps send on.
OPERANDS = frozenset((*(each.operand for each in RELAYS), *(each.backward.prepared for each in RELAYS)))
ROUNDS: tuple[Round, ...] = tuple(own for each in RELAYS for own in each.all)
STEPPED = frozenset(
    kind for own in ROUNDS for kind in (own.travels, *((own.owed.made, own.owed.arrived) if own.owed else ()))
)
RELAYED = OPERANDS | STEPPED
# Of these a step's number is that of the step before, which left it.
BEHIND = frozenset(own.owed.arrived for own in ROUNDS if own.owed and own.owed.way == "follows")


def token_part(kind: str, part: int, num_steps: int) -> int:
    """The part of a microbatch that a value is of, by its own part: a step's, counted on through the parts."""
    return part if kind in OPERANDS else (part - (kind in BEHIND)) // num_steps


def relayed_shape(
    model: ModelSpec,
    kind: str,
    num_samples: int,
    num_tokens: int,
    tp: int,
    wide_numbers: int,
    own: ContextParallel,
) -> tuple[int, ...] | None:
    """Of so many tokens that a device attends with, and its part of the heads; where layers of a model differ it is not known
    before the run."""
    shapes = {_of_token(each.attention, kind, tp, wide_numbers, own) for each in model.kinds}
    if len(shapes) > 1:
        return None
    number, *head = shapes.pop()
    return (*((number,) if number else ()), num_samples, num_tokens, *head)


def _of_token(
    attention: Attention, kind: str, tp: int, wide_numbers: int, own: ContextParallel
) -> tuple[int, ...]:
    """Tensors of a block (0: it is no block), heads of one, numbers of a head."""
    heads, kv_heads = attention.num_heads // tp, attention.num_kv_heads // tp
    query, value = attention.head_dim, attention.value_dim
    if attention.latent:
        kv_heads = heads
    if own.heads_degree > 1:
        kv_heads = kv_heads * own.repeats_of_key(heads, kv_heads) // own.heads_degree
        heads //= own.heads_degree
    block = (1, heads, query + value) if attention.latent else (2, kv_heads, query)
    found: Mapping[str, tuple[int, ...]] = {
        **dict.fromkeys(("block", "travelling_block", "leaving_gradient", "arrived_gradient"), block),
        **dict.fromkeys(("query", "travelling_query"), (0, heads, query)),
        **dict.fromkeys(("partial_state", "returned_state"), (0, heads, value + wide_numbers)),
        **dict.fromkeys(("own_rows", "travelling_rows"), (0, heads, query + value + 2 * wide_numbers)),
        **dict.fromkeys(("leaving_query_gradient", "returned_query_gradient"), (0, heads, query)),
        **dict.fromkeys(("keys", "travelling_keys"), (0, kv_heads, query)),
        **dict.fromkeys(("values", "travelling_values"), (0, kv_heads, value)),
    }
    return found[kind.removesuffix(AGAIN)]
