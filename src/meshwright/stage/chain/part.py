"""Parts of a block as steps and exchanges: attention, cross attention, MLP, experts; how each enters and leaves the stream.

Of a block whose experts are divided, rows of tokens go to the devices that have their experts, and come back (Lepikhin et
al. 2020, arXiv 2006.16668); none is dropped, so how many there are is exchanged first. What a step of experts reads and
writes: `dispatched` rows sorted by expert, with the `order` of their tokens, `gates`, and `counts` of every expert's rows;
`received` rows, `arrived` of them from every device; `results` of these, which are `returned`. What is sent once for all
experts of a device has the `choices` of its tokens that are there beside it, and their gates in it (`_sent_once`).
Where devices that share sequences agree on what experts take of each, a router first tells what its tokens have `chosen`,
with their `own_gates` and, of each sequence, the experts' `shares` of its probabilities here; rows are made of what all told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from meshwright.stage.chain.chain import BY_EXPERTS, BY_HEADS, BY_TOKENS, ChainStep, Moved, Relay
from meshwright.stage.chain.degrees import InnerDegrees
from meshwright.stage.relay.rounds import RING, SCORES, TOKEN_RING, WEIGHTED

TOKENS = 1  # dimension of [B, S, E]
RANKS = 0  # what goes to or comes from every device of a group, one behind the other


def dense_part(
    part: str,
    block: int,
    degrees: InnerDegrees,
    own: str = "",
    *,
    is_dense: bool,
    beside: Sequence[Moved] = (),
) -> Generator[ChainStep | Moved | Relay, None, str]:
    """Attention or a dense MLP behind its norm; the name of what it adds to the stream, `own` in front. `beside`: exchanges
    that are on their way while it is computed."""
    entered = yield from entering(degrees)
    yield from beside
    partial = f"{own}partial"
    if part == "attention" and (degrees.cp > 1 or degrees.has_chunks or degrees.recompute != "none"):
        yield from attention(block, entered, degrees, partial)
    elif part == "mlp" and is_dense and degrees.recompute == "selective_op":
        yield ChainStep("gate_up", block, (entered,), ("inner",))
        yield ChainStep("down", block, ("inner",), (partial,))
    else:
        yield ChainStep(part, block, (entered,), (partial,))
    return (yield from leaving(degrees, own))


def attention(
    block: int, entered: str, degrees: InnerDegrees, partial: str
) -> Iterator[ChainStep | Moved | Relay]:
    """Attention in parts: of the tokens here, and along cp to those of all devices, or of a chunk to those before it, too.
    `partial`: the name of its result."""
    if degrees.has_chunks:
        yield ChainStep("heads", block, (entered,), ("query", "block"))
        yield ChainStep("chunk_attention", block, ("query", "block"), ("attended",), earlier=("block",))
        yield ChainStep("attention_output", block, ("attended",), (partial,))
        return
    if degrees.cp == 1:
        yield ChainStep("qkv", block, (entered,), ("qkv",))
        yield ChainStep("causal_attention", block, ("qkv",), ("attended",))
        yield ChainStep("attention_output", block, ("attended",), (partial,))
        return
    if degrees.heads_axes:
        yield from _exchanged_heads(block, entered, degrees, partial)
        return
    if degrees.context == "ring_self_attention":
        yield ChainStep("separate_heads", block, (entered,), ("query", "keys", "values"))
        scores = ChainStep("full_scores", block, ("query", "keys"), ("probabilities",))
        yield Relay(scores, degrees.ring_axes, degrees.cp, SCORES)
        weighted = ChainStep("weighted_values", block, ("probabilities", "values"), ("attended",))
        yield Relay(weighted, degrees.ring_axes, degrees.cp, WEIGHTED)
        yield ChainStep("attention_output", block, ("attended",), (partial,))
        return
    yield ChainStep("heads", block, (entered,), ("query", "block"))
    if degrees.context == "all_gather":
        yield Moved("all_gather", degrees.ring_axes, "block", "all_blocks", RANKS)
        yield ChainStep("attention_core", block, ("query", "all_blocks"), ("attended",))
    else:
        yield _ring(block, degrees)
    yield ChainStep("attention_output", block, ("attended",), (partial,))


def _exchanged_heads(
    block: int, entered: str, degrees: InnerDegrees, partial: str
) -> Iterator[ChainStep | Moved | Relay]:
    """Attention of whole sequences to some heads, or of the tokens of a group to them, which is one rank of a ring."""
    yield ChainStep("head_parts", block, (entered,), ("head_parts",))
    there, back = (BY_TOKENS, BY_HEADS), (BY_HEADS, BY_TOKENS)
    yield Moved("all_to_all", degrees.heads_axes, "head_parts", "own_heads", RANKS, split_by=there)
    if degrees.context_parallel.ring_degree == 1:
        yield ChainStep("attention_of_heads", block, ("own_heads",), ("token_parts",))
    else:
        yield ChainStep("heads_of_group", block, ("own_heads",), ("query", "block"))
        yield _ring(block, degrees)
        yield ChainStep("tokens_of_group", block, ("attended",), ("token_parts",))
    yield Moved("all_to_all", degrees.heads_axes, "token_parts", "attended_parts", RANKS, split_by=back)
    yield ChainStep("output_of_parts", block, ("attended_parts",), (partial,))


def _ring(block: int, degrees: InnerDegrees) -> Relay:
    """Attention to the keys and values that are here, or by the queries that are, while the next ones come."""
    core = ChainStep("attention_core", block, ("query", "block"), ("attended",))
    rounds = TOKEN_RING if degrees.context == "token_ring" else RING
    return Relay(core, degrees.ring_axes, degrees.context_parallel.ring_degree, rounds)


def cross_attention(
    block: int, encoded: str, degrees: InnerDegrees
) -> Generator[ChainStep | Moved | Relay, None, str]:
    """Attention to what the encoder has made, behind its norm; the name of what it adds to the stream."""
    entered = yield from entering(degrees)
    if degrees.recompute == "none":
        yield ChainStep("cross_attention", block, (entered, encoded), ("partial",))
    else:
        yield ChainStep("cross_query", block, (entered,), ("cross_query",))
        yield ChainStep("cross_key_value", block, (encoded,), ("cross_block",))
        yield ChainStep("cross_core", block, ("cross_query", "cross_block"), ("cross_attended",))
        yield ChainStep("cross_output", block, ("cross_attended",), ("partial",))
    return (yield from leaving(degrees))


def mixture(
    block: int, degrees: InnerDegrees, *, has_shared: bool
) -> Generator[ChainStep | Moved, None, str]:
    """A block's experts, of which every device has some, or a part, behind their norm; the name of what they add to the
    stream. What every token goes through is computed while rows are on their way."""
    is_own = degrees.sequence_parallel  # then a device has the whole sum of its tokens
    entered = "normed" if is_own and not has_shared else (yield from entering(degrees, is_kept=True))
    made = ("dispatched", "choices" if degrees.sends_once else "gates", "order", "counts")
    read = "normed" if is_own else entered
    if degrees.shared_choices == "none":
        yield ChainStep("router", block, (read,), made)
    else:
        yield ChainStep("router", block, (read,), ("own_gates", "chosen", "shares"))
        yield Moved("gather_chosen", degrees.told_axes, "chosen", "all_chosen", RANKS)
        yield ChainStep("dispatch", block, (read, "own_gates", "all_chosen", "shares"), made)
    sent = _sent_once(block, degrees) if degrees.sends_once else _sent_rows(block, degrees)
    rows, beside = yield from sent
    if has_shared:
        yield ChainStep("shared_experts", block, (entered,), ("partial",))
    shared = ("partial",) if has_shared else ()
    if is_own and has_shared:
        left = yield from leaving(degrees)
        shared = (left,)
    yield ChainStep("experts", block, (rows, beside), ("results",))
    returned = _returned_once(block, degrees) if degrees.sends_once else _returned_rows(block, degrees)
    results = yield from returned
    result, gates = "combined" if is_own else "partial", () if degrees.sends_once else ("gates",)
    yield ChainStep("combine", block, (results, *gates, "order", *shared), (result,))
    return result if is_own else (yield from leaving(degrees))


def _sent_rows(block: int, degrees: InnerDegrees) -> Generator[ChainStep | Moved, None, tuple[str, str]]:
    """Rows to the devices of their experts, then to all that share these; the names of what experts read, and of how many
    rows there are of each device and expert."""
    rows, counts, there = "dispatched", "counts", (BY_TOKENS, BY_EXPERTS)
    for axes in degrees.routed_axes:
        is_near = axes == degrees.near_axes
        arrived, came = ("near_counts", "near_rows") if is_near else ("arrived", "received")
        yield Moved("counts", axes, counts, arrived, split_by=there)
        yield Moved("routed", axes, rows, came, sizes=(counts, arrived), split_by=there)
        rows, counts = came, arrived
        if is_near:
            rows, counts = "far_rows", "far_counts"
            yield ChainStep("collected", block, (came, arrived), (rows, counts))
    if degrees.gathered_axes:
        yield Moved("gather_counts", degrees.gathered_axes, counts, "all_counts")
        yield Moved("gather_rows", degrees.gathered_axes, rows, "all_rows", sizes=(counts, "all_counts"))
        rows, counts = "all_rows", "all_counts"
    return rows, counts


def _returned_rows(block: int, degrees: InnerDegrees) -> Generator[ChainStep | Moved, None, str]:
    """Results to where their rows came from, the same way; the name of what is combined."""
    results, back = "results", (BY_EXPERTS, BY_TOKENS)
    counts = "arrived" if degrees.expert_axes else "counts"
    if degrees.gathered_axes:
        sizes = ("all_counts", counts)
        yield Moved("scatter_rows", degrees.gathered_axes, results, "own_results", sizes=sizes)
        results = "own_results"
    for axes in reversed(degrees.routed_axes):
        is_last = axes == degrees.routed_axes[0]
        sizes = (
            "near_counts" if axes == degrees.near_axes else "arrived",
            "counts" if is_last else "far_counts",
        )
        came = "returned" if is_last else "far_results"
        yield Moved("routed", axes, results, came, sizes=sizes, split_by=back)
        results = came
        if not is_last:
            results = "near_results"
            yield ChainStep("spread", block, (came, "near_counts"), (results,))
    return results


def _sent_once(block: int, degrees: InnerDegrees) -> Generator[ChainStep | Moved, None, tuple[str, str]]:
    """Rows once to each device that has any of their experts, or to each group of neighbours, which forward them; then to all
    that share these. The names of what experts read, and of which choices of each row are there."""
    there, near = (BY_TOKENS, BY_EXPERTS), degrees.near_axes
    rows, choices, counts = "dispatched", "choices", "counts"
    for axes in degrees.routed_axes:
        is_far = bool(near) and axes != near
        came, chosen, arrived = (
            ("far_rows", "far_choices", "far_counts")
            if is_far
            else ("received", "received_choices", "arrived")
        )
        yield Moved("counts", axes, counts, arrived, split_by=there)
        yield Moved("choices", axes, choices, chosen, sizes=(counts, arrived), split_by=there)
        yield Moved("routed", axes, rows, came, sizes=(counts, arrived), split_by=there)
        rows, choices, counts = came, chosen, arrived
        if is_far:
            rows, choices, counts = "near_rows", "near_choices", "near_counts"
            yield ChainStep("forwarded", block, (came, chosen), (rows, choices, "near_order", counts))
    if degrees.gathered_axes:
        sizes = (counts, "all_counts")
        yield Moved("gather_counts", degrees.gathered_axes, counts, "all_counts")
        yield Moved("gather_choices", degrees.gathered_axes, choices, "all_choices", sizes=sizes)
        yield Moved("gather_rows", degrees.gathered_axes, rows, "all_rows", sizes=sizes)
        rows, choices = "all_rows", "all_choices"
    return rows, choices


def _returned_once(block: int, degrees: InnerDegrees) -> Generator[ChainStep | Moved, None, str]:
    """Their sums back the same way, added up among neighbours before they cross; the name of what is combined."""
    results, back, near = "results", (BY_EXPERTS, BY_TOKENS), degrees.near_axes
    if degrees.gathered_axes:
        sizes = ("all_counts", "arrived")
        yield Moved("scatter_rows", degrees.gathered_axes, results, "own_results", sizes=sizes)
        results = "own_results"
    if near:
        sizes = ("arrived", "near_counts")
        yield Moved("routed", near, results, "near_results", sizes=sizes, split_by=back)
        yield ChainStep("summed_rows", block, ("near_results", "near_order"), ("far_results",))
        results = "far_results"
    last = "far_counts" if near else "arrived"
    yield Moved("routed", degrees.routed_axes[0], results, "returned", sizes=(last, "counts"), split_by=back)
    return "returned"


def entering(
    degrees: InnerDegrees, name: str = "normed", whole: str = "entered", *, is_kept: bool = False
) -> Generator[Moved, None, str]:
    """What a column-parallel product reads of something that lies as the stream; its name. `is_kept`: it is not fetched
    again."""
    if degrees.tp == 1:
        return name
    algorithm = "all_gather" if degrees.sequence_parallel else "enter"
    is_again = degrees.sequence_parallel and degrees.fetches_again and not is_kept
    yield Moved(algorithm, degrees.tensor_axes, name, whole, TOKENS, is_again=is_again)
    return whole


def leaving(degrees: InnerDegrees, own: str = "") -> Generator[Moved, None, str]:
    """The sum of the devices' terms, as the stream has it; its name. `own`: in front of the names of both."""
    if degrees.tp == 1:
        return f"{own}partial"
    yield Moved(
        "reduce_scatter" if degrees.sequence_parallel else "all_reduce",
        degrees.tensor_axes,
        f"{own}partial",
        f"{own}summed",
        TOKENS,
    )
    return f"{own}summed"
