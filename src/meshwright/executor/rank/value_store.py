"""Values of one rank by version. A version leaves the store with its last read, and dies with its last reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.rank.handler import ValueName
from meshwright.executor.rank.rank_list import RankList, Read, Write
from meshwright.specs.error import ExecutionError

Line = list[Any]


class ValueStore:
    """One line of versions for each iteration that a read may reach back to, and one of values that nothing writes.

    A read hands out a reference; the last read in list order takes the version out, so that its memory is free as soon
    as the rows that hold it have ended, whatever their order.
    """

    def __init__(self, ranked: RankList, initial: Mapping[ValueName, Any]) -> None:
        missing = [name.text for _, _, name in ranked.initial if name not in initial]
        missing += [name.text for name in ranked.residents if name not in initial]
        if missing:
            raise ExecutionError(
                f"the first iteration reads {', '.join(sorted(set(missing)))}, and nothing gives them a first value",
                next="give them in initial_values",
            )
        self._ranked = ranked
        self._lines: list[Line] = [[None] * ranked.num_versions for _ in range(ranked.num_lines)]
        self._residents: Line = [initial[name] for name in ranked.residents]
        for line, version, name in ranked.initial:
            self._lines[line][version] = initial[name]

    def lines(self, iteration: int) -> list[Line]:
        """Lines as a read numbers them: this iteration's, those before it, and the residents."""
        num = self._ranked.num_lines
        return [*(self._lines[(iteration - lag) % num] for lag in range(num)), self._residents]

    def kept(self, iteration: int) -> dict[ValueName, Any]:
        """The values to be returned, as they are after `iteration`."""
        line = self._lines[iteration % self._ranked.num_lines]
        return {name: line[version] for name, version in self._ranked.kept}


def fetch(lines: list[Line], read: Read) -> Any:
    """The value of one read; its last reader takes it out."""
    place, version, is_last = read
    line = lines[place]
    value = line[version]
    if is_last:
        line[version] = None
    return value


def put(line: Line, write: Write, value: object) -> None:
    """Store an output, added in place to what was accumulated before it."""
    if write.before >= 0:
        before = line[write.before]
        line[write.before] = None
        if before is not value:
            value = before.add_(value.detach()) if isinstance(value, Tensor) else before + value
    if write.is_kept:
        line[write.version] = value


def put_all(line: Line, writes: tuple[Any, ...], outputs: Sequence[Any], text: str) -> None:
    """Store all outputs of a row, pattern by pattern.

    Raises:
        ExecutionError: a handler returned fewer or more outputs than its row writes.
    """
    if len(outputs) != len(writes):
        raise ExecutionError(
            f"the handler of {text} returned {len(outputs)} outputs, its effect has {len(writes)} writes"
        )
    for write, value in zip(writes, outputs):
        if write is None:
            continue
        if type(write) is Write:
            put(line, write, value)
            continue
        for one, part in zip(write, value, strict=True):
            put(line, one, part)
