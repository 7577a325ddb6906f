"""Which layers and which part of each a rank of a served model has, and with whom it exchanges what.

Ranks are row-major: those of one stage stand side by side, so that they are on one host.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.executor.layout.tensor_shard import ExpertShard, TensorShard
from meshwright.serving.weight.weight_place import FetchedBlocks, WeightPlace, fetched_blocks, stage_blocks
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec

Team = tuple[tuple[int, ...], str]  # ranks, and what tells groups of the same ranks apart


@dataclass(frozen=True)
class RankPlace:
    """Rank `rank` of ``tp`` x ``pp``. Experts are divided among ``ep`` devices of tp, by ``slots`` where these are said
    (`RunnerOptions.expert_slots`); neighbouring ranks share one where there are more of them."""

    model: ModelSpec
    tp: int
    pp: int
    rank: int
    ep: int = 1
    slots: tuple[tuple[int, ...], ...] = ()

    @property
    def stage(self) -> int:
        """Its number, from the embedding's."""
        return self.rank // self.tp

    @property
    def layers(self) -> range:
        """Of its stage; where stages are uneven the first ones have one more, the last has the head as well."""
        each, more = divmod(self.model.num_layers, self.pp)
        first = self.stage * each + min(self.stage, more)
        return range(first, first + each + (self.stage < more))

    @property
    def shard(self) -> TensorShard:
        """What of every layer it has: whole experts of some, or where ranks share one its part of the inner units."""
        number, inner_degree = self.rank % self.tp, self.tp // self.ep
        device, inner_number = divmod(number, inner_degree)
        experts = ExpertShard(self.ep, device, inner_degree, inner_number, slots=self.slots)
        return TensorShard(self.model, self.tp, number, experts)

    @property
    def has_embedding(self) -> bool:
        """Is it of the first stage?"""
        return self.stage == 0

    @property
    def has_head(self) -> bool:
        """Is it of the last stage?"""
        return self.stage == self.pp - 1

    def teams(self) -> list[Team]:
        """All groups of the ranks that exchange something, the same on all ranks."""
        found: list[Team] = []
        if self.tp > 1:
            stages = (range(first, first + self.tp) for first in range(0, self.tp * self.pp, self.tp))
            found += [(tuple(ranks), "tp") for ranks in stages]
        return found + [link(rank, rank + self.tp) for rank in range(self.tp * (self.pp - 1))]

    @property
    def tensor_team(self) -> Team:
        """Those that share its layers."""
        first = self.stage * self.tp
        return tuple(range(first, first + self.tp)), "tp"


def link(source: int, target: int) -> Team:
    """The two ends of what goes from one stage to the next."""
    return (source, target), f"{source}>{target}"


def fetched_by_ranks(place: WeightPlace, model: ModelSpec, tp: int, pp: int, ep: int = 1) -> FetchedBlocks:
    """Which blocks of the stages of so many ranks are fetched. Raises as `check_degrees`, and `fetched_blocks`."""
    check_degrees(model, tp, pp, ep)
    stages = [RankPlace(model, tp, pp, rank) for rank in range(0, tp * pp, tp)]
    return fetched_blocks(
        place, [stage_blocks(each.layers, each.has_embedding, each.has_head) for each in stages]
    )


def check_degrees(model: ModelSpec, tp: int, pp: int, ep: int = 1) -> None:
    """Raise PlanError or ExecutionError where so many ranks cannot share the model's heads, units, experts or layers."""
    _check_experts(model, tp, ep)
    RankPlace(model, tp, pp, 0, ep).shard.check()
    if pp > model.num_layers:
        raise PlanError(
            f"pp={pp} with the {model.num_layers} layers of {model.name}", allowed=f"1 to {model.num_layers}"
        )


def _check_experts(model: ModelSpec, tp: int, ep: int) -> None:
    """Raise PlanError where `ep` of the `tp` ranks cannot have whole experts."""
    counts = sorted({kind.experts.num_experts for kind in model.kinds if kind.experts})
    if ep > 1 and (tp % ep or not counts or any(count % ep for count in counts)):
        has = f"{' and '.join(map(str, counts))} experts" if counts else "no experts"
        raise PlanError(
            f"ep={ep} with tp={tp} and the {has} of {model.name}",
            allowed="1, or tp or a divisor of it that divides the experts: they lie on the devices of tp",
            next="leave ep out: every device then has a part of each expert",
        )
