"""The values that a program's devices can name, numbered; and the patterns of effects as codes of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.table import INDEX_MODES, WHEN_MODES, Effect, Pattern, ValueBytes
from meshwright.specs.error import ProgramError

MAX_VALUES = 1 << 28  # codes are int32, and a few tables have an entry for each

Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ValueSpace:
    """Numbers all values that a device can name.

    ``code = base[kind] + (index * microbatches[kind] + microbatch) * parts[kind] + part``.
    """

    base: Ints
    indices: Ints
    microbatches: Ints
    parts: Ints
    size: int
    bytes: NDArray[np.float64]
    tier: Ints
    tiers: tuple[str, ...]

    def describe(self, code: int, program: Program) -> str:
        """A value in words, for messages."""
        kind, index, microbatch, part = self.split(code)
        table = program.tables.value_kinds[kind]
        words = f"{table.name}({table.index} {index}"
        words += f", microbatch {microbatch}" if table.microbatch else ""
        return words + (f", part {part})" if part else ")")

    @property
    def counts(self) -> Ints:
        """Values of every kind."""
        return self.indices * self.microbatches * self.parts

    def split(self, code: int) -> tuple[int, int, int, int]:
        """(kind, index, microbatch, part) of a code."""
        kind = int(self.kind_of(code))
        rest, part = divmod(code - int(self.base[kind]), int(self.parts[kind]))
        return kind, *divmod(rest, int(self.microbatches[kind])), part

    def kind_of(self, codes: Any) -> Any:
        """Value kinds of codes (a number of a number, an array of an array)."""
        return np.searchsorted(self.base, codes, side="right") - 1


def value_space(program: Program) -> ValueSpace:
    """Number the values of a program. Sizes come from its tables and columns, so every row's patterns fit or are an error."""
    t, c = program.tables, program.columns
    num = num_microbatches(program)
    patterns = [p for effect in t.effects for p in (*effect.reads, *effect.writes)]
    parts = _parts_of_kinds(program)
    longest_path = max(len(path) for path in t.paths)
    sizes = {
        "hop": max(longest_path, int(c.hop.max(initial=0)) + 1)
        + 1
        + max((p.offset for p in patterns), default=0),
        "stage": max(t.num_stages, int(c.stage.max(initial=0)) + 1) + 1,
        "group": max(len(t.groups), 1),
        "none": 1,
    }
    indices = np.array([sizes[kind.index] for kind in t.value_kinds], dtype=np.int64)
    microbatches = np.array([num if kind.microbatch else 1 for kind in t.value_kinds], dtype=np.int64)
    counts = indices * microbatches * parts
    base = np.concatenate([[0], np.cumsum(counts)])
    if base[-1] > MAX_VALUES:
        raise ProgramError(
            f"rows name hops up to {int(c.hop.max())}, parts up to {int(c.part.max())} and {num} microbatches: "
            f"{int(base[-1]):,} values, and a device has up to {MAX_VALUES:,}; number them without gaps"
        )
    tiers = tuple(
        sorted({kind.tier for kind in t.value_kinds} | {"device"}, key=lambda tier: (tier != "device", tier))
    )
    tier = np.array([tiers.index(kind.tier) for kind in t.value_kinds], dtype=np.int16)
    return ValueSpace(
        base[:-1],
        indices,
        microbatches,
        parts,
        int(base[-1]),
        _bytes_of_codes(program, indices, microbatches, parts),
        np.repeat(tier, counts),
        tiers,
    )


def _bytes_of_codes(program: Program, indices: Ints, microbatches: Ints, parts: Ints) -> NDArray[np.float64]:
    """Bytes of every value, by code, from the table of value bytes."""
    t = program.tables
    given = {row.kind: row for row in t.value_bytes}
    tokens = np.array([microbatch.tokens for microbatch in t.microbatches] or [1], dtype=np.float64)
    pieces = []
    sizes = np.stack([indices, microbatches, parts], axis=1).tolist()
    for kind, (count, num, num_parts) in zip(t.value_kinds, sizes, strict=True):
        row = given.get(kind.name)
        by_index = np.zeros(count)
        if row is not None:
            known = np.array(row.by_index, dtype=np.float64)
            by_index[:] = known[np.minimum(np.arange(count), len(known) - 1)] if len(known) else 0.0
            if row.size:
                by_index[:] = _max_of_size(program, row.size)
        scale = np.ones(num)
        if row is not None and row.per_token and num > 1:
            scale[: len(tokens)] = tokens[:num]
        elif row is not None and row.per_token:
            scale[:] = tokens[0]
        whole = (by_index[:, None] * scale[None, :]).reshape(-1)
        pieces.append((whole[:, None] * _shares(row, num_parts)[None, :]).reshape(-1))
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _shares(row: ValueBytes | None, num_parts: int) -> NDArray[np.float64]:
    """What every part has of a value's bytes."""
    shares = np.ones(num_parts)
    if row is not None and row.by_part:
        known = np.array(row.by_part, dtype=np.float64)
        shares[:] = known[np.minimum(np.arange(num_parts), len(known) - 1)]
    return shares


