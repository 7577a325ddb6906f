"""The chain of a decoder's stage: steps of its blocks and ends, and what tensor and sequence parallelism send between them.

Between a column-parallel and a row-parallel product every device works on its own outputs; what they add to the residual
stream is a term of a sum over the group (Shoeybi et al. 2019, arXiv 1909.08053). With sequence parallelism the stream is
divided by tokens: the sum is scattered, and what a column-parallel product reads is gathered, again for its backward
(Korthikanti et al. 2022, arXiv 2205.05198).

With context parallelism every device has some tokens of each sequence, and attention alone needs the others (the kinds of
`specs.plan.sequence_part`): keys and values travel around a ring or are gathered, or heads are exchanged for tokens and back.

With a ladder residual a part reads the stream without the result of the part right before it, which is added one part later
(Zhang et al. 2025, arXiv 2501.06589): the sum of that result is on its way while the part is computed.

Of a block whose experts are divided, rows of tokens go to the devices that have their experts, and come back (Lepikhin et
al. 2020, arXiv 2006.16668); none is dropped, so how many there are is exchanged first. What a step of experts reads and
writes: `dispatched` rows sorted by expert, with the `order` of their tokens, `gates`, and `counts` of every expert's rows;
`received` rows, `arrived` of them from every device; `results` of these, which are `returned`.

Selective recompute is of attention's core alone, which is cheap for what it keeps (Korthikanti et al., section 5): it is then
a segment of its own on one device, too. By operation, all of a block is recomputed but attention and every second product,
whose results are values (torchtitan's policy "op"); what these products read is made again for their backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.ir.layout import COPIED, layout_text
from meshwright.ir.table import Hop
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.plan.sequence_part import Context
from meshwright.stage.chain.chain import (
    BY_EXPERTS,
    BY_HEADS,
    BY_HIDDEN,
    BY_TOKENS,
    ENDS,
    INPUT,
    LOSS,
    OUTPUT,
    Chain,
    ChainStep,
    Moved,
    Relay,
    chain_of,
)
from meshwright.stage.chain.step_layout import EXPERTS_OF_COPIES, EXPERTS_OF_PARTS, EXPERTS_OF_ROWS, laid_out

TENSOR, CONTEXT = "tp", "cp"
TOKENS, HIDDEN = 1, 2  # dimensions of [B, S, E]
RANKS = 0  # what goes to or comes from every device of a group, one behind the other
PARTS_OF_BLOCK = ("attention", "mlp")
# What came beside the stream from the stage before, taken up; and what a stage without blocks has beside it.
ADD_CARRIED = ChainStep("add_carried", ENDS, ("residual", "carried"), ("residual",))
ADD_NOTHING = ChainStep("add", ENDS, ("residual",), ("residual",))
BESIDE_ROUTES = frozenset(("shared_experts",))  # segments of their own, which run while rows are under way
# Of attention, by how it is divided.
CORES = frozenset(("causal_attention", "attention_core", "attention_of_heads"))
# By operation: products whose results are kept, and what is recomputed.
KEPT_PRODUCTS = frozenset(("qkv", "heads", "head_parts", "gate_up"))
AGAIN_BY_OPERATION = frozenset(
    ("attention_norm", "attention_output", "output_of_parts", "add", "mlp_norm", "mlp", "down")
)


@dataclass(frozen=True)
class InnerDegrees:
    """How many devices share a microbatch inside a stage, and how.

    `sequence_parallel`: the residual stream is divided by tokens along tp. `fetches_again`: what is gathered for a product is
    not kept for its backward. ``context``: how cp devices share the tokens of a sequence. ``expert_axes``: those along which
    experts are divided; none where every device has all. ``recompute``: what is recomputed by segments, as of a plan.
    ``num_parts``: into so many parts a microbatch's samples are cut.
    """

    tp: int = 1
    sequence_parallel: bool = False
    fetches_again: bool = True
    cp: int = 1
    context: Context = "ring"
    expert_axes: tuple[str, ...] = ()
    recompute: Recompute = "none"
    num_parts: int = 1

    @property
    def divides_experts(self) -> bool:
        """Are experts on several devices?"""
        return bool(self.expert_axes)

    @property
    def routes_own_tokens(self) -> bool:
        """Does every device of a tensor-parallel group look for the experts of its part of the tokens? Else all do for all,
        and have a part of every expert."""
        return TENSOR in self.expert_axes

    @property
    def has_exchanges(self) -> bool:
        """Is anything sent inside a stage?"""
        return self.tp > 1 or self.cp > 1 or self.divides_experts

    @property
    def has_segments(self) -> bool:
        """Is a stage more than one compute: is anything sent in it, a part of it recomputed, or a microbatch cut?"""
        return self.has_exchanges or self.recompute != "none" or self.num_parts > 1

    @property
    def stream_layouts(self) -> dict[str, str]:
        """How the residual stream lies along every axis of several devices."""
        found = {TENSOR: BY_TOKENS if self.sequence_parallel else COPIED} if self.tp > 1 else {}
        axes = ((CONTEXT,) if self.cp > 1 else ()) + self.expert_axes
        return found | {axis: BY_TOKENS for axis in axes if axis not in found}

    @property
    def divides_hidden(self) -> bool:
        """Do the devices of a tensor-parallel group all have the same stream, of which each may send a part?"""
        return self.tp > 1 and not self.sequence_parallel


def recomputed_in_segments(plan: Plan) -> Recompute:
    """What a plan recomputes by segments: in every block, where the stage is a chain from its input to its output; "none"
    where it does not. By operation experts are not divided."""
    is_done = (
        (plan.recompute == "selective" or (plan.recompute == "selective_op" and plan.ep == 1))
        and plan.recompute_blocks in ((), plan.layers_per_stage)
        and (plan.vocabulary == "ends" or plan.pp == 1)
        and not plan.connects_stages
    )
    return plan.recompute if is_done else "none"


class StageEnds(NamedTuple):
    """Does the stage before, and behind, stand on another device? Without sequence parallelism every device of a
    tensor-parallel group then sends its part of the hidden units, which the receivers collect (Narayanan et al. 2021, arXiv
    2104.04473, section 4.1)."""

    is_received: bool = False
    is_sent: bool = False


ALONE = StageEnds()


def stage_ends(paths: Sequence[Sequence[Hop]], num_stages: int) -> tuple[StageEnds, ...]:
    """Of every stage, by the ways that microbatches take."""
    received, sent = set(), set()
    for path in paths:
        for one, other in itertools.pairwise(path):
            if one.device != other.device:
                sent.add(one.stage)
                received.add(other.stage)
    return tuple(StageEnds(stage in received, stage in sent) for stage in range(num_stages))


def decoder_chain(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds = ALONE
) -> Chain:
    """The chain of the stage with these layers of a decoder."""
    streams, beside = degrees.stream_layouts, {TENSOR: EXPERTS_OF_COPIES}
    beside |= dict.fromkeys(degrees.expert_axes, EXPERTS_OF_ROWS)
    if degrees.routes_own_tokens and not degrees.sequence_parallel:
        beside[TENSOR] = EXPERTS_OF_PARTS
    items = (laid_out(item, streams, beside) for item in _items(model, layers, degrees, ends))
    given = layout_text(streams)
    if degrees.recompute == "selective_op":
        chain = chain_of(items, BESIDE_ROUTES | CORES | KEPT_PRODUCTS, apart=AGAIN_BY_OPERATION, given=given)
        return chain.recomputing(AGAIN_BY_OPERATION, KEPT_PRODUCTS)
    again = CORES if degrees.recompute == "selective" else frozenset[str]()
    return chain_of(items, BESIDE_ROUTES | again, given=given).recomputing(again)


def _items(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved | Relay]:
    yield from _begin(model, layers, degrees, ends)
    is_ladder = model.has_ladder_residual
    # Results that the stream lacks when the next part reads it: none, or with a ladder residual that of the part before.
    num_late, late = int(is_ladder), [ADD_CARRIED] if is_ladder and not layers.has_embedding else []
    for block in range(layers.first_block, layers.first_block + layers.num_blocks):
        for part in PARTS_OF_BLOCK:
            own = f"{part}_" if is_ladder else ""  # two results are on their way
            if len(late) > num_late:
                yield late.pop(0)
            yield ChainStep(f"{part}_norm", block, ("residual",), ("normed",))
            experts = model.layers[block].experts if part == "mlp" and degrees.divides_experts else None
            if experts is not None:
                left = yield from _mixture(block, degrees, has_shared=experts.shared_intermediate_size > 0)
            else:
                is_dense = model.layers[block].experts is None
                left = yield from _half(part, block, degrees, own, is_dense=is_dense)
            late.append(ChainStep("add", block, ("residual", left), ("residual",), (part, block)))
    if not is_ladder or layers.has_head:
        yield from late
        late = []
    elif len(late) > num_late:
        yield late.pop(0)
    yield from _end(layers, degrees, ends, late if is_ladder else None)


def _half(
    part: str, block: int, degrees: InnerDegrees, own: str, *, is_dense: bool
) -> Generator[ChainStep | Moved | Relay, None, str]:
    """Attention or a dense MLP behind its norm; the name of what it adds to the stream, `own` in front."""
    entered = yield from _entered(degrees)
    partial = f"{own}partial"
    if part == "attention" and (degrees.cp > 1 or degrees.recompute != "none"):
        yield from _attention(block, entered, degrees, partial)
    elif part == "mlp" and is_dense and degrees.recompute == "selective_op":
        yield ChainStep("gate_up", block, (entered,), ("inner",))
        yield ChainStep("down", block, ("inner",), (partial,))
    else:
        yield ChainStep(part, block, (entered,), (partial,))
    return (yield from _left(degrees, own))


def _attention(
    block: int, entered: str, degrees: InnerDegrees, partial: str
) -> Iterator[ChainStep | Moved | Relay]:
    """Attention in parts: of the tokens here, and along cp to those of all devices. `partial`: the name of its result."""
    if degrees.cp == 1:
        yield ChainStep("qkv", block, (entered,), ("qkv",))
        yield ChainStep("causal_attention", block, ("qkv",), ("attended",))
        yield ChainStep("attention_output", block, ("attended",), (partial,))
        return
    if degrees.context == "ulysses":
        yield ChainStep("head_parts", block, (entered,), ("head_parts",))
        yield Moved(
            "all_to_all", (CONTEXT,), "head_parts", "own_heads", RANKS, split_by=(BY_TOKENS, BY_HEADS)
        )
        yield ChainStep("attention_of_heads", block, ("own_heads",), ("token_parts",))
        back = (BY_HEADS, BY_TOKENS)
        yield Moved("all_to_all", (CONTEXT,), "token_parts", "attended_parts", RANKS, split_by=back)
        yield ChainStep("output_of_parts", block, ("attended_parts",), (partial,))
        return
    yield ChainStep("heads", block, (entered,), ("query", "block"))
    if degrees.context == "all_gather":
        yield Moved("all_gather", (CONTEXT,), "block", "all_blocks", RANKS)
        yield ChainStep("attention_core", block, ("query", "all_blocks"), ("attended",))
    else:
        core = ChainStep("attention_core", block, ("query", "block"), ("attended",))
        yield Relay(core, CONTEXT, degrees.cp)
    yield ChainStep("attention_output", block, ("attended",), (partial,))


def _mixture(
    block: int, degrees: InnerDegrees, *, has_shared: bool
) -> Generator[ChainStep | Moved, None, str]:
    """A block's experts, of which every device has some, behind their norm; the name of what they add to the stream. What
    every token goes through is computed while rows are on their way."""
    # then a device has the whole sum of its tokens
    is_own = degrees.routes_own_tokens and degrees.sequence_parallel
    entered = "normed" if is_own and not has_shared else (yield from _entered(degrees, is_kept=True))
    made = ("dispatched", "gates", "order", "counts")
    yield ChainStep("router", block, ("normed" if is_own else entered,), made)
    there, back = (BY_TOKENS, BY_EXPERTS), (BY_EXPERTS, BY_TOKENS)
    yield Moved("counts", degrees.expert_axes, "counts", "arrived", split_by=there)
    yield Moved(
        "routed", degrees.expert_axes, "dispatched", "received", sizes=("counts", "arrived"), split_by=there
    )
    if has_shared:
        yield ChainStep("shared_experts", block, (entered,), ("partial",))
    shared = ("partial",) if has_shared else ()
    if is_own and has_shared:
        left = yield from _left(degrees)
        shared = (left,)
    yield ChainStep("experts", block, ("received", "arrived"), ("results",))
    yield Moved(
        "routed", degrees.expert_axes, "results", "returned", sizes=("arrived", "counts"), split_by=back
    )
    result = "combined" if is_own else "partial"
    yield ChainStep("combine", block, ("returned", "gates", "order", *shared), (result,))
    return result if is_own else (yield from _left(degrees))


def _begin(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved]:
    """The residual stream in front of the first block."""
    if layers.has_embedding:
        yield ChainStep("embedding", ENDS, (), ("partial",))
        left = yield from _left(degrees)
        yield ChainStep("positions", ENDS, (left,), ("residual",))
        return
    given = INPUT
    if ends.is_received and degrees.divides_hidden:
        given = "whole_input"
        yield Moved("collect", (TENSOR,), INPUT, given, HIDDEN, split_by=(BY_HIDDEN, BY_HIDDEN))
    if model.has_ladder_residual:
        yield ChainStep("take_both", ENDS, (given,), ("residual", "carried"))
    else:
        yield ChainStep("take", ENDS, (given,), ("residual",))


def _end(
    layers: StageLayers, degrees: InnerDegrees, ends: StageEnds, late: Sequence[ChainStep] | None
) -> Iterator[ChainStep | Moved]:
    """What the next stage gets, or the loss. `late`: of a ladder residual what the stream lacks, which goes beside it."""
    if not layers.has_head:
        is_shared = ends.is_sent and degrees.divides_hidden
        output = ("whole_output" if is_shared else OUTPUT,)
        if late is None:
            yield ChainStep("give", ENDS, ("residual",), output)
        else:
            add = late[0] if late else ADD_NOTHING
            yield ChainStep("give_both", ENDS, add.reads, output, add.of)
        if is_shared:
            yield Moved("share", (TENSOR,), "whole_output", OUTPUT, HIDDEN, split_by=(BY_HIDDEN, BY_HIDDEN))
        return
    yield ChainStep("final_norm", ENDS, ("residual",), ("normed",))
    entered = yield from _entered(degrees)
    if degrees.tp == 1:
        yield ChainStep("head", ENDS, (entered,), ("logits",))
        yield ChainStep("cross_entropy", ENDS, ("logits",), (LOSS,))
        return
    yield ChainStep("head", ENDS, (entered,), ("logits", "largest"))
    yield Moved("maximum", (TENSOR,), "largest", "maximum")
    yield ChainStep("exponentials", ENDS, ("logits", "maximum"), ("terms",))
    yield Moved("all_reduce", (TENSOR,), "terms", "sums")
    yield ChainStep("split_cross_entropy", ENDS, ("sums", "maximum"), (LOSS,))


def _entered(degrees: InnerDegrees, *, is_kept: bool = False) -> Generator[Moved, None, str]:
    """What a column-parallel product reads of the normed stream; its name. `is_kept`: it is not fetched again."""
    if degrees.tp == 1:
        return "normed"
    algorithm = "all_gather" if degrees.sequence_parallel else "enter"
    is_again = degrees.sequence_parallel and degrees.fetches_again and not is_kept
    yield Moved(algorithm, (TENSOR,), "normed", "entered", TOKENS, is_again=is_again)
    return "entered"


def _left(degrees: InnerDegrees, own: str = "") -> Generator[Moved, None, str]:
    """The sum of the devices' terms, as the stream has it; its name. `own`: in front of the names of both."""
    if degrees.tp == 1:
        return f"{own}partial"
    yield Moved(
        "reduce_scatter" if degrees.sequence_parallel else "all_reduce",
        (TENSOR,),
        f"{own}partial",
        f"{own}summed",
        TOKENS,
    )
    return f"{own}summed"
