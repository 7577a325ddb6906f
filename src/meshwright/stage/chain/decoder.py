"""The chain of a decoder's stage: steps of its blocks and ends, and what tensor and sequence parallelism send between them.

Between a column-parallel and a row-parallel product every device works on its own outputs; what they add to the residual
stream is a term of a sum over the group (Shoeybi et al. 2019, arXiv 1909.08053). With sequence parallelism the stream is
divided by tokens: the sum is scattered, and what a column-parallel product reads is gathered, again for its backward
(Korthikanti et al. 2022, arXiv 2205.05198).

With context parallelism every device has some tokens of each sequence, and attention alone needs the others (the kinds of
`specs.sequence.context_parallel`): keys and values travel around a ring or are gathered, or heads are exchanged for tokens
and back.

Chunks of sequences are token parts whose attention reads keys and values of those before them.

With a ladder residual a part reads the stream without the result of the part right before it, which is added one part later
(Zhang et al. 2025, arXiv 2501.06589): the sum of that result is on its way while the part is computed. Parallel
branches are another chain (`branches`).

Selective recompute is of attention's core alone, which is cheap for what it keeps (Korthikanti et al., section 5): it is then
a segment of its own on one device, too. By operation, all of a block is recomputed but attention and every second product,
whose results are values (torchtitan's policy "op"); what these products read is made again for their backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.ir.layout import layout_text
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.chain.branches import branch_items
from meshwright.stage.chain.chain import ENDS, Chain, ChainStep, Moved, Relay, chain_of
from meshwright.stage.chain.degrees import ALONE, InnerDegrees, StageEnds
from meshwright.stage.chain.encoder_decoder import encoder_decoder_items
from meshwright.stage.chain.end import embedded, given, loss, received
from meshwright.stage.chain.part import dense_part, mixture
from meshwright.stage.chain.step_layout import (
    BRANCHES,
    COLLECTED_ROWS,
    EXPERTS_OF_ALL_ROWS,
    EXPERTS_OF_COPIES,
    EXPERTS_OF_OWN_ROWS,
    EXPERTS_OF_OWN_TOKENS,
    EXPERTS_OF_ROWS,
    FORWARDED_ROWS,
    HEADS_OF_GROUP,
    LAYOUTS_ALONG,
    Steps,
    laid_out,
)
from meshwright.stage.mesh import EXPERT, TENSOR

PARTS_OF_BLOCK = ("attention", "mlp")
# What came beside the stream from the stage before, taken up; and what a stage without blocks has beside it.
ADD_CARRIED = ChainStep("add_carried", ENDS, ("residual", "carried"), ("residual",))
ADD_NOTHING = ChainStep("add", ENDS, ("residual",), ("residual",))
BESIDE_ROUTES = frozenset(("shared_experts",))  # segments of their own, which run while rows are under way
# Of attention, by how it is divided.
CORES = frozenset(
    ("causal_attention", "attention_core", "attention_of_heads", "chunk_attention", "cross_core")
)  # whole rows of scores are values, which nobody makes again
# By operation: products whose results are kept, and what is recomputed.
KEPT_PRODUCTS = frozenset(("qkv", "heads", "head_parts", "cross_query", "cross_key_value", "gate_up"))
AGAIN_BY_OPERATION = frozenset(
    (
        *("attention_norm", "attention_output", "output_of_parts", "add", "mlp_norm", "mlp", "down"),
        *("cross_norm", "cross_output"),
    )
)


def decoder_chain(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds = ALONE
) -> Chain:
    """The chain of the stage with these layers of a decoder, or of an encoder-decoder."""
    streams, steps = degrees.stream_layouts, _layouts_along(model, degrees)
    items_of = encoder_decoder_items if model.num_encoder_layers else _items
    items_of = branch_items if model.has_parallel_branches else items_of
    items = (laid_out(item, streams, steps) for item in items_of(model, layers, degrees, ends))
    stream = layout_text(streams)
    if degrees.recompute == "selective_op":
        chain = chain_of(items, BESIDE_ROUTES | CORES | KEPT_PRODUCTS, apart=AGAIN_BY_OPERATION, given=stream)
        return chain.recomputing(AGAIN_BY_OPERATION, KEPT_PRODUCTS)
    again = CORES if degrees.recompute == "selective" else frozenset[str]()
    return chain_of(items, BESIDE_ROUTES | again, given=stream).recomputing(again)


def _layouts_along(model: ModelSpec, degrees: InnerDegrees) -> Mapping[str, Steps]:
    """By axis the steps that do not do the same with the residual stream on every device along it: what attention makes of
    the axis, and what experts do."""
    found = dict[str, Steps]()
    heads = degrees.heads_axes if degrees.ulysses > 1 else ()
    for axis in degrees.axes:
        own = axis.name in degrees.own_axes
        cases: tuple[tuple[bool, Steps], ...] = (
            (axis.name in heads, HEADS_OF_GROUP),
            (axis.name in degrees.copied_axes, EXPERTS_OF_COPIES),
            (axis.name in degrees.gathered_axes, EXPERTS_OF_ALL_ROWS),
            (own, EXPERTS_OF_OWN_TOKENS),
            (axis.experts == EXPERT, EXPERTS_OF_OWN_ROWS if own else EXPERTS_OF_ROWS),
            (axis.name in degrees.near_axes, COLLECTED_ROWS),
            (axis.name in degrees.far_axes, FORWARDED_ROWS),
            (model.has_parallel_branches and axis.attention == TENSOR, BRANCHES),
        )
        more = (steps for is_so, steps in cases if is_so)
        found[axis.name] = {
            k: v for steps in (LAYOUTS_ALONG.get(axis.attention, {}), *more) for k, v in steps.items()
        }
    return found


def _items(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved | Relay]:
    is_ladder = model.has_ladder_residual
    if layers.has_embedding:
        yield from embedded("embedding", degrees)
    else:
        source = yield from received(degrees, ends)
        taken = ("take_both", ("residual", "carried")) if is_ladder else ("take", ("residual",))
        yield ChainStep(taken[0], ENDS, (source,), taken[1])
    # Results that the stream lacks when the next part reads it: none, or with a ladder residual that of the part before.
    num_late, late = int(is_ladder), [ADD_CARRIED] if is_ladder and not layers.has_embedding else []
    for block in range(layers.first_block, layers.first_block + layers.num_blocks):
        for part in PARTS_OF_BLOCK:
            own = f"{part}_" if is_ladder else ""  # two results are on their way
            if len(late) > num_late:
                yield late.pop(0)
            yield ChainStep(f"{part}_norm", block, ("residual",), ("normed",))
            experts = model.layers[block].experts if part == "mlp" and degrees.has_expert_steps else None
            if experts is not None:
                left = yield from mixture(block, degrees, has_shared=experts.shared_intermediate_size > 0)
            else:
                is_dense = model.layers[block].experts is None
                left = yield from dense_part(part, block, degrees, own, is_dense=is_dense)
            late.append(ChainStep("add", block, ("residual", left), ("residual",), (part, block)))
    if not is_ladder or layers.has_head:
        yield from late
        late = []
    elif len(late) > num_late:
        yield late.pop(0)
    if layers.has_head:
        yield from loss(degrees)
    elif is_ladder:
        add = late[0] if late else ADD_NOTHING
        yield from given(ChainStep("give_both", ENDS, add.reads, (), add.of), degrees, ends)
    else:
        yield from given(ChainStep("give", ENDS, ("residual",), ()), degrees, ends)
