"""InnerDegrees: how many devices share a microbatch inside a stage, and how; StageEnds: is what it gets and gives sent?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwright.ir.layout import COPIED
from meshwright.ir.table import Hop
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.sequence.context_parallel import Context, ContextParallel
from meshwright.stage.chain.chain import BY_TOKENS

TENSOR, CONTEXT = "tp", "cp"


def heads_axis(degree: int) -> str:
    """The axis of so many neighbours along cp (`stage.mesh`)."""
    return f"{CONTEXT}{degree}"


@dataclass(frozen=True)
class InnerDegrees:
    """How many devices share a microbatch inside a stage, and how.

    `sequence_parallel`: the residual stream is divided by tokens along tp. `fetches_again`: what is gathered for a product is
    not kept for its backward. ``context``: how cp devices share the tokens of a sequence; ``ulysses``: how many neighbours
    among them exchange heads inside a ring. ``expert_axes``: those along which experts are divided; none where every device
    has all. ``recompute``: what is recomputed by segments, as of a plan.
    ``num_parts``: into so many parts a microbatch is cut; ``has_chunks``: along its sequences.
    """

    tp: int = 1
    sequence_parallel: bool = False
    fetches_again: bool = True
    cp: int = 1
    context: Context = "ring"
    ulysses: int = 1
    expert_axes: tuple[str, ...] = ()
    recompute: Recompute = "none"
    num_parts: int = 1
    has_chunks: bool = False

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
        axes = self.context_axes + self.expert_axes
        return found | {axis: BY_TOKENS for axis in axes if axis not in found}

    @property
    def context_parallel(self) -> ContextParallel:
        """How cp devices attend, wherever their tokens are."""
        return ContextParallel(self.cp, self.context, "", self.ulysses)

    @property
    def context_axes(self) -> tuple[str, ...]:
        """Axes of the devices that share sequences: of a ring, and inside it of those that exchange heads."""
        if self.cp == 1:
            return ()
        return (CONTEXT, heads_axis(self.ulysses)) if self.ulysses > 1 else (CONTEXT,)

    @property
    def heads_axes(self) -> tuple[str, ...]:
        """Axes of the devices that exchange heads; none where nobody does."""
        if self.context_parallel.ring_degree == 1:
            return self.context_axes
        return self.context_axes[1:]

    @property
    def divides_hidden(self) -> bool:
        """Do the devices of a tensor-parallel group all have the same stream, of which each may send a part?"""
        return self.tp > 1 and not self.sequence_parallel


def of_groups(degrees: InnerDegrees, most_degree: int) -> InnerDegrees:
    """Of ranks in groups of different sizes, the largest of so many: keys and values travel in all of them, around a ring of
    as many steps as a group has ranks; where one rank is alone its ring has one step, and nothing is sent."""
    return replace(degrees, cp=max(2, most_degree), context="ring")


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
