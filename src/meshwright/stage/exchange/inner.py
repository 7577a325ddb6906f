"""Exchanges inside a stage: what tensor, sequence, context and expert parallelism send in F, B, I, W and R of one microbatch.

Bytes are those of the whole tensor (after a gather, before a scatter; of one member's buffer for an all-to-all).

    tensor       two all-reduces of [T, h] a block and pass (Shoeybi et al. 2019, arXiv 1909.08053)
    sequence     each becomes a gather and a scatter; the input of a column-parallel layer is gathered once more in the
                 backward, beside the product that needs no gathering, where it is not kept (`gathered`; Korthikanti et al.
                 2022, arXiv 2205.05198)
    context      of a ring keys and values of all pieces, beside attention; backward their gradients, too (Liu et al. 2023,
                 arXiv 2310.01889). Gathered, the same bytes before and behind attention (arXiv 2407.21783, section 3.3.2).
                 Ulysses: all-to-all of queries, keys and values, and of the result, in both passes (arXiv 2309.14509); inside
                 a ring both, each among its devices (arXiv 2405.07719)
    expert       all-to-all to the experts and back, [T k, h] each way (Lepikhin et al. 2020, arXiv 2006.16668)
    pipeline     without sequence parallelism every device of a tensor-parallel group sends its share of [T, h] to the
                 next stage, which gathers it (Narayanan et al. 2021, arXiv 2104.04473, section 4.1)
    vocabulary   interlaced: the hidden state to all stages, its gradient back; with barriers they are instructions of their
                 own (`vocabulary_effect`), inside which tensor-parallel devices share it out (arXiv 2411.05288)
"""

from __future__ import annotations

from meshwright.ir.axis import FIRST_AXIS
from meshwright.ir.table import IN_PARTS, ROUTED, ROUTED_ONCE, Exchange, Inner
from meshwright.specs.model.layers import StageLayers, begins_decoder
from meshwright.specs.plan.plan import Plan
from meshwright.stage.exchange.once import sent_share
from meshwright.stage.exchange.relay_exchange import (
    SUM_BYTES,
    SentRows,
    full_score_exchanges,
    token_ring_exchanges,
)
from meshwright.stage.mesh import (
    folds_experts,
    gathered_axes,
    heads_axes,
    num_members,
    ring_axes,
    routed_axes,
    tensor_axes,
    told_axes,
)
from meshwright.stage.operator.expert import INDEX_BYTES
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.piece import (
    has_vocabulary_passes,
    has_vocabulary_share,
    is_from_other_stage,
    is_vocabulary_split,
)
from meshwright.stage.saved.recomputed import recomputed_layers, recomputes_ends
from meshwright.stage.saved.saved import boundary_bytes_per_token

LOSS_EXCHANGES = 3  # maximum, sum and the target's logit of every token (vocabulary-parallel cross entropy)
LOSS_ELEMENT_BYTES = 4  # of the loss, in float32
RELAYED = {"token_ring": token_ring_exchanges, "ring_self_attention": full_score_exchanges}


def inner_exchanges(plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape) -> tuple[Inner, ...]:
    """Everything that pass `name` of a stage sends inside; none for W, whose operands are local.

    R sends for what is recomputed only.
    """
    if name == "W":
        return ()
    has_share = has_vocabulary_share(plan, layers) and not has_vocabulary_passes(plan)
    if name == "R":
        has_share = has_share and recomputes_ends(plan, layers)
        layers = recomputed_layers(plan, layers)
    is_backward = name in ("B", "I")
    found: list[Inner] = []
    if plan.tp > 1:
        found += _tensor(plan, layers, shape, is_backward)
    if plan.cp > 1:
        found += _context(plan, layers, shape, is_backward)
    if folds_experts(plan):
        found += _expert(plan, layers, shape)
    if plan.shared_choices != "none" and not is_backward:
        found.append(_chosen(plan, layers, shape))
    if has_share:
        found += _vocabulary(plan, shape)
    return tuple(each for each in found if each.count)


