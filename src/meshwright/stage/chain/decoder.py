"""The chain of a decoder's stage: steps of its blocks and ends, and what tensor and sequence parallelism send between them.

Between a column-parallel and a row-parallel product every device works on its own outputs; what they add to the residual
stream is a term of a sum over the group (Shoeybi et al. 2019, arXiv 1909.08053). With sequence parallelism the stream is
divided by tokens: the sum is scattered, and what a column-parallel product reads is gathered, again for its backward
(Korthikanti et al. 2022, arXiv 2205.05198).

Of a block whose experts are divided, rows of tokens go to the devices that have their experts, and come back (Lepikhin et
al. 2020, arXiv 2006.16668); none is dropped, so how many there are is exchanged first. What a step of experts reads and
writes: `dispatched` rows sorted by expert, with the `order` of their tokens, `gates`, and `counts` of every expert's rows;
`received` rows, `arrived` of them from every device; `results` of these, which are `returned`.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.ir.table import Hop
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.chain.chain import ENDS, INPUT, LOSS, OUTPUT, Chain, ChainStep, Moved, chain_of

TENSOR = "tp"
TOKENS, HIDDEN = 1, 2  # dimensions of [B, S, E]
BESIDE_ROUTES = frozenset(("shared_experts",))  # segments of their own, which run while rows are under way


@dataclass(frozen=True)
class InnerDegrees:
    """How many devices share a microbatch inside a stage, and how.

    `sequence_parallel`: the residual stream is divided by tokens along tp. `fetches_again`: what is gathered for a product is
    not kept for its backward. `expert_axes`: those along which experts are divided; none where every device has all.
    """

    tp: int = 1
    sequence_parallel: bool = False
    fetches_again: bool = True
    expert_axes: tuple[str, ...] = ()

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
        return self.tp > 1 or self.divides_experts

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
    """The chain of the stage with these layers of a decoder."""
    return chain_of(_items(model, layers, degrees, ends), BESIDE_ROUTES)


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
            experts = model.layers[block].experts if part == "mlp" and degrees.divides_experts else None
            if experts is None:
                entered = yield from _entered(degrees)
                yield ChainStep(part, block, (entered,), ("partial",))
                left = yield from _left(degrees)
            else:
                left = yield from _mixture(block, degrees, has_shared=experts.shared_intermediate_size > 0)
            add = ChainStep("add", block, ("residual", left), ("residual",), (part, block))
    if add is not None:
        yield add
    yield from _end(layers, degrees, ends)


def _mixture(
    block: int, degrees: InnerDegrees, *, has_shared: bool
) -> Generator[ChainStep | Moved, None, str]:
    """A block's experts, of which every device has some, behind their norm; the name of what they add to the stream. What
    every token goes through is computed while rows are on their way."""
    is_own = (
        degrees.routes_own_tokens and degrees.sequence_parallel
    )  # then a device has the whole sum of its tokens
    entered = "normed" if is_own and not has_shared else (yield from _entered(degrees, is_kept=True))
    made = ("dispatched", "gates", "order", "counts")
    yield ChainStep("router", block, ("normed" if is_own else entered,), made)
    yield Moved("counts", degrees.expert_axes, "counts", "arrived")
    yield Moved("routed", degrees.expert_axes, "dispatched", "received", sizes=("counts", "arrived"))
    if has_shared:
        yield ChainStep("shared_experts", block, (entered,), ("partial",))
    shared = ("partial",) if has_shared else ()
    if is_own and has_shared:
        left = yield from _left(degrees)
        shared = (left,)
    yield ChainStep("experts", block, ("received", "arrived"), ("results",))
    yield Moved("routed", degrees.expert_axes, "results", "returned", sizes=("arrived", "counts"))
    result = "combined" if is_own else "partial"
    yield ChainStep("combine", block, ("returned", "gates", "order", *shared), (result,))
    return result if is_own else (yield from _left(degrees))


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


def _entered(degrees: InnerDegrees, *, is_kept: bool = False) -> Generator[Moved, None, str]:
    """What a column-parallel product reads of the normed stream; its name. `is_kept`: it is not fetched again."""
    if degrees.tp == 1:
        return "normed"
    algorithm = "all_gather" if degrees.sequence_parallel else "enter"
    is_again = degrees.sequence_parallel and degrees.fetches_again and not is_kept
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
