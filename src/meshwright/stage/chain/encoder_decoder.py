"""The chain of an encoder-decoder's stage, which has blocks of its encoder, of its decoder, or of both.

The encoder's tokens see each other; a decoder's block attends, between its two parts, to what the encoder has made
(Vaswani et al. 2017, arXiv 1706.03762). That is a value which all blocks of a stage read, and its gradient the sum of theirs:
it enters tensor-parallel products once a stage, and between stages it goes beside the decoder's stream. With sequence
parallelism it is divided by tokens as the stream is, gathered once a stage, and what was gathered is kept: it is the input
of a product in every block.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.chain.chain import ENDS, ChainStep, Moved, Relay
from meshwright.stage.chain.degrees import InnerDegrees, StageEnds
from meshwright.stage.chain.end import embedded, given, loss, received
from meshwright.stage.chain.part import cross_attention, dense_part, entering

# What the encoder has made, for products here and for the next stage: two values, so that what goes back of the one is no
# part of a sum with the other, and an exchange left out is a read of what nobody wrote.
ENCODED = ("encoded", "carried")
Items = Generator[ChainStep | Moved | Relay, None, None]


def encoder_decoder_items(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved | Relay]:
    """Steps and exchanges of a stage."""
    first, stop, number = layers.first_block, layers.first_block + layers.num_blocks, model.num_encoder_layers
    if layers.has_embedding:
        yield from embedded("embedding", degrees)
    else:
        yield from _taken(first, number, degrees, ends)
    for block in range(first, min(stop, number)):
        yield from _block(model, block, degrees)
    if first < number <= stop:
        yield ChainStep("encoder_norm", ENDS, ("residual",), ENCODED)
    if first <= number < stop:
        yield from embedded("target_embedding", degrees)
    moves = tuple(entering(degrees, "encoded", "encoded_entered", is_kept=True))
    encoded = moves[-1].write if moves else "encoded"
    for block in range(max(first, number), stop):
        is_first = block == max(first, number)
        yield from _block(model, block, degrees, encoded, moves if is_first else ())
    yield from loss(degrees) if layers.has_head else given(_last(stop, number), degrees, ends)


def _taken(first: int, number: int, degrees: InnerDegrees, ends: StageEnds) -> Items:
    """What the stage before gives: the encoder's stream, what the encoder has made, or that beside the decoder's stream."""
    source = yield from received(degrees, ends)
    if first < number:
        yield ChainStep("take", ENDS, (source,), ("residual",))
    else:
        made = ENCODED if first == number else ("residual", *ENCODED)
        yield ChainStep("take_encoded", ENDS, (source,), made)


def _last(stop: int, number: int) -> ChainStep:
    """The step that makes what the next stage gets."""
    if stop > number:
        return ChainStep("give_encoded", ENDS, ("residual", "carried"), ())
    return ChainStep("give", ENDS, ("residual" if stop < number else "encoded",), ())


def _block(
    model: ModelSpec, block: int, degrees: InnerDegrees, encoded: str = "", moves: Sequence[Moved] = ()
) -> Items:
    """A block, of the decoder where it reads something `encoded`; what lets that in is on its way beside attention."""
    is_dense = model.layers[block].experts is None
    for part in ("attention", "cross_attention", "mlp") if encoded else ("attention", "mlp"):
        norm = "cross_norm" if part == "cross_attention" else f"{part}_norm"
        yield ChainStep(norm, block, ("residual",), ("normed",))
        if part == "cross_attention":
            left = yield from cross_attention(block, encoded, degrees)
        else:
            beside = moves if part == "attention" else ()
            left = yield from dense_part(part, block, degrees, is_dense=is_dense, beside=beside)
        yield ChainStep("add", block, ("residual", left), ("residual",), (part, block))
