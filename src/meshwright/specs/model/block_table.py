"""Blocks of a model as tables of a file: each kind once, with the numbers of its layers: "0-2, 5"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from meshwright.specs.error import SpecError
from meshwright.specs.model.block import BlockRuns, BlockSpec, merged_runs
from meshwright.specs.record import plain, record

MAX_LAYERS = 100_000  # no decoder has as many; a damaged file could ask for any number


def written_blocks(layers: Sequence[BlockSpec]) -> list[dict[str, Any]]:
    """A table for every kind of block, in the order in which they appear."""
    numbers: dict[BlockSpec, list[int]] = {}
    for number, block in enumerate(layers):
        numbers.setdefault(block, []).append(number)
    return [{"layers": _ranges(found), **plain(block)} for block, found in numbers.items()]


def read_blocks(tables: Any, where: str) -> BlockRuns:
    """What `written_blocks` wrote. Raises SpecError where a layer is given twice, or none."""
    found: dict[int, BlockSpec] = {}
    for number, table in enumerate(tables if isinstance(tables, (list, tuple)) else [None]):
        here = f"{where}: block {number}"
        if not isinstance(table, dict):
            raise SpecError(f"{here} is {table!r}", allowed="a table with layers, attention and feed_forward")
        rest = {key: value for key, value in table.items() if key != "layers"}
        block = record(BlockSpec, rest, here)
        for layer in _numbers(table.get("layers"), here):
            if layer in found:
                raise SpecError(f"{here}: layer {layer} is also another block's", allowed="each layer once")
            found[layer] = block
    missing = sorted(set(range(len(found))) - set(found))
    if missing:
        raise SpecError(f"{where}: no block is layer {missing[0]}", allowed="every layer from 0")
    return merged_runs(found[layer] for layer in range(len(found)))


def _ranges(numbers: Iterable[int]) -> str:
    """ "0-2, 5" of 0, 1, 2 and 5."""
    runs = (list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    ends = ((run[0][1], run[-1][1]) for run in runs)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def _numbers(text: Any, where: str) -> list[int]:
    found: list[int] = []
    for entry in text.split(",") if isinstance(text, str) else ("",):
        first, _, last = entry.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) >= MAX_LAYERS:
            raise SpecError(f"{where}: 'layers' is {text!r}", allowed='numbers and ranges, such as "0-2, 5"')
        found += range(int(first), int(last or first) + 1)
    return found
