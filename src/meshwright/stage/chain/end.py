"""Ends of a stage as steps and exchanges: tokens embedded, what the stage before gives, what the next one gets, the loss."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from meshwright.stage.chain.chain import BY_HIDDEN, ENDS, INPUT, LOSS, OUTPUT, ChainStep, Moved
from meshwright.stage.chain.degrees import InnerDegrees, StageEnds
from meshwright.stage.chain.part import entering, leaving

HIDDEN = 2  # dimension of [B, S, E]


def embedded(table: str, degrees: InnerDegrees) -> Iterator[ChainStep | Moved]:
    """The residual stream of tokens whose rows stand in a table."""
    yield ChainStep(table, ENDS, (), ("partial",))
    left = yield from leaving(degrees)
    yield ChainStep("positions", ENDS, (left,), ("residual",))


def received(degrees: InnerDegrees, ends: StageEnds) -> Generator[Moved, None, str]:
    """What the stage before gives, whole; its name."""
    if not (ends.is_received and degrees.divides_hidden):
        return INPUT
    yield Moved("collect", degrees.tensor_axes, INPUT, "whole_input", HIDDEN, split_by=(BY_HIDDEN, BY_HIDDEN))
    return "whole_input"


def given(step: ChainStep, degrees: InnerDegrees, ends: StageEnds) -> Iterator[ChainStep | Moved]:
    """A step that makes what the next stage gets, which no step has named yet; of it every device may send a part."""
    is_shared = ends.is_sent and degrees.divides_hidden
    yield step._replace(writes=("whole_output" if is_shared else OUTPUT,))
    if is_shared:
        yield Moved(
            "share", degrees.tensor_axes, "whole_output", OUTPUT, HIDDEN, split_by=(BY_HIDDEN, BY_HIDDEN)
        )


def loss(degrees: InnerDegrees) -> Iterator[ChainStep | Moved]:
    """The loss of the residual stream."""
    yield ChainStep("final_norm", ENDS, ("residual",), ("normed",))
    entered = yield from entering(degrees)
    if degrees.tp == 1:
        yield ChainStep("head", ENDS, (entered,), ("logits",))
        yield ChainStep("cross_entropy", ENDS, ("logits",), (LOSS,))
        return
    yield ChainStep("head", ENDS, (entered,), ("logits", "largest"))
    yield Moved("maximum", degrees.tensor_axes, "largest", "maximum")
    yield ChainStep("exponentials", ENDS, ("logits", "maximum"), ("terms",))
    yield Moved("all_reduce", degrees.tensor_axes, "terms", "sums")
    yield ChainStep("split_cross_entropy", ENDS, ("sums", "maximum"), (LOSS,))
