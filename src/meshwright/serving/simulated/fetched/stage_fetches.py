"""StageFetches: blocks of weights of one stage of a replica, when a step computes with each, and what it waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from numpy.typing import NDArray

from meshwright.serving.weight.fetched_step import TimedBlock, fetched_step_s, window_bytes
from meshwright.serving.weight.weight_place import (
    EMBEDDING,
    HEAD,
    WeightPlace,
    WeightSource,
    block_of,
    fetched_blocks,
    stage_blocks,
)
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import block_parameters, embedding_parameters
from meshwright.specs.model.parameter_name import executed_name
from meshwright.specs.plan.plan import Plan
from meshwright.stage.chain.chain import ChainStep, Segment
from meshwright.stage.chain.parameters import step_parameters
from meshwright.stage.group.value_size import num_local, num_table_parameters

OF_HEAD = "head"  # the chain's step, which reads a tied table as a block of its own


class BlockRun(NamedTuple):
    """Steps in a row of one compute (the row of a program) that use one block."""

    row: int
    block: str
    steps: tuple[ChainStep, ...]


@dataclass(frozen=True, eq=False)
class StageFetches:
    """One stage. Attributes: bytes of its blocks on one device, in the order of their use; which are fetched, how many of
    these are here at once, and whence they come; and what computes with them, in order."""

    sizes: Mapping[str, float]
    fetched: frozenset[str]
    window: int
    source: WeightSource
    runs: tuple[BlockRun, ...]

    @property
    def held_bytes(self) -> float:
        """Bytes of weights on one device: what stays, and the window at its largest."""
        stays = sum(size for block, size in self.sizes.items() if block not in self.fetched)
        return stays + window_bytes(
            [self.sizes[block] for block in self.sizes if block in self.fetched], self.window
        )

    @property
    def away_bytes(self) -> float:
        """Bytes of one device's weights that lie elsewhere."""
        return sum(self.sizes[block] for block in self.fetched)

    def wait_s(
        self, start_s: NDArray[Any], end_s: NDArray[Any], seconds_of: Callable[[tuple[ChainStep, ...]], float],
        factor: float, host_s: float,
    ) -> float:  # fmt: skip
        """What fetching adds to a step in a row of equal ones.

        Args:
            start_s, end_s: of the program's rows, without waiting.
            seconds_of: what some steps of a row take alone, by which its time is divided among its blocks.
            factor: multiplies the times.
            host_s: behind the step, in which blocks come, too.
        """
        spent: dict[str, float] = {}
        for runs, seconds in self._rows(start_s, end_s):
            alone = [seconds_of(run.steps) if len(runs) > 1 else 1.0 for run in runs]
            whole = sum(alone) or 1.0
            for run, own in zip(runs, alone, strict=True):
                spent[run.block] = spent.get(run.block, 0.0) + factor * seconds * own / whole
        loads = {block: self.sizes[block] / self.source.bytes_per_s for block in self.fetched}
        timed = [TimedBlock(spent.get(block, 0.0), loads.get(block, 0.0)) for block in self.sizes]
        timed.append(TimedBlock(host_s))
        return max(0.0, fetched_step_s(timed, self.window) - sum(each.compute_s for each in timed))

    def _rows(self, start_s: NDArray[Any], end_s: NDArray[Any]) -> Iterator[tuple[list[BlockRun], float]]:
        """Every compute with its runs, and the seconds until the next one: exchanges behind it are its own."""
        found = [(row, list(runs)) for row, runs in groupby(self.runs, lambda run: run.row)]
        starts = [float(start_s[row]) for row, _ in found] + [float(end_s[found[-1][0]])]
        for (_, runs), begin, end in zip(found, starts, starts[1:], strict=False):
            yield runs, end - begin


def stage_fetches(
    plan: Plan, place: WeightPlace, number_bytes: float, segments: Sequence[Sequence[Segment]],
    rows: Sequence[int], alike: Callable[[ChainStep], ChainStep],
) -> tuple[StageFetches, ...]:  # fmt: skip
    """Of every stage of a replica; none where nothing is fetched.

    Args:
        plan: the replica's.
        place: says what is fetched.
        number_bytes: of one number of the weights.
        segments: of every stage; ``rows``: of all of them in order the row that computes each.
        alike: the step that stands for all that cost the same.
    """
    stages = plan.stages()
    names = [_blocks(layers) for layers in stages]
    told = fetched_blocks(place, names)
    if not told.blocks or place.source is None:
        return ()
    found, first = [], 0
    for layers, blocks, own in zip(stages, names, segments, strict=True):
        runs = tuple(_runs(plan.model, own, rows[first : first + len(own)], blocks[0], alike))
        first += len(own)
        sizes = {block: number_bytes * size for block, size in _sizes(plan, layers).items()}
        fetched = frozenset(told.blocks) & set(blocks)
        found.append(StageFetches(sizes, fetched, told.window, place.source, runs))
    return tuple(found)


def _blocks(layers: StageLayers) -> tuple[str, ...]:
    numbers = range(layers.first_block, layers.first_block + layers.num_blocks)
    return stage_blocks(numbers, layers.has_embedding, layers.has_head)


def _runs(
    model: ModelSpec, segments: Sequence[Segment], rows: Sequence[int], first: str,
    alike: Callable[[ChainStep], ChainStep],
) -> Iterator[BlockRun]:  # fmt: skip
    """A step without parameters goes with those before it."""
    block = first
    for row, segment in zip(rows, segments, strict=True):
        of_steps = []
        for step in segment.steps:
            names = step_parameters(model, step)
            block = HEAD if step.name == OF_HEAD else block_of(names[0]) if names else block
            of_steps.append((block, alike(step)))
        for name, own in groupby(of_steps, lambda each: each[0]):
            yield BlockRun(row, name, tuple(step for _, step in own))


def _sizes(plan: Plan, layers: StageLayers) -> dict[str, float]:
    """Numbers of every block on one device."""
    model = plan.model
    found = dict.fromkeys(_blocks(layers), 0.0)
    for number in range(layers.first_block, layers.first_block + layers.num_blocks):
        for parameter in block_parameters(model, number):
            block = block_of(executed_name(model.architecture, parameter.name))
            found[block] += sum(num_local(plan, (parameter,)))
    if layers.has_embedding:
        found[EMBEDDING] = num_table_parameters(plan) + sum(
            each.num_elements for each in embedding_parameters(model)[1:]
        )
    if layers.has_head:
        found[HEAD] = num_table_parameters(plan) + model.num_norm_parameters
    return found
