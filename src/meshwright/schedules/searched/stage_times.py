"""StageTimes: seconds of F, I and W of every stage, which searched schedules are made for; and the file they come from."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.specs.error import SpecError

COLUMNS = ("stage", "F", "I", "W")


@dataclass(frozen=True)
class StageTimes:
    """Seconds that each stage takes for one microbatch, and of a message between two devices.

    Attributes:
        forward_s, input_s, weight_s: F, I (gradient of the input) and W (of the weights), one number a stage, by path.
        communication_s: from the end of a compute until its result is on the next device; it occupies nothing.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    communication_s: float = 0.0

    def __post_init__(self) -> None:
        lengths = {len(self.forward_s), len(self.input_s), len(self.weight_s)}
        if len(lengths) != 1 or 0 in lengths:
            raise SpecError(
                f"{len(self.forward_s)} times of F, {len(self.input_s)} of I, {len(self.weight_s)} of W were given",
                allowed="one of each for every stage",
            )
        for what, values in (("F", self.forward_s), ("I", self.input_s), ("W", self.weight_s)):
            for stage, value in enumerate(values):
                _check_seconds(f"{what} of stage {stage}", value)
        _check_seconds("communication", self.communication_s)
        if sum(self.forward_s) + sum(self.input_s) + sum(self.weight_s) <= 0:
            raise SpecError("all stages take 0 seconds", allowed="times of which some are above 0")

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.forward_s)

    @classmethod
    def uniform(
        cls, num_stages: int, forward_s: float, input_s: float, weight_s: float, communication_s: float = 0.0
    ) -> StageTimes:
        """The same times for every stage."""
        return cls(
            (forward_s,) * num_stages, (input_s,) * num_stages, (weight_s,) * num_stages, communication_s
        )

    def folded(self) -> StageTimes:
        """Two chunks a device in V shape: device d has stages d and 2p-1-d, each with half of its times."""
        forward_s, input_s, weight_s = (
            tuple(value / 2 for value in (*times, *reversed(times)))
            for times in (self.forward_s, self.input_s, self.weight_s)
        )
        return StageTimes(forward_s, input_s, weight_s, self.communication_s)


def span_bound_s(times: StageTimes, num_microbatches: int, num_chunks: int = 1) -> float:
    """No order is faster: the largest work of a device plus the fill before it can start, in seconds.

    ``num_chunks`` 2 is the V shape; the fill of device d is what its first stage waits for.
    """
    p = times.num_stages // num_chunks
    work = [sum(three) for three in zip(times.forward_s, times.input_s, times.weight_s, strict=True)]
    bound, fill = 0.0, 0.0
    for d in range(p):
        of_device = work[d] + (work[2 * p - 1 - d] if num_chunks == 2 else 0.0)
        bound = max(bound, fill + num_microbatches * of_device)
        fill += times.forward_s[d] + times.communication_s
    return bound


def read_stage_times(path: str | os.PathLike[str], communication_s: float = 0.0) -> StageTimes:
    """Stage times from a CSV file with the columns stage, F, I, W (seconds), rows in any order, one for each stage from 0.

    Lines that begin with ``#`` are comments; other columns are refused, so that a misspelt one is not overlooked.

    Raises:
        SpecError: there is no such file, a column is missing, a number is none, a stage is missing or there twice.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [(k, line) for k, line in enumerate(file, 1) if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{os.fspath(path)}: cannot be read ({error})", allowed="a CSV file with the columns stage,F,I,W"
        ) from error
    name = os.path.basename(os.fspath(path))
    header = [field.strip() for field in next(csv.reader([lines[0][1]]))] if lines else []
    if sorted(header) != sorted(COLUMNS):
        raise SpecError(
            f"{name}: its columns are {', '.join(header) or 'none'}",
            allowed="stage,F,I,W",
            next="write that as the first line",
        )
    rows: dict[int, tuple[float, ...]] = {}
    for number, line in lines[1:]:
        where = f"{name}, line {number}"
        fields = [field.strip() for field in next(csv.reader([line]))]
        if len(fields) != len(COLUMNS):
            raise SpecError(f"{where}: {len(fields)} fields", allowed="four: stage,F,I,W")
        row = dict(zip(header, fields, strict=True))
        stage = _stage_of(row["stage"], where)
        if stage in rows:
            raise SpecError(f"{where}: stage {stage} is there twice", allowed="one line for each stage")
        rows[stage] = tuple(_seconds_of(row[column], f"{where}, {column}") for column in COLUMNS[1:])
    return _in_order(rows, name, communication_s)


def _in_order(rows: dict[int, tuple[float, ...]], name: str, communication_s: float) -> StageTimes:
    """The rows by stage, which must be 0, 1, 2, ... without a gap."""
    missing = [stage for stage in range(len(rows)) if stage not in rows]
    if missing or not rows:
        raise SpecError(
            f"{name}: {f'stage {missing[0]} is not there' if rows else 'no stage is there'}",
            allowed="one line for each stage, counted from 0",
        )
    columns: Sequence[tuple[float, ...]] = list(
        zip(*(rows[stage] for stage in range(len(rows))), strict=True)
    )
    return StageTimes(columns[0], columns[1], columns[2], communication_s)


def _stage_of(text: str, where: str) -> int:
    if not text.isdecimal():
        raise SpecError(f"{where}: {text!r} is no stage", allowed="a whole number from 0")
    return int(text)


def _seconds_of(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise SpecError(f"{where}: {text!r} is no number", allowed="seconds, such as 0.012") from error
    _check_seconds(where, value)
    return value


def _check_seconds(what: str, value: float) -> None:
    if not math.isfinite(value) or value < 0:
        raise SpecError(f"{what} takes {value} seconds", allowed="a finite number of at least 0")