def _max_of_size(program: Program, name: str) -> float:
    """The largest that a run-time size may be, in bytes."""
    for size in program.tables.sizes:
        if size.name == name:
            return size.max
    raise ProgramError(
        f"values have the run-time size {name!r}, which the table of sizes does not have; add it there"
    )


def pattern_tables(program: Program, space: ValueSpace) -> tuple[Ints, Ints, Ints, list[Pattern]]:
    """Reads and writes of all effects as one flat table: (read_ptr, write_ptr, fields [patterns x 10], patterns)."""
    patterns: list[Pattern] = []
    read_ptr, write_ptr = [0], []
    for effect in program.tables.effects:
        patterns.extend(effect.reads)
        write_ptr.append(len(patterns))
        patterns.extend(effect.writes)
        read_ptr.append(len(patterns))
    _check_microbatches(program)
    fields = np.array([pattern_fields(program, space, p) for p in patterns], dtype=np.int64).reshape(-1, 10)
    return np.array(read_ptr), np.array(write_ptr), fields.reshape(-1), patterns


def _check_microbatches(program: Program) -> None:
    """Raise ProgramError for an effect that reads or writes what is another microbatch's."""
    for effect in program.tables.effects:
        if any(p.microbatch for p in (*effect.reads, *effect.writes)):
            raise ProgramError(
                f"{effect.name} reads or writes a value of another microbatch than its own",
                allowed="such a value as what an exchange moves (Effect.moves)",
            )


def pattern_fields(program: Program, space: ValueSpace, p: Pattern) -> tuple[int, ...]:
    """A pattern as the ten numbers that kernels read."""
    kind = program.tables.index_of_kind(p.kind)
    table = program.tables.value_kinds[kind]
    mode = INDEX_MODES.index(p.index)
    return (
        int(space.base[kind]),
        int(space.indices[kind]),
        mode,
        p.offset,
        _part_scale(p),
        p.part_offset,
        p.age,
        WHEN_MODES.index(p.when),
        (1 if table.microbatch else 0)
        + (2 if table.carried else 0)
        + (4 if table.accumulates else 0)
        + (8 if p.part == "until" else 0)
        + 16 * p.microbatch,
        int(space.parts[kind]),
    )


def _part_scale(p: Pattern) -> int:
    """How a kernel makes a value's part of a row's: 0 not at all, k > 0: divided by k, k < 0: times -k."""
    return {"zero": 0, "row": 1, "outer": p.steps, "first": -p.steps, "until": 1}[p.part]


def _parts_of_kinds(program: Program) -> Ints:
    """Of every kind of value one more than the largest part that a row's patterns name."""
    t, c = program.tables, program.columns
    largest = np.zeros(max(1, len(t.effects)), dtype=np.int64)  # of the rows of every effect
    if c.part.any():
        np.maximum.at(largest, c.effect, c.part)
    parts = [1] * len(t.value_kinds)
    for own, effect in zip(largest.tolist(), t.effects, strict=False):
        for p in (*effect.reads, *effect.writes, *filter(None, [effect.moves])):
            if p.part != "zero" or p.part_offset:
                kind = t.index_of_kind(p.kind)
                parts[kind] = max(parts[kind], _part_of(p, own) + 1)
    return np.array(parts, dtype=np.int64)


