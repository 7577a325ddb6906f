"""OpenVINO's paged-attention operation: its inputs in the order of release 2026.4, those that are not used left empty.

The operation is internal ("no backward compatibility"): its inputs change between releases, so the extra pins one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from openvino import Node, Type
from openvino import opset13 as opset
from openvino.op import _PagedAttentionExtension

from meshwright.serving.openvino.operation import parameter, real, whole
from meshwright.specs.model.block import Attention

BLOCK_TOKENS = 32  # the CPU plugin knows blocks of this size only


class StepTables(NamedTuple):
    """What is the same for all layers of a step: S sequences, whose blocks lie one behind the other.

    Args:
        past_lengths: ``[S]``.
        query_starts: ``[S + 1]``.
        block_ids: of all sequences.
        block_starts: ``[S + 1]``.
        max_context: a scalar.
    """

    past_lengths: Node
    query_starts: Node
    block_ids: Node
    block_starts: Node
    max_context: Node


def step_tables() -> StepTables:
    """Their inputs of a graph, named as here."""
    shapes = {"past_lengths": [-1], "query_starts": [-1], "block_ids": [-1], "block_starts": [-1]}
    tables = {name: parameter(name, shape, Type.i32) for name, shape in shapes.items()}
    return StepTables(**tables, max_context=parameter("max_context", [], Type.i32))


def block_inputs(layer: int, attention: Attention) -> tuple[Node, Node]:
    """The inputs for the blocks of keys and of values; the plugin decides their format and layout within a block."""
    shape = [-1, attention.num_kv_heads, -1, attention.head_dim]
    keys, values = (parameter(f"{kind}_blocks.{layer}", shape, Type.dynamic) for kind in ("key", "value"))
    return keys, values


def paged_attention(
    query_key_value: tuple[Node, Node, Node],
    blocks: tuple[Node, Node],
    tables: StepTables,
    attention: Attention,
    score_scale: float,
) -> Node:
    """What each token takes from those it sees, ``[T, 1, heads * head_dim]``; new keys and values are in their blocks.

    Args:
        query_key_value: ``[T, width]`` each, turned.
        blocks: as of `block_inputs`.
        score_scale: of products of queries and keys.
    """
    zero, none = _whole(0), _whole([])
    no_reals = real(np.zeros(0))
    inputs = [
        *query_key_value,
        *blocks,
        tables.past_lengths,
        tables.query_starts,
        tables.block_ids,
        tables.block_starts,
        real(score_scale),
        _whole(attention.window),
        no_reals,  # slopes of ALiBi
        tables.max_context,
        none,  # score aggregation: its window
        *(none, none, no_reals),  # rotated blocks: which, by how much, the table
        *(no_reals, zero, zero),  # sparse prefill: threshold, block, stride
        real(np.zeros((0, 1, 1, 1))),  # sinks
        *(
            zero,
            none,
            none,
            none,
        ),  # adaptive eviction: where it begins, sizes, diversity blocks and their starts
        none,  # kinds of tokens, for models of pictures
        opset.constant(np.zeros(0, np.uint8)),  # a mask among the new tokens
        none,  # where that of each sequence begins
    ]
    made = _PagedAttentionExtension([node.output(0) for node in inputs])
    info = made.get_rt_info()
    info["num_k_heads"] = info["num_v_heads"] = attention.num_kv_heads
    info["k_head_size"] = info["v_head_size"] = attention.head_dim
    return opset.unsqueeze(made.output(0), whole([1]))


def _whole(values: int | list[int]) -> Node:
    return opset.constant(np.asarray(values, np.int32))