def _tensor(plan: Plan, layers: StageLayers, shape: MicrobatchShape, is_backward: bool) -> list[Inner]:
    """Of all blocks, of the embedding's rows and of the head with its loss."""
    num_bytes = float(shape.num_tokens * plan.model.hidden_size * shape.element_bytes)
    beside = "matmul" if "tp" in plan.overlap else ""
    has_ends = not is_vocabulary_split(plan)
    axes = tensor_axes(plan)
    sums = _num_sums(plan, layers)
    sums += has_ends and (layers.has_head if is_backward else layers.has_embedding)
    # tokens that a decoder goes on with are embedded
    sums += _begins(plan, layers) and not is_backward

    def along_tp(algorithm: str, count: int, beside: str, size: float = num_bytes) -> Inner:
        algorithm += IN_PARTS if beside and "tp" in plan.overlap else ""
        return Inner(Exchange(axes, algorithm=algorithm), size, count, beside, "tensor parallel")

    if not plan.sequence_parallel:
        is_from_passes = layers.has_head if is_backward else layers.has_embedding
        is_from_passes = is_from_passes and has_vocabulary_passes(plan)
        is_sent = int(is_from_passes or is_from_other_stage(plan, layers, is_backward))
        block = layers.first_block + layers.num_blocks * is_backward
        sent_bytes = float(shape.num_tokens * boundary_bytes_per_token(plan.model, plan.dtype, block))
        found = [along_tp("all_reduce", sums, beside), along_tp("all_gather", is_sent, "", sent_bytes)]
    else:
        gathers = _num_sums(plan, layers) + (
            has_ends and (layers.has_embedding if is_backward else layers.has_head)
        )
        gathers += _begins(plan, layers) and is_backward
        found = [along_tp("reduce_scatter", sums, beside), along_tp("all_gather", gathers, beside)]
        if is_backward and plan.gathered == "again":
            again = _num_sums(plan, layers) + (has_ends and layers.has_head)
            found.append(along_tp("all_gather", again, "matmul"))
    if _reads_encoded(plan, layers):  # what the encoder has made enters a stage, beside attention
        whole = "" if not is_backward else "all_reduce"
        entering = ("reduce_scatter" if is_backward else "all_gather") if plan.sequence_parallel else whole
        found += [along_tp(entering, 1, "matmul")] if entering else []
    if layers.has_head and has_ends and not is_backward:
        size = float(shape.num_tokens * LOSS_ELEMENT_BYTES)
        found.append(along_tp("all_reduce", LOSS_EXCHANGES, "", size))
    return found


def _num_sums(plan: Plan, layers: StageLayers) -> int:
    """Partial results that a stage's blocks add over tp in one pass: of attention and of the MLP, unless its experts get the
    rows of a device's own tokens, and give their sums back."""
    kinds = plan.model.block_kinds(layers.first_block, layers.num_blocks)
    is_routed = plan.sequence_parallel and folds_experts(plan)
    total = 0
    for block, count in kinds:
        own = plan.model.layers[block]
        total += count * (1 if own.experts and is_routed else 2) + count * (own.half == "decoder")
    return total


def _begins(plan: Plan, layers: StageLayers) -> bool:
    return begins_decoder(layers, plan.model.num_encoder_layers)


def _reads_encoded(plan: Plan, layers: StageLayers) -> bool:
    """Has a stage blocks that attend to an encoder? What that has made enters them once."""
    number = plan.model.num_encoder_layers
    return bool(layers.num_blocks) and 0 < number < layers.first_block + layers.num_blocks


def _context(plan: Plan, layers: StageLayers, shape: MicrobatchShape, is_backward: bool) -> list[Inner]:
    """Of every block. With q the bytes of a device's queries and rho the key-value heads per query head, a device sends
    2 (P - 1) q rho forward and, gathered, twice that backward. A ring's gradients of keys and values take P hops and are
    summed in at least 32 bits: backward it sends, with q in 16 bits, 2 (P - 1) q rho + 4 P q rho. By Ulysses
    (2 + 2 rho) (P - 1) / P q each way. Of Ulysses among U inside a ring both, each with its own degree: behind the exchange
    of heads keys and values have U times the tokens of as many fewer heads."""
    attention = plan.model.attention
    num_heads, num_kv_heads = attention.num_heads // plan.tp, attention.num_kv_heads // plan.tp
    token_bytes, own = float(shape.num_tokens * shape.element_bytes), plan.context_parallel
    found, axes = list[Inner](), heads_axes(plan)
    if own.heads_degree > 1:
        num_kv_heads *= own.repeats_of_key(num_heads, num_kv_heads)
    width = num_kv_heads * (attention.head_dim + attention.value_dim)
    if own.heads_degree > 1:
        sent, result = num_heads * attention.head_dim + width, num_heads * attention.value_dim
        found += [_along(axes, "all_to_all", token_bytes * each, layers, "") for each in (sent, result)]
    if own.kind in RELAYED and own.ring_degree > 1:
        rows = SentRows(
            shape.num_tokens, shape.element_bytes, num_heads * attention.head_dim, width, num_heads * attention.value_dim,
            num_heads,
        )  # fmt: skip
        exchanges = RELAYED[own.kind](rows, own.ring_degree, is_backward)
        found += [_along(ring_axes(plan), *each[:2], layers, each[2]) for each in exchanges]
    elif own.ring_degree > 1:
        beside, whole = "attention" if own.travels else "", token_bytes * own.ring_degree * width
        found.append(_along(ring_axes(plan), "all_gather", whole, layers, beside))
        if is_backward:
            times = 1.0
            if own.travels:  # gradients are sums, and go one hop further than keys and values do: home
                times = max(1.0, SUM_BYTES / shape.element_bytes) * own.ring_degree / (own.ring_degree - 1)
            found.append(_along(ring_axes(plan), "reduce_scatter", times * whole, layers, beside))
    return found


