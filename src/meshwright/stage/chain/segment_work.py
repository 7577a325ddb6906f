"""What a segment computes, keeps and hands on: works of its passes, bytes of the values between segments."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshwright.ir.table import Work
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.block import BlockSpec, Experts
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.operator import Operator, merged, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.token_part import TokenPart
from meshwright.stage.chain.attention_work import attention_bytes
from meshwright.stage.chain.chain import ENDS, Chain, ChainStep, Segment
from meshwright.stage.chain.decoder import CORES, PARTS_OF_BLOCK
from meshwright.stage.chain.degrees import InnerDegrees
from meshwright.stage.chain.step_layout import BRANCHES
from meshwright.stage.exchange.once import reached_targets
from meshwright.stage.mesh import num_members, sizes_of, told_axes
from meshwright.stage.operator.expert import INDEX_BYTES
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.operator.stage import PASSES, part_operators
from meshwright.stage.relay.relay_work import part_of_core, relay_works
from meshwright.stage.saved.block import GATHERED, context_saved, embedding_saved, head_saved, tensor_bytes
from meshwright.stage.saved.saved import between_saved, boundary_bytes_per_token
from meshwright.stage.saved.size import kept_bytes_per_token, saving_context
from meshwright.stage.work import microbatch_shape

# Steps whose operators and tensors are counted under another part's name; those that are none of these have their own.
PARTS = {
    "exponentials": "cross_entropy", "head_parts": "heads", "attention_of_heads": "attention_core",
    "output_of_parts": "attention_output", "qkv": "heads", "causal_attention": "attention_core",
    "chunk_attention": "attention_core", "separate_heads": "heads", "full_scores": "attention_core",
    "weighted_values": "attention_core",
}  # fmt: skip
ATTENDS = "attention_core"
Shapes = tuple[MicrobatchShape, tuple[MicrobatchShape, ...]]  # of tokens, and of what attention is to
# Steps that are counted with another: a bias on a sum with the addition of its branch, where heads lie, and how they are
# turned, rows between two levels, and rows of what all have chosen, with what made them.
WITHIN_OTHERS = (
    "finished",
    "heads_of_group",
    "tokens_of_group",
    "dispatch",
    "collected",
    "spread",
    "forwarded",
    "summed_rows",
)
# Rows on their way to experts and back, as many everywhere.
SENT_ROWS = ("dispatched", "received", "near_rows", "far_rows", "far_results", "near_results")
WIDE_BYTES = 4  # of a number of the loss, in float32
LOSS_NUMBERS = {"largest": 1, "maximum": 1, "terms": 2, "sums": 2}  # a token


def segment_works(plan: Plan, chain: Chain, share: float, part: int = 0) -> Iterator[dict[str, Work]]:
    """The work of every pass of every segment. `share`: of the stage in a full stage; segments have theirs by FLOPs.
    ``part``: of a microbatch (`Plan.parts`).
    """
    own_part = plan.parts[part]
    share *= share_of_part(plan, own_part)
    shape = microbatch_shape(plan)._replace(
        num_sequences=own_part.num_samples,
        sequence_length=own_part.num_tokens // plan.model.num_halves,
        num_earlier=own_part.num_earlier,
    )
    yield from works_of_shape(plan, chain, share, shape, (own_part.num_samples, own_part.num_tokens))


def works_of_shape(
    plan: Plan,
    chain: Chain,
    share: float,
    shape: MicrobatchShape,
    dims: tuple[int, int],
    attended: Sequence[MicrobatchShape] = (),
    passes: Collection[str] = PASSES,
) -> Iterator[dict[str, Work]]:
    """The work of every pass of every segment of a microbatch of a shape, of so many samples and tokens (`dims`).
    `attended`: shapes of what attention is to, where it is of several (packed sequences); empty: of the microbatch. `passes`:
    those that are asked for; relays have all."""
    dtype = "float8" if plan.float8 else plan.dtype
    shapes = (shape, tuple(attended) or (shape,))
    found = list(_passes(plan, shapes, chain, passes))
    flops = {id(each): {name: total_flops(own) for name, own in each.items()} for each in found}
    whole = {name: sum(flops[id(each)].get(name, 0.0) for each in found) or 1.0 for name in PASSES}
    known: dict[int, dict[str, Work]] = {}  # of segments that are alike once
    for segment, each in zip(chain.segments, found, strict=True):
        if id(each) not in known:
            works = {
                name: Work(
                    name, shape.num_tokens, dims, dtype, flops[id(each)][name], total_bytes(own),
                    share * flops[id(each)][name] / whole[name], own,
                )
                for name, own in each.items()
            }  # fmt: skip
            relay, tokens = segment.relay, dims[0] * dims[1] / plan.model.num_halves
            if relay is not None:
                works = relay_works(works, relay.rounds, relay.num_steps, attention_bytes(plan), tokens)
            known[id(each)] = works
        yield known[id(each)]


def share_of_part(plan: Plan, part: TokenPart) -> float:
    """What a part has of the tokens of its microbatch."""
    return part.num_samples * part.num_tokens / plan.tokens_per_microbatch


def _passes(
    plan: Plan, shapes: Shapes, chain: Chain, passes: Collection[str]
) -> Iterator[dict[str, tuple[Operator, ...]]]:
    """Operators of every pass of every segment; those of segments that are alike are looked up."""
    known: dict[tuple[object, ...], dict[str, tuple[Operator, ...]]] = {}
    kinds = {block: plan.model.block_kind(block) for block in range(plan.model.num_layers)}
    for segment in chain.segments:
        key = tuple(
            (step.name, kinds.get(step.block), step.of[0], kinds.get(step.of[1])) for step in segment.steps
        )
        if key not in known:
            names = PASSES if segment.relay is not None else (name for name in PASSES if name in passes)
            known[key] = {name: _operators(plan, shapes, segment, name) for name in names}
        yield known[key]


def _operators(plan: Plan, shapes: Shapes, segment: Segment, name: str) -> tuple[Operator, ...]:
    steps = segment.steps if name in ("F", "R") else tuple(reversed(segment.steps))
    of_tokens, attended = shapes
    return merged(
        operator
        for step in steps
        for shape in (attended if PARTS.get(step.name, step.name) == ATTENDS else (of_tokens,))
        for operator in step_operators(plan, shape, step, name)
    )


def step_operators(plan: Plan, shape: MicrobatchShape, step: ChainStep, name: str) -> tuple[Operator, ...]:
    """What one step of a chain runs in a pass, of a microbatch of this shape."""
    if step.name == "add_branch":  # of as many numbers as a part adds to the stream, of all tokens
        whole = shape._replace(sequence_parallel=False)
        return part_operators(plan.model, f"{step.of[0]} add", name, whole, max(0, step.block))
    if step.name in WITHIN_OTHERS:
        return ()
    takes_up = step.name in ("add", "give_both") and step.of[0]
    part = f"{step.of[0]} add" if takes_up else PARTS.get(step.name, step.name)
    block = step.of[1] if takes_up else step.block
    if plan.model.has_parallel_branches and step.name in BRANCHES:
        shape = shape._replace(sequence_parallel=False)  # of all tokens: behind the gather
    return part_of_core(step.name, name, part_operators(plan.model, part, name, shape, max(0, block)))


def between_bytes(plan: Plan, degrees: InnerDegrees) -> Mapping[str, float]:
    """Bytes on one device of the values between segments, per token of the whole microbatch that a block sees, by name."""
    size, hidden = dtype_bytes(plan.dtype), plan.model.hidden_size
    whole = float(hidden * size) / plan.cp
    own = whole / plan.tp if degrees.sequence_parallel else whole
    rows = dict.fromkeys(("residual", "normed", "summed"), own)
    rows |= dict.fromkeys(("entered", "partial"), whole)
    boundary = float(boundary_bytes_per_token(plan.model, plan.dtype)) / plan.cp
    rows |= dict.fromkeys(("whole_input", "whole_output"), boundary)
    rows |= attention_bytes(plan)
    rows |= {f"{part}_{name}": rows[name] for part in PARTS_OF_BLOCK for name in ("partial", "summed")}
    if plan.model.num_encoder_layers:
        rows |= {"encoded": own, "encoded_entered": whole, **_crossed_bytes(plan)}
    rows["carried"] = rows["residual"]
    rows["branch"] = rows["partial"]
    rows["inner"] = max(_inner_width(kind) for kind in plan.model.kinds) * float(size) / plan.cp / plan.tp
    rows["inner"] *= 2 if plan.model.has_gated_mlp else 1
    vocabulary = -(-plan.model.vocabulary_size // plan.tp)
    numbers = {name: float(count * max(size, WIDE_BYTES)) / plan.cp for name, count in LOSS_NUMBERS.items()}
    if degrees.has_expert_steps and plan.model.num_experts:
        numbers |= {**_routed_bytes(plan, degrees), **_chosen_bytes(plan)}
    return {**rows, **numbers, "logits": float(vocabulary * size) / plan.cp}


def _crossed_bytes(plan: Plan) -> Mapping[str, float]:
    """Of what goes between the parts of cross attention."""
    each = dtype_bytes(plan.dtype) / plan.tp
    attention = plan.model.attention
    return {
        **dict.fromkeys(("cross_query", "cross_attended"), attention.query_size * each),
        "cross_block": 2 * attention.key_size * each,
    }


def _inner_width(kind: BlockSpec) -> int:
    """Of a dense MLP; nothing where there are experts."""
    return 0 if kind.experts else kind.feed_forward.intermediate_size


def _routed_bytes(plan: Plan, degrees: InnerDegrees) -> Mapping[str, float]:
    """Of what goes to experts and back, as the busiest device has it; `counts` are few and do not grow with the tokens."""
    found = next(block.experts for block in plan.model.kinds if block.experts)
    shape = microbatch_shape(plan)
    rows = shape.num_sent_tokens * found.num_experts_per_token / plan.tokens_per_microbatch
    size = dtype_bytes(plan.dtype)
    counts = found.num_experts * INDEX_BYTES / plan.tokens_per_microbatch
    own, num_gathered = (
        rows * shape.expert_load * plan.model.hidden_size * size,
        math.prod(sizes_of(degrees.axes, degrees.gathered_axes)),
    )
    if degrees.sends_once:
        return _once_bytes(plan, degrees, rows, found)
    return {
        **dict.fromkeys((*SENT_ROWS, "own_results", "returned"), own),
        **dict.fromkeys(("all_rows", "results"), own * num_gathered), "all_counts": counts * num_gathered,
        "combined": float(plan.model.hidden_size * size) / plan.cp / plan.tp,
        "gates": rows * size, "order": rows * INDEX_BYTES,
        **dict.fromkeys(("counts", "arrived", "near_counts", "far_counts"), counts),
    }  # fmt: skip


def _chosen_bytes(plan: Plan) -> Mapping[str, float]:
    """Of what devices that share sequences tell each other of their tokens, and of what it is told about; nothing without."""
    if plan.shared_choices == "none":
        return {}
    experts, size = (
        next(block.experts for block in plan.model.kinds if block.experts),
        dtype_bytes(plan.dtype),
    )
    own = microbatch_shape(plan).num_sent_tokens / plan.tokens_per_microbatch
    chosen, num_told = own * plan.num_shared_numbers * INDEX_BYTES, num_members(plan, told_axes(plan))
    return {
        "own_gates": own * experts.num_experts_per_token * size, "chosen": chosen, "all_chosen": chosen * num_told,
        "shares": experts.num_experts * float(max(size, WIDE_BYTES)) / plan.workload.sequence_length,
    }  # fmt: skip


def _once_bytes(
    plan: Plan, degrees: InnerDegrees, num_copies: float, experts: Experts
) -> Mapping[str, float]:
    """Of rows that are sent once, which have their token's gates behind the hidden units, and the choices of it beside them;
    ``num_copies``: rows for a token of the microbatch if each of its experts had its own."""
    size, hidden, num_chosen = dtype_bytes(plan.dtype), plan.model.hidden_size, experts.num_experts_per_token
    num_gathered = math.prod(sizes_of(degrees.axes, degrees.gathered_axes))
    load = plan.workload.expert_load * num_copies / num_chosen
    num_last = math.prod(sizes_of(degrees.axes, degrees.expert_axes))
    num_first = math.prod(sizes_of(degrees.axes, degrees.far_axes)) if degrees.far_axes else num_last
    first, last = (
        load * reached_targets(number, num_chosen, experts.num_experts) for number in (num_first, num_last)
    )
    wide, chosen = (hidden + num_chosen) * size, num_chosen * INDEX_BYTES
    return {
        **dict.fromkeys(("dispatched", "far_rows"), first * wide),
        **dict.fromkeys(("near_rows", "received"), last * wide), "all_rows": last * wide * num_gathered,
        **dict.fromkeys(("choices", "far_choices"), first * chosen),
        **dict.fromkeys(("near_choices", "received_choices"), last * chosen), "all_choices": last * chosen * num_gathered,
        "results": last * hidden * size * num_gathered,
        **dict.fromkeys(("own_results", "near_results"), last * hidden * size),
        **dict.fromkeys(("far_results", "returned"), first * hidden * size),
        "combined": float(hidden * size) / plan.cp / plan.tp,
        "order": num_copies * INDEX_BYTES, "near_order": first * chosen,
        **dict.fromkeys(("counts", "far_counts"), num_first * INDEX_BYTES / plan.tokens_per_microbatch),
        **dict.fromkeys(("near_counts", "arrived"), num_last * INDEX_BYTES / plan.tokens_per_microbatch),
        "all_counts": num_last * INDEX_BYTES * num_gathered / plan.tokens_per_microbatch,
    }  # fmt: skip


# Tensors that a block keeps -> the step whose backward reads them; all others of attention or of the MLP by what reads them.
KEPT_BY = {"input": "attention_norm", "norm statistics": "attention_norm", "middle residual": "mlp_norm"}
# Where attention is several steps, which of them keeps what; `heads` the rest.
OF_PART = {
    **dict.fromkeys(("queries by heads", "keys and values by heads", "logarithms of sums"), "attention_core"),
    **dict.fromkeys(("attention output", "attention_output narrowed"), "attention_output"),
}
KEYS = "keys and values by heads"
OF_SCORES = ("probabilities",)  # of whole rows of scores, which are a value between the segments of a ring
FULL_SCORES, WEIGHTED_VALUES = (
    "full_scores",
    "weighted_values",
)  # the core is two steps, of which the first keeps queries
# Of a decoder behind an encoder, where cross attention is several steps, and where it is one.
CROSSED_KEPT_BY = {
    **dict.fromkeys(("cross residual", "cross norm statistics"), "cross_norm"),
    "cross norm's output": "cross_query",
    **dict.fromkeys(("cross queries", "cross keys and values"), "cross_core"),
    "cross attention output": "cross_output",
}
OF_ATTENTION = (
    *("first norm's output", "queries by heads", "keys and values by heads", "attention output", "qkv"),
    *("q and k statistics", "logarithms of sums", "qkv narrowed", "attention_output narrowed"),
    *("key-value latent", "key-value latent norm's output", "latent statistics"),
    *("query latent", "query latent norm's output"),
)
# Of a block whose experts are divided; what is not named is of its experts.
EXPERTS_KEPT_BY = {
    **dict.fromkeys(
        ("second norm's output", "router probabilities", "router's narrowed tokens", "expert numbers"),
        "router",
    ),
    **dict.fromkeys(("expert weights", "experts' output"), "combine"),
}
SHARED = "shared "  # begins the names of what shared experts keep
HEAD_KEPT_BY = {"input": "final_norm", "norm statistics": "final_norm", "norm's output": "head"}
LOGITS = "log-probabilities"


def kept_bytes(plan: Plan, layers: StageLayers, chain: Chain) -> tuple[float, ...]:
    """Bytes that every segment keeps from F, or where it is recomputed from R, to its backward on one device, per token of
    the whole microbatch. What is fetched again is none of it: what it is fetched from is a value that lives as long."""
    plan = replace(plan, recompute="none") if plan.recompute in ("selective", "selective_op") else plan
    is_split = any(step.name in (*CORES, FULL_SCORES) for s in chain.segments for step in s.steps)
    has_relay = any(segment.relay is not None for segment in chain.segments)
    kept = list(_kept(plan, layers, is_split=is_split, has_relay=has_relay))
    factor = kept_bytes_per_token(plan, layers) / (sum(each.num_bytes for each in kept) or 1.0)
    again = _fetching(chain)
    named = {step.name for segment in chain.segments for step in segment.steps}
    by_step: dict[tuple[str, int], float] = {}
    for each in kept:
        key = (_step_among(each, named), each.block)
        if not (each.is_entered and key in again):
            by_step[key] = by_step.get(key, 0.0) + factor * each.num_bytes * each.times
    return tuple(
        sum(
            by_step.get((PARTS.get(step.name, step.name), step.block), 0.0)
            for step in segment.steps
            if step.name != WEIGHTED_VALUES
        )
        for segment in chain.segments
    )


def _fetching(chain: Chain) -> frozenset[tuple[str, int]]:
    """Steps, and their blocks, that have what they read again for their backward."""
    again = {each.write for each in chain.deliveries if each.move.is_again}
    numbers = {n for n, segment in enumerate(chain.segments) if again.intersection(segment.reads)}
    steps = (step for n in numbers | set(chain.remade) for step in chain.segments[n].steps)
    return frozenset((PARTS.get(step.name, step.name), step.block) for step in steps)


def _step_among(kept: _Kept, named: set[str]) -> str:
    """The step that keeps a tensor; of an MLP whose products are steps, the one of them."""
    if kept.step != "mlp" or "down" not in named or kept.is_of_experts:
        return kept.step
    return "gate_up" if kept.is_entered else "down"


class _Kept(NamedTuple):
    """A tensor that a step keeps: bytes per token; is it what the step reads of what was gathered for it? ``times``: of how
    many devices it is."""

    step: str
    block: int
    num_bytes: float
    is_entered: bool
    times: int = 1
    is_of_experts: bool = False


def _kept(plan: Plan, layers: StageLayers, *, is_split: bool, has_relay: bool) -> Iterator[_Kept]:
    """`is_split`: attention is several steps; `has_relay`: one of them is a ring's."""
    context = saving_context(plan)._replace(recompute="none")
    # gathered ones are of all devices; those that travel again are a value between segments
    has_steps = plan.ep > 1 or plan.shared_choices != "none"
    times_of_keys = 0 if has_relay else plan.cp if plan.context == "all_gather" else 1
    for block in range(layers.first_block, layers.first_block + layers.num_blocks):
        for tensor in context_saved(plan.model, context, block, plan.workload.sequence_length):
            step = KEPT_BY.get(tensor.name, "attention" if tensor.name in OF_ATTENTION else "mlp")
            step = CROSSED_KEPT_BY.get(tensor.name, step)
            if step.startswith("cross") and step != "cross_norm" and not is_split:
                step = "cross_attention"
            if step == "attention" and is_split:
                step = OF_PART.get(tensor.name, "heads")
            is_entered = tensor.name in GATHERED and not plan.model.has_parallel_branches
            if step == "mlp" and has_steps and plan.model.layers[block].experts:
                step, is_entered = _step_of_experts(tensor.name), False
            times = times_of_keys if tensor.name in (KEYS, *OF_SCORES) else 1
            has_experts = plan.model.layers[block].experts is not None
            yield _Kept(
                step, block, tensor_bytes(plan.model, tensor, context), is_entered, times, has_experts
            )
    for tensor in embedding_saved(plan.model) if layers.has_embedding else ():
        yield _Kept("embedding", ENDS, float(tensor.bytes_per_token), is_entered=False)
    yield from _kept_between(plan, layers, "cross_key_value" if is_split else "cross_attention")
    for tensor in head_saved(plan.model, plan.dtype) if layers.has_head else ():
        step = HEAD_KEPT_BY.get(tensor.name, "cross_entropy")
        size = (
            plan.model.vocabulary_size * WIDE_BYTES / plan.tp
            if tensor.name == LOGITS
            else tensor.bytes_per_token
        )
        yield _Kept(step, ENDS, float(size), tensor.name in GATHERED)


def _kept_between(plan: Plan, layers: StageLayers, reader: str) -> Iterator[_Kept]:
    """Of an encoder-decoder between its halves; what the encoder has made by the first step of a stage that reads it."""
    model, context = plan.model, saving_context(plan)
    first = max(layers.first_block, model.num_encoder_layers)
    for tensor in between_saved(model, layers, plan.dtype):
        step, block = ("encoder_norm", ENDS)
        if tensor.name == "tokens":
            step = "target_embedding"
        elif tensor.name == "encoded":
            step, block = reader, first
        yield _Kept(step, block, tensor_bytes(model, tensor, context), is_entered=False)


def _step_of_experts(tensor: str) -> str:
    """The step of a block's experts that keeps a tensor."""
    return "shared_experts" if tensor.startswith(SHARED) else EXPERTS_KEPT_BY.get(tensor, "experts")
