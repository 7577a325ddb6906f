"""The chain of a decoder's stage whose parts are parallel branches: all read the same stream, and are summed once.

The residual stream enters once, in front of the norms of all parts, and the terms that devices have of their results are
added here before they are summed over the devices (Bermeitinger et al. 2023, arXiv 2309.08414, say which model this is). So
a stage has one sum forwards, and one backwards, of the gradients of what the parts read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.chain.chain import ENDS, ChainStep, Moved, Relay
from meshwright.stage.chain.degrees import InnerDegrees, StageEnds
from meshwright.stage.chain.end import embedded, given, loss, received
from meshwright.stage.chain.part import attention, entering, leaving

PARTS = ("attention", "mlp")
SUM, BRANCH = "partial", "branch"  # of the parts so far, and what one of them adds


def branch_items(
    model: ModelSpec, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds
) -> Iterator[ChainStep | Moved | Relay]:
    """Steps and exchanges of a stage of a dense decoder."""
    if layers.has_embedding:
        yield from embedded("embedding", degrees)
    else:
        source = yield from received(degrees, ends)
        yield ChainStep("take_both", ENDS, (source,), ("residual", "carried"))
    blocks = range(layers.first_block, layers.first_block + layers.num_blocks)
    parts = [(part, block) for block in blocks for part in PARTS]
    late = "" if layers.has_embedding else "carried"
    if parts:
        summed = yield from _summed(parts, degrees)
        for own in parts:
            yield ChainStep("finished", ENDS, (summed,), (summed,), own)
        if late:
            yield ChainStep("add_carried", ENDS, (summed, late), (summed,))
        late = summed
    if layers.has_head:
        if late:
            yield ChainStep("add_carried", ENDS, ("residual", late), ("residual",))
        yield from loss(degrees)
    else:
        reads = ("residual", late) if late else ("residual",)
        yield from given(ChainStep("give_both", ENDS, reads, ()), degrees, ends)


def _summed(
    parts: list[tuple[str, int]], degrees: InnerDegrees
) -> Generator[ChainStep | Moved | Relay, None, str]:
    """All parts of a stage, their terms, and the sum over the devices; its name."""
    entered = yield from entering(degrees, "residual")
    for number, (part, block) in enumerate(parts):
        made = BRANCH if number else SUM
        yield ChainStep(f"{part}_norm", block, (entered,), ("normed",))
        if part == "attention" and (degrees.cp > 1 or degrees.has_chunks or degrees.recompute != "none"):
            yield from attention(block, "normed", degrees, made)
        else:
            yield ChainStep(part, block, ("normed",), (made,))
        if number:
            yield ChainStep("add_branch", block, (SUM, BRANCH), (SUM,), (part, block))
    return (yield from leaving(degrees))