def _along(
    axes: tuple[str, ...], algorithm: str, num_bytes: float, layers: StageLayers, beside: str
) -> Inner:
    return Inner(
        Exchange(axes, algorithm=algorithm), num_bytes, layers.num_blocks, beside, "context parallel"
    )


def _expert(plan: Plan, layers: StageLayers, shape: MicrobatchShape) -> list[Inner]:
    """To the experts and back. Devices that share an expert's matrices, and have other tokens, then gather the rows that came
    to each of them, and scatter the sum of their results."""
    model, experts = plan.model, plan.model.experts
    if experts is None:
        return []
    blocks = model.block_kinds(layers.first_block, layers.num_blocks)
    count = sum(number for block, number in blocks if model.layers[block].experts)
    # the busiest device's, which all others wait for
    rows = shape.num_sent_tokens * experts.num_experts_per_token * shape.expert_load
    num_bytes = float(rows * model.hidden_size * shape.element_bytes)
    found, beside = list[Inner](), "grouped_matmul" if "ep" in plan.overlap else ""
    if plan.ep > 1:
        # a token goes once to every node that has experts for it, or to every device: how many it has is part of the name
        sent = ROUTED if plan.dispatch == "copies" else ROUTED_ONCE
        algorithm = f"{sent}{experts.num_experts_per_token}"
        found += [
            Inner(
                Exchange(axes, algorithm=algorithm),
                num_bytes * _forwarded(plan, axes),
                2 * count,
                beside,
                "expert parallel",
            )
            for axes in routed_axes(plan)
        ]
    if gathered := gathered_axes(plan):
        whole = num_bytes * num_members(plan, gathered)
        found += [
            Inner(Exchange(gathered, algorithm=kind), whole, count, "", "tensor parallel")
            for kind in ("all_gather", "reduce_scatter")
        ]
    return found


def _chosen(plan: Plan, layers: StageLayers, shape: MicrobatchShape) -> Inner:
    """Where the tokens of all devices that share sequences go, once a block of experts."""
    count = sum(
        plan.model.layers[layers.first_block + n].experts is not None for n in range(layers.num_blocks)
    )
    axes = told_axes(plan)
    size = float(shape.num_sent_tokens * num_members(plan, axes) * plan.num_shared_numbers * INDEX_BYTES)
    return Inner(Exchange(axes, algorithm="all_gather"), size, count, "", "expert parallel")


def _forwarded(plan: Plan, axes: tuple[str, ...]) -> float:
    """Rows of one level over those of an exchange that sends once to each of its members: a node forwards a token to every
    device there that has any of its experts, and other nodes send it such tokens as well."""
    experts, levels = plan.model.experts, routed_axes(plan)
    if plan.dispatch == "copies" or len(levels) == 1 or axes != levels[0] or experts is None:
        return 1.0
    chosen = experts.num_experts_per_token
    return sent_share(plan.ep, chosen) / sent_share(num_members(plan, axes), chosen)


def _vocabulary(plan: Plan, shape: MicrobatchShape) -> list[Inner]:
    """Interlaced, every stage waits for the sums."""
    num_bytes = float(shape.num_tokens * plan.model.hidden_size * shape.element_bytes)
    return [Inner(Exchange((FIRST_AXIS,), algorithm="all_reduce"), num_bytes, 1, "", "vocabulary parallel")]
