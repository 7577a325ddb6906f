"""StageSegment: which stage of a training, and which segment of its chain, a stage of the program is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from meshwright.executor.team.rank_team import RankTeam
from meshwright.ir.program import Program
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.chain.chain import GRADIENT, WITHOUT_GRADIENT, Chain, Moved, Segment, Value
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import InnerDegrees, stage_ends
from meshwright.stage.relay.rounds import AGAIN, RELAYS


@dataclass(frozen=True, eq=False)
class StageSegment:
    """Segment ``number`` of the chain of stage ``stage``; ``team``: the devices that share values between segments."""

    stage: int
    number: int
    chain: Chain
    team: RankTeam

    @property
    def segment(self) -> Segment:
        """Its steps, what it reads and makes."""
        return self.chain.segments[self.number]

    def has_gradient(self, name: str) -> bool:
        """Does a gradient go through a value?"""
        return name not in WITHOUT_GRADIENT

    @cached_property
    def differentiable_reads(self) -> tuple[str, ...]:
        """Of what it reads, that to which gradients go back."""
        return tuple(value.name for value in self.segment.reads if self.has_gradient(value.name))

    @cached_property
    def differentiable_writes(self) -> tuple[str, ...]:
        """Of what it makes, that through which gradients come back."""
        return tuple(name for name in self.segment.writes if self.has_gradient(name))

    @cached_property
    def fetched_again(self) -> str | None:
        """The value that its backward gets once more."""
        if self.number in self.chain.remade:
            return self.segment.reads[0].name
        again = {each.write for each in self.chain.deliveries if each.move.is_again}
        return next((value.name for value in self.segment.reads if value in again), None)

    def dim(self, kind: str) -> int:
        """The dimension along which an exchange of the chain that writes values of a kind divides them; what steps of a relay
        leave for all devices stands one behind the other."""
        dims = {own.owed.arrived: 0 for rounds in RELAYS for own in rounds.all if own.owed}
        for each in self.chain.deliveries:
            move = each.move
            for name in (move.write, move.write + AGAIN, move.read + GRADIENT):
                dims[name] = move.dim
        return dims[kind]

    @cached_property
    def _shared(self) -> dict[str, Moved]:
        """Values of its own of which every device gives a part."""
        own = (Value(name, self.number) for name in self.segment.writes)
        moves = {each.read: each.move for each in self.chain.deliveries if each.move.algorithm == "share"}
        return {value.name: moves[value] for value in own if value in moves}

    @cached_property
    def _collected(self) -> tuple[Moved | None, ...]:
        """Of everything it reads through which a gradient goes, how it was collected."""
        moves = {each.write: each.move for each in self.chain.deliveries if each.move.algorithm == "collect"}
        return tuple(moves.get(value) for value in self.segment.reads if self.has_gradient(value.name))

    def given(self, name: str, value: Tensor) -> Tensor:
        """What leaves the segment of what it made: all of it, or this device's part."""
        move = self._shared.get(name)
        return value if move is None else self.team.own_part(value, move.dim).contiguous()

    def taken(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """Gradients of what it read as they go back: of what was collected from all devices, this one's part. What is of
        several token parts, a tuple, is never collected."""
        return tuple(
            each if move is None or each is None else self.team.own_part(each, move.dim).contiguous()
            for each, move in zip(gradients, self._collected, strict=True)
        )


def stage_segments(
    model: ModelSpec,
    stages: tuple[StageLayers, ...],
    degrees: InnerDegrees,
    program: Program,
    team: RankTeam,
) -> tuple[StageSegment, ...]:
    """What every stage of a program in segments is."""
    counts = [len(decoder_chain(model, layers, degrees).segments) for layers in stages]
    ends = stage_ends(program.tables.paths, program.tables.num_stages)
    found: list[StageSegment] = []
    for number, (layers, count) in enumerate(zip(stages, counts, strict=True)):
        first, last = len(found), len(found) + count - 1
        own = ends[first]._replace(is_sent=ends[last].is_sent)
        chain = decoder_chain(model, layers, degrees, own)
        found += [StageSegment(number, place, chain, team) for place in range(count)]
    return tuple(found)
