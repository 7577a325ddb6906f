"""Weights pooled with a neighbour; when batches leave a pipeline whose stages wait for each other, or do not; what padding
adds to the work of linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.weight.fetched_step import window_bytes
from meshwright.serving.weight.weight_place import ATTENTION, FEED_FORWARD, PEER, WeightSource
from meshwright.specs.error import SpecError
from meshwright.specs.option import option

NVLINK_GB_PER_S = 300.0  # of an A100 to all others, each direction (NVIDIA's data sheet: 600 GB/s both)
HEAD = "vocabulary"  # the operator over wanted rows, of which padding adds none


@dataclass(frozen=True)
class PeerPool:
    """Fills `weights`: of every so many layers of a stage the last lies with a neighbour, and comes ahead of its use."""

    every: int = option(2, "Of every so many layers of a stage the last lies with a neighbour.", least=1)
    ahead: int = option(1, "Parts of layers (attention, feed-forward) that come while one computes.", least=1)
    gb_per_s: float = option(NVLINK_GB_PER_S, "Rate of the link from the neighbour, GB/s.", above=0)

    @property
    def window(self) -> int:
        """That which computes, and those that come."""
        return 1 + self.ahead

    @property
    def source(self) -> WeightSource:
        """A neighbour's memory."""
        return WeightSource(PEER, self.gb_per_s * 1e9)

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        """Both parts of the last of every so many layers."""
        parts = [block for block in blocks if block.split(".")[-1] in (ATTENTION, FEED_FORWARD)]
        layers = list(dict.fromkeys(block.rpartition(".")[0] for block in parts))
        pooled = set(layers[self.every - 1 :: self.every])
        return [block for block in parts if block.rpartition(".")[0] in pooled]

    def held_bytes(self, sizes: Mapping[str, float]) -> float:
        """Bytes of weights on a device at most: what stays, and the window.

        Args:
            sizes: bytes of a stage's blocks on one device, in the order of their use.
        """
        pooled = set(self.fetched(list(sizes)))
        comes = [size for block, size in sizes.items() if block in pooled]
        return sum(sizes.values()) - sum(comes) + window_bytes(comes, self.window)

    @classmethod
    def within(
        cls,
        sizes: Mapping[str, float],
        budget_bytes: float,
        ahead: int = 1,
        gb_per_s: float = NVLINK_GB_PER_S,
    ) -> PeerPool:
        """The pool with the fewest layers away that keeps a stage within its budget. Raises SpecError where none does."""
        num_layers = sum(block.endswith(ATTENTION) for block in sizes)
        pools = [cls(every, ahead, gb_per_s) for every in range(num_layers, 0, -1)]
        for pool in pools:
            if pool.held_bytes(sizes) <= budget_bytes:
                return pool
        least = min((pool.held_bytes(sizes) for pool in pools), default=sum(sizes.values()))
        raise SpecError(
            f"a budget of {budget_bytes:.0f} bytes for weights",
            allowed=f"{least:.0f} or more: what is no layer stays, and {1 + ahead} parts of layers are here at once",
            next="more devices a replica (tp, pp)",
        )


def batch_ends_s(
    stage_s: Sequence[Sequence[float]], transfer_s: float = 0.0, *, blocks: bool = False, queue: int = 1
) -> tuple[float, ...]:
    """When each batch leaves a pipeline into which all may enter at once, in order.

    A stage that does not block sends beside its next batch, of which `queue` may wait before the next stage. One that blocks
    sends when the next stage is free to take it, and computes nothing until that is done.

    Args:
        stage_s: of every batch its seconds in each stage.
        transfer_s: seconds from a stage to the next.
        blocks: does a stage wait for the next one?
        queue: batches between two stages.
    """
    num_stages = len(stage_s[0]) if stage_s else 0
    begins: list[list[float]] = []
    free = [0.0] * num_stages  # when a stage may begin its next batch
    ends = []
    for number, seconds in enumerate(stage_s):
        arrival, own = 0.0, []
        for stage, each in enumerate(seconds):
            begin = max(arrival, free[stage])
            own.append(begin)
            end = begin + each
            if stage == num_stages - 1:
                free[stage] = end
            elif blocks:
                free[stage] = max(end, free[stage + 1]) + transfer_s
                arrival = free[stage]
            else:
                arrival = end + transfer_s
                room = begins[number - queue][stage + 1] if number >= queue else 0.0
                free[stage] = max(end, room)
        begins.append(own)
        ends.append(end)
    return tuple(ends)


def padded_shape(lengths: Sequence[int], longest: int = 0) -> BatchShape:
    """The batch of prompts when each is as long as the longest (or `longest`)."""
    return BatchShape.of([(0, max(longest, *lengths))] * len(lengths))


def packed_shape(lengths: Sequence[int]) -> BatchShape:
    """The batch of the prompts as they are, one behind the other."""
    return BatchShape.of([(0, length) for length in lengths])


def linear_flops(program: ForwardProgram, batch: BatchShape) -> float:
    """Work of a step's products with weights on one device, without the head's, whose rows are wanted ones only."""
    return float(
        sum(
            operator.flops * operator.count
            for work in program.works(batch)
            for operator in work.operators
            if operator.kind == "matmul" and operator.label != HEAD
        )
    )