def _part_of(p: Pattern, part: int) -> int:
    """The part of the value that a pattern names on a row of this part; the last one of several."""
    own = {"zero": 0, "row": part, "outer": part // p.steps, "first": part * p.steps, "until": part}
    return own[p.part] + p.part_offset


def value_codes(
    effects: Any, stages: Any, hops: Any, microbatches: Any, parts: Any, pattern_of_effect: Any, fields: Any,
    path_length: Any, group_ptr: Any, groups: Any, num_microbatches: int, codes: Any,
) -> int:  # fmt: skip
    """Kernel: the code of one pattern per effect (-1: none or the condition does not hold), for every row."""
    for i in range(len(effects)):
        p = pattern_of_effect[effects[i]]
        codes[i] = -1
        if p < 0:
            continue
        when, last = fields[10 * p + 7], path_length[microbatches[i]] - 1
        if (when == 1 and hops[i] == 0) or (when == 2 and hops[i] == last):
            continue
        if (when == 3 and hops[i] != 0) or (when == 4 and hops[i] != last):
            continue
        mode, index = fields[10 * p + 2], 0
        if mode == 0:
            index = hops[i] + fields[10 * p + 3]
        elif mode == 1:
            index = stages[i] + fields[10 * p + 3]
        elif mode == 3:
            place = group_ptr[stages[i]] + parts[i]
            if place >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[place]
        elif mode == 5:
            place = group_ptr[stages[i]] + fields[10 * p + 3]
            if place >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[place]
        elif mode == 2:
            if group_ptr[stages[i]] >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[group_ptr[stages[i]]]
        steps, part = fields[10 * p + 4], fields[10 * p + 5]
        if steps != 0:
            part += parts[i] // steps if steps > 0 else -parts[i] * steps
        # rounded down, also below zero, where it is of a microbatch before the row's own
        microbatch = microbatches[i] + fields[10 * p + 8] // 16 if fields[10 * p + 8] & 1 else 0
        scale = num_microbatches if fields[10 * p + 8] & 1 else 1
        if (
            index < 0
            or index >= fields[10 * p + 1]
            or part < 0
            or part >= fields[10 * p + 9]
            or microbatch < 0
            or microbatch >= scale
        ):
            return i + 1
        codes[i] = fields[10 * p] + (index * scale + microbatch) * fields[10 * p + 9] + part
    return 0


def num_microbatches(program: Program) -> int:
    """Microbatches that the value space provides for."""
    return max(len(program.tables.microbatches), int(program.columns.microbatch.max(initial=0)) + 1)


def row_tables(program: Program) -> tuple[Ints, Ints, Ints]:
    """(length of every microbatch's path, group_ptr by stage, groups of the stages one behind the other)."""
    t = program.tables
    lengths = [len(program.path_of(m)) for m in range(len(t.microbatches))]
    lengths += [len(t.paths[0])] * (num_microbatches(program) - len(lengths))
    num_stages = max(t.num_stages, int(program.columns.stage.max(initial=0)) + 1)
    of_stage = [t.groups_of_stage[s] if s < t.num_stages else () for s in range(num_stages)]
    group_ptr = np.concatenate([[0], np.cumsum([len(g) for g in of_stage])]).astype(np.int64)
    return np.array(lengths), group_ptr, np.array([g for gs in of_stage for g in gs] or [0], dtype=np.int64)


def written_codes(program: Program, row: int, space: ValueSpace | None = None) -> list[int]:
    """Codes of the values that one row writes (slow; for messages and the reference interpreter)."""
    return codes_of(program, row, program.tables.effects[program.columns.effect[row]].writes, space)


def codes_of(
    program: Program, row: int, patterns: tuple[Pattern, ...], space: ValueSpace | None = None
) -> list[int]:
    """Codes of the values that patterns of a row name, in plain words of Python."""
    space = space or value_space(program)
    c = program.columns
    stage, hop, microbatch, part = (
        int(getattr(c, name)[row]) for name in ("stage", "hop", "microbatch", "part")
    )
    t = program.tables
    codes = []
    for p in patterns:
        last = len(program.path_of(microbatch)) - 1
        holds = {
            "always": True,
            "not_first": hop > 0,
            "not_last": hop < last,
            "first": hop == 0,
            "last": hop == last,
        }
        if not holds[p.when]:
            continue
        own = t.groups_of_stage[stage] if stage < t.num_stages else ()
        place = p.offset if p.index == "place" else part
        chosen: tuple[int, ...] = own if p.index == "groups" else own[place : place + 1]
        chosen = {"hop": (hop + p.offset,), "stage": (stage + p.offset,), "none": (0,)}.get(p.index, chosen)
        kind = t.index_of_kind(p.kind)
        row_microbatch = microbatch + p.microbatch if t.value_kinds[kind].microbatch else 0
        last_part = _part_of(p, part)
        for index in chosen:
            first = space.base[kind] + (index * space.microbatches[kind] + row_microbatch) * space.parts[kind]
            own_parts = range(0 if p.part == "until" else last_part, last_part + 1)
            codes += [int(first) + each for each in own_parts]
    return codes


def effect_of(program: Program, row: int) -> Effect:
    """The effect of a row."""
    return program.tables.effects[int(program.columns.effect[row])]
