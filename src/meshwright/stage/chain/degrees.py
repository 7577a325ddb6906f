"""InnerDegrees: how many devices share a microbatch inside a stage, and how; StageEnds: is what it gets and gives sent?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwright.ir.layout import COPIED
from meshwright.ir.table import Hop
from meshwright.specs.plan.plan import Dispatch, Plan, Recompute, SharedChoices
from meshwright.specs.sequence.context_parallel import Context, ContextParallel
from meshwright.stage.chain.chain import BY_TOKENS
from meshwright.stage.mesh import (
    CONTEXT,
    EXPERT,
    EXPERT_TENSOR,
    TENSOR,
    Axes,
    folded,
    folds_experts,
    inner,
    levels,
    names_of,
)


@dataclass(frozen=True)
class InnerDegrees:
    """How many devices share a microbatch inside a stage, and how.

    `sequence_parallel`: the residual stream is divided by tokens along tp. `fetches_again`: what is gathered for a product is
    not kept for its backward. ``context``: how cp devices share the tokens of a sequence; ``ulysses``: how many neighbours
    among them exchange heads inside a ring. ``mesh``: the axes of a stage's devices (`stage.mesh`), with what experts make of
    them; empty: experts are divided as attention is; ``ep_near`` and ``dispatch`` as of a plan. ``recompute``: what is
    recomputed by segments, as of a plan.
    ``shared_choices``: what devices that share sequences tell each other of the experts of their tokens, as of a plan.
    ``num_parts``: into so many parts a microbatch is cut; ``has_chunks``: along its sequences.
    """

    tp: int = 1
    sequence_parallel: bool = False
    fetches_again: bool = True
    cp: int = 1
    context: Context = "ring"
    ulysses: int = 1
    mesh: Axes = ()
    ep_near: int = 1
    dispatch: Dispatch = "copies"
    recompute: Recompute = "none"
    shared_choices: SharedChoices = "none"
    num_parts: int = 1
    has_chunks: bool = False

    @property
    def axes(self) -> Axes:
        """Those of several devices, outermost first."""
        mesh = self.mesh or folded((self.tp, self.cp, 1), (self.tp, 1), (self.tp * self.ulysses,))
        return tuple(axis for axis in mesh if axis.size > 1)

    @property
    def tensor_axes(self) -> tuple[str, ...]:
        """Those of the devices that share matrices."""
        return names_of(self.axes, TENSOR)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Those along which experts are divided, so that rows go to the devices of theirs."""
        return names_of(self.axes, EXPERT)

    @property
    def routed_axes(self) -> tuple[tuple[str, ...], ...]:
        """Of every exchange by which they go there: one, or two, among neighbours first; what is sent once among these last,
        so that it crosses to them once."""
        found = levels(self.axes, self.ep_near)
        return found[::-1] if self.sends_once else found

    @property
    def sends_once(self) -> bool:
        """Does a token go once to each device that has any of its experts, or to each group of neighbours?"""
        return self.dispatch == "once" and bool(self.expert_axes)

    @property
    def near_axes(self) -> tuple[str, ...]:
        """Those of neighbours that collect rows for each other, or forward them; none where rows go all at once."""
        found = levels(self.axes, self.ep_near)
        return found[0] if len(found) > 1 else ()

    @property
    def far_axes(self) -> tuple[str, ...]:
        """Those of the groups of such neighbours."""
        found = levels(self.axes, self.ep_near)
        return found[1] if len(found) > 1 else ()

    @property
    def copied_axes(self) -> tuple[str, ...]:
        """Of the devices that share every expert's matrices those that have the same tokens anyway: of a tensor-parallel
        group whose stream is not divided."""
        if self.sequence_parallel:
            return ()
        return tuple(a.name for a in self.axes if (a.attention, a.experts) == (TENSOR, EXPERT_TENSOR))

    @property
    def gathered_axes(self) -> tuple[str, ...]:
        """Those that have other tokens: they gather rows in front of experts, and scatter the sum of their results."""
        return tuple(n for n in names_of(self.axes, EXPERT_TENSOR) if n not in self.copied_axes)

    @property
    def own_axes(self) -> tuple[str, ...]:
        """Of the devices of a tensor-parallel group that have the same tokens, those that each look for the experts of a part
        of these, and add nothing for the others."""
        if self.sequence_parallel:
            return ()
        return tuple(name for name in self.tensor_axes if name not in self.copied_axes)

    @property
    def divides_experts(self) -> bool:
        """Do rows of tokens go to other devices than those that share the matrices of attention?"""
        return any(
            axis.experts == EXPERT or (axis.attention == TENSOR) != (axis.experts == EXPERT_TENSOR)
            for axis in self.axes
        )

    @property
    def has_expert_steps(self) -> bool:
        """Are a block's experts several steps of its chain: do rows go elsewhere, or choices to those along cp?"""
        return self.divides_experts or self.shared_choices != "none"

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
        along_tensor = BY_TOKENS if self.sequence_parallel else COPIED
        axes = dict.fromkeys((*self.tensor_axes, *self.context_axes, *self.expert_axes, *self.gathered_axes))
        return {name: along_tensor if name in self.tensor_axes else BY_TOKENS for name in axes}

    @property
    def context_parallel(self) -> ContextParallel:
        """How cp devices attend, wherever their tokens are."""
        return ContextParallel(self.cp, self.context, "", self.ulysses)

    @property
    def context_axes(self) -> tuple[str, ...]:
        """Axes of the devices that share sequences."""
        return names_of(self.axes, CONTEXT)

    @property
    def heads_axes(self) -> tuple[str, ...]:
        """Axes of the devices that exchange heads; none where nobody does."""
        shared = [axis for axis in self.axes if axis.attention == CONTEXT]
        return tuple(axis.name for axis in inner(shared, self.context_parallel.heads_degree))

    @property
    def ring_axes(self) -> tuple[str, ...]:
        """Axes of the devices whose queries are of different tokens while they attend."""
        return tuple(name for name in self.context_axes if name not in self.heads_axes)

    @property
    def told_axes(self) -> tuple[str, ...]:
        """Those along which devices tell each other of the experts of their tokens: of those that share sequences, and along
        tp where each looks after a part of the tokens."""
        along_tensor = self.tensor_axes if self.sequence_parallel else self.own_axes
        return tuple(
            axis.name for axis in self.axes if axis.attention == CONTEXT or axis.name in along_tensor
        )

    @property
    def divides_hidden(self) -> bool:
        """Do the devices of a tensor-parallel group all have the same stream, of which each may send a part?"""
        return self.tp > 1 and not self.sequence_parallel


def of_groups(degrees: InnerDegrees, most_degree: int) -> InnerDegrees:
    """Of ranks in groups of different sizes, the largest of so many: keys and values travel in all of them, around a ring of
    as many steps as a group has ranks; where one rank is alone its ring has one step, and nothing is sent."""
    return replace(degrees, cp=max(2, most_degree), context="ring", mesh=())


def recomputed_in_segments(plan: Plan) -> Recompute:
    """What a plan recomputes by segments: in every block, where the stage is a chain from its input to its output; "none"
    where it does not. By operation experts are one step."""
    is_several_steps = folds_experts(plan) or plan.shared_choices != "none"
    is_done = (
        (plan.recompute == "selective" or (plan.recompute == "selective_op" and not is_several_steps))
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
