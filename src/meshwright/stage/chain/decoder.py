"""The chain of a decoder's stage: steps of its blocks and ends, and what tensor and sequence parallelism send between them.

Between a column-parallel and a row-parallel product every device works on its own outputs; what they add to the residual
stream is a term of a sum over the group (Shoeybi et al. 2019, arXiv 1909.08053). With sequence parallelism the stream is
divided by tokens: the sum is scattered, and what a column-parallel product reads is gathered, again for its backward
(Korthikanti et al. 2022, arXiv 2205.05198).

With context parallelism every device has some tokens of each sequence, and attention alone needs the others (the kinds of
`specs.plan.sequence_part`): gathered keys and values, or heads exchanged for tokens and back.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.ir.table import Hop
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.sequence_part import Context
from meshwright.stage.chain.chain import ENDS, INPUT, LOSS, OUTPUT, Chain, ChainStep, Moved, chain_of

TENSOR, CONTEXT = "tp", "cp"
TOKENS, HIDDEN = 1, 2  # dimensions of [B, S, E]
RANKS = 0  # what goes to or comes from every device of a group, one behind the other


@dataclass(frozen=True)
class InnerDegrees:
    """How many devices share a microbatch inside a stage, and how.

    `sequence_parallel`: the residual stream is divided by tokens along tp. `fetches_again`: what is gathered for a product is
    not kept for its backward. ``context``: how cp devices share the tokens of a sequence.
    """

    tp: int = 1
    sequence_parallel: bool = False
    fetches_again: bool = True
    cp: int = 1
    context: Context = "ring"

    @property
    def has_exchanges(self) -> bool:
        """Is anything sent inside a stage?"""
        return self.tp > 1 or self.cp > 1

    @property
    def divides_hidden(self) -> bool:
        """Do the devices of a tensor-parallel group all have the same stream, of which each may send a part?"""
        return self.tp > 1 and not self.sequence_parallel


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
    """The chain of the stage with these layers of a dense decoder."""
    return chain_of(_items(model, layers, degrees, ends))


def _items(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved]:
    yield from _begin(layers, degrees, ends)
    add: ChainStep | None = None
    for block in range(layers.first_block, layers.first_block + layers.num_blocks):
        for part in ("attention", "mlp"):
            if add is not None:
                yield add
            yield ChainStep(f"{part}_norm", block, ("residual",), ("normed",))
            entered = yield from _entered(degrees)
            if part == "attention" and degrees.cp > 1:
                yield from _attention(block, entered, degrees)
            else:
                yield ChainStep(part, block, (entered,), ("partial",))
            left = yield from _left(degrees)
            add = ChainStep("add", block, ("residual", left), ("residual",), (part, block))
    if add is not None:
        yield add
    yield from _end(layers, degrees, ends)


def _attention(block: int, entered: str, degrees: InnerDegrees) -> Iterator[ChainStep | Moved]:
    """Attention of the tokens here to those of all devices along cp."""
    if degrees.context == "ulysses":
        yield ChainStep("head_parts", block, (entered,), ("head_parts",))
        yield Moved("all_to_all", (CONTEXT,), "head_parts", "own_heads", RANKS)
        yield ChainStep("attention_of_heads", block, ("own_heads",), ("token_parts",))
        yield Moved("all_to_all", (CONTEXT,), "token_parts", "attended_parts", RANKS)
        yield ChainStep("output_of_parts", block, ("attended_parts",), ("partial",))
        return
    yield ChainStep("heads", block, (entered,), ("query", "block"))
    yield Moved("all_gather", (CONTEXT,), "block", "all_blocks", RANKS)
    yield ChainStep("attention_core", block, ("query", "all_blocks"), ("attended",))
    yield ChainStep("attention_output", block, ("attended",), ("partial",))


def _begin(layers: StageLayers, degrees: InnerDegrees, ends: StageEnds) -> Iterator[ChainStep | Moved]:
    """The residual stream in front of the first block."""
    if layers.has_embedding:
        yield ChainStep("embedding", ENDS, (), ("partial",))
        left = yield from _left(degrees)
        yield ChainStep("positions", ENDS, (left,), ("residual",))
        return
    given = INPUT
    if ends.is_received and degrees.divides_hidden:
        given = "whole_input"
        yield Moved("collect", (TENSOR,), INPUT, given, HIDDEN)
    yield ChainStep("take", ENDS, (given,), ("residual",))


def _end(layers: StageLayers, degrees: InnerDegrees, ends: StageEnds) -> Iterator[ChainStep | Moved]:
    """What the next stage gets, or the loss."""
    if not layers.has_head:
        is_shared = ends.is_sent and degrees.divides_hidden
        yield ChainStep("give", ENDS, ("residual",), ("whole_output" if is_shared else OUTPUT,))
        if is_shared:
            yield Moved("share", (TENSOR,), "whole_output", OUTPUT, HIDDEN)
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


def _entered(degrees: InnerDegrees) -> Generator[Moved, None, str]:
    """What a column-parallel product reads of the normed stream; its name."""
    if degrees.tp == 1:
        return "normed"
    algorithm = "all_gather" if degrees.sequence_parallel else "enter"
    is_again = degrees.sequence_parallel and degrees.fetches_again
    yield Moved(algorithm, (TENSOR,), "normed", "entered", TOKENS, is_again=is_again)
    return "entered"


def _left(degrees: InnerDegrees) -> Generator[Moved, None, str]:
    """The sum of the devices' terms, as the stream has it; its name."""
    if degrees.tp == 1:
        return "partial"
    yield Moved(
        "reduce_scatter" if degrees.sequence_parallel else "all_reduce",
        (TENSOR,),
        "partial",
        "summed",
        TOKENS,
    )
    return "summed"
