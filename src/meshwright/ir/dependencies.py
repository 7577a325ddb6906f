"""What every row waits for, derived once from effects: flat tables that replay, verification and the executor share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.integrity import check_columns, check_tables
from meshwright.ir.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.table import INDEX_MODES, WHEN_MODES, Effect, Pattern
from meshwright.specs.error import ProgramError, ScheduleError

AFTER, RING = -1, -2  # "versions" of dependencies that are an order only: complete, ended
NO_WRITER, OUT_OF_RANGE = (
    2,
    3,
)  # what `_derive` returns; 0: all is well, 1: nothing before the row wrote what it reads
MAX_VALUES = 1 << 28  # codes are int32, and a few tables have an entry for each

Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Flat tables. Row ``i`` of iteration ``t`` waits for ``row[k]`` of iteration ``t - lag[k]``, ``k`` in
    ``ptr[i]:ptr[i+1]``: until it is complete, or, where ``version[k] == RING``, until it has ended.

    ``version[k]`` is the version read (AFTER and RING: none). ``write_ptr[i]:write_ptr[i+1]`` are the versions that row
    ``i`` writes; ``code`` numbers the values, ``root`` joins versions that share memory (in place, accumulation).
    ``resident_code[resident_ptr[d]:resident_ptr[d+1]]`` are the carried values of list ``d``: they live for ever.
    """

    ptr: Ints
    row: Ints
    lag: Ints
    version: Ints
    write_ptr: Ints
    code: Ints
    root: Ints
    resident_ptr: Ints
    resident_code: Ints
    space: ValueSpace

    @property
    def max_lag(self) -> int:
        """Iterations that a dependency reaches back at most."""
        return int(self.lag.max(initial=0))

    def writer_of(self) -> Ints:
        """Row that writes each version."""
        return np.repeat(np.arange(len(self.write_ptr) - 1, dtype=np.int32), np.diff(self.write_ptr))


@dataclass(frozen=True, eq=False)
class ValueSpace:
    """Numbers all values that a device can name.

    ``code = base[kind] + (index * microbatches[kind] + microbatch) * parts + part``.
    """

    base: Ints
    indices: Ints
    microbatches: Ints
    parts: int
    size: int
    bytes: NDArray[np.float64]
    tier: Ints
    tiers: tuple[str, ...]

    def describe(self, code: int, program: Program) -> str:
        """A value in words, for messages."""
        kind = int(np.searchsorted(self.base, code, side="right") - 1)
        rest, part = divmod(code - int(self.base[kind]), self.parts)
        index, microbatch = divmod(rest, int(self.microbatches[kind]))
        table = program.tables.value_kinds[kind]
        words = f"{table.name}({table.index} {index}"
        words += f", microbatch {microbatch}" if table.microbatch else ""
        return words + (f", part {part})" if part else ")")

    def kind_of(self, codes: Any) -> Any:
        """Value kinds of codes (a number of a number, an array of an array)."""
        return np.searchsorted(self.base, codes, side="right") - 1


def value_space(program: Program) -> ValueSpace:
    """Number the values of a program. Sizes come from its tables and columns, so every row's patterns fit or are an error."""
    t, c = program.tables, program.columns
    num = num_microbatches(program)
    patterns = [p for effect in t.effects for p in (*effect.reads, *effect.writes)]
    part_offsets = [p.part_offset for p in patterns]
    parts = int(c.part.max(initial=0)) + 1 + max(part_offsets, default=0)
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


def _bytes_of_codes(program: Program, indices: Ints, microbatches: Ints, parts: int) -> NDArray[np.float64]:
    """Bytes of every value, by code, from the table of value bytes."""
    t = program.tables
    given = {row.kind: row for row in t.value_bytes}
    tokens = np.array([microbatch.tokens for microbatch in t.microbatches] or [1], dtype=np.float64)
    pieces = []
    for kind, count, num in zip(t.value_kinds, indices.tolist(), microbatches.tolist(), strict=True):
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
        pieces.append(np.repeat((by_index[:, None] * scale[None, :]).reshape(-1), parts))
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _max_of_size(program: Program, name: str) -> float:
    """The largest that a run-time size may be, in bytes."""
    for size in program.tables.sizes:
        if size.name == name:
            return size.max
    raise ProgramError(
        f"values have the run-time size {name!r}, which the table of sizes does not have; add it there"
    )


def pattern_tables(program: Program, space: ValueSpace) -> tuple[Ints, Ints, Ints, list[Pattern]]:
    """Reads and writes of all effects as one flat table: (read_ptr, write_ptr, fields [patterns x 9], patterns)."""
    patterns: list[Pattern] = []
    read_ptr, write_ptr = [0], []
    for effect in program.tables.effects:
        patterns.extend(effect.reads)
        write_ptr.append(len(patterns))
        patterns.extend(effect.writes)
        read_ptr.append(len(patterns))
    fields = np.array([pattern_fields(program, space, p) for p in patterns], dtype=np.int64).reshape(-1, 9)
    return np.array(read_ptr), np.array(write_ptr), fields.reshape(-1), patterns


def pattern_fields(program: Program, space: ValueSpace, p: Pattern) -> tuple[int, ...]:
    """A pattern as the nine numbers that kernels read."""
    kind = program.tables.index_of_kind(p.kind)
    table = program.tables.value_kinds[kind]
    mode = INDEX_MODES.index(p.index)
    return (
        int(space.base[kind]),
        int(space.indices[kind]),
        mode,
        p.offset,
        1 if p.part == "row" else 0,
        p.part_offset,
        p.age,
        WHEN_MODES.index(p.when),
        (1 if table.microbatch else 0) + (2 if table.carried else 0) + (4 if table.accumulates else 0),
    )


def value_codes(
    effects: Any, stages: Any, hops: Any, microbatches: Any, parts: Any, pattern_of_effect: Any, fields: Any,
    path_length: Any, group_ptr: Any, groups: Any, num_microbatches: int, num_parts: int, codes: Any,
) -> int:  # fmt: skip
    """Kernel: the code of one pattern per effect (-1: none or the condition does not hold), for every row."""
    for i in range(len(effects)):
        p = pattern_of_effect[effects[i]]
        codes[i] = -1
        if p < 0:
            continue
        when, last = fields[9 * p + 7], path_length[microbatches[i]] - 1
        if (when == 1 and hops[i] == 0) or (when == 2 and hops[i] == last):
            continue
        if (when == 3 and hops[i] != 0) or (when == 4 and hops[i] != last):
            continue
        mode, index = fields[9 * p + 2], 0
        if mode == 0:
            index = hops[i] + fields[9 * p + 3]
        elif mode == 1:
            index = stages[i] + fields[9 * p + 3]
        elif mode == 3:
            place = group_ptr[stages[i]] + parts[i]
            if place >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[place]
        elif mode == 5:
            place = group_ptr[stages[i]] + fields[9 * p + 3]
            if place >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[place]
        elif mode == 2:
            if group_ptr[stages[i]] >= group_ptr[stages[i] + 1]:
                return i + 1
            index = groups[group_ptr[stages[i]]]
        part = (parts[i] if fields[9 * p + 4] else 0) + fields[9 * p + 5]
        microbatch = microbatches[i] if fields[9 * p + 8] & 1 else 0
        scale = num_microbatches if fields[9 * p + 8] & 1 else 1
        if index < 0 or index >= fields[9 * p + 1] or part < 0 or part >= num_parts or microbatch >= scale:
            return i + 1
        codes[i] = fields[9 * p] + (index * scale + microbatch) * num_parts + part
    return 0


def _derive(
    offsets: Any, effects: Any, stages: Any, hops: Any, microbatches: Any, parts: Any,
    read_ptr: Any, write_start: Any, fields: Any, path_length: Any, group_ptr: Any, groups: Any, after: Any,
    num_microbatches: int, num_parts: int,
    final: Any, final_list: Any, last: Any, last_list: Any, last_row: Any, resident_seen: Any,
    ptr: Any, dep_row: Any, dep_lag: Any, dep_version: Any, write_ptr: Any, code_of: Any, root: Any,
    resident_ptr: Any, resident_code: Any, where: Any,
) -> int:  # fmt: skip
    """Kernel: dependencies of all lists. Two passes over a list: the last writer of every value, then what reads read."""
    num_lists = len(offsets) - 1
    versions = 0
    edges = 0
    residents = 0
    pair = 0
    for d in range(num_lists):
        first_version = versions
        for turn in range(2):
            version = first_version
            for i in range(offsets[d], offsets[d + 1]):
                e = effects[i]
                where[0] = i
                if turn == 1:
                    ptr[i] = edges
                    write_ptr[i] = version
                own_version = version
                start = read_ptr[e] if turn == 1 else write_start[e]
                for p in range(start, read_ptr[e + 1]):
                    where[1] = p
                    is_write = p >= write_start[e]
                    when = fields[9 * p + 7]
                    if when != 0:
                        last_hop = path_length[microbatches[i]] - 1
                        if when == 1 and hops[i] == 0:
                            continue
                        if when == 2 and hops[i] == last_hop:
                            continue
                        if when == 3 and hops[i] != 0:
                            continue
                        if when == 4 and hops[i] != last_hop:
                            continue
                    mode = fields[9 * p + 2]
                    flags = fields[9 * p + 8]
                    scale = num_microbatches if flags & 1 else 1
                    microbatch = microbatches[i] if flags & 1 else 0
                    part = (parts[i] if fields[9 * p + 4] else 0) + fields[9 * p + 5]
                    low, high = 0, 1
                    if mode == 2:
                        low, high = group_ptr[stages[i]], group_ptr[stages[i] + 1]
                    elif mode == 3:
                        low = group_ptr[stages[i]] + parts[i]
                        if parts[i] < 0 or low >= group_ptr[stages[i] + 1]:
                            return 3
                        high = low + 1
                    elif mode == 5:
                        low = group_ptr[stages[i]] + fields[9 * p + 3]
                        if low >= group_ptr[stages[i] + 1]:
                            return 3
                        high = low + 1
                    for place in range(low, high):
                        index = 0
                        if mode == 0:
                            index = hops[i] + fields[9 * p + 3]
                        elif mode == 1:
                            index = stages[i] + fields[9 * p + 3]
                        elif mode != 4:
                            index = groups[place]
                        if (
                            index < 0
                            or index >= fields[9 * p + 1]
                            or part < 0
                            or part >= num_parts
                            or microbatch < 0
                            or microbatch >= scale
                        ):
                            return 3
                        code = fields[9 * p] + (index * scale + microbatch) * num_parts + part
                        if flags & 2 and turn == 1 and resident_seen[code] != d + 1:
                            resident_seen[code] = d + 1
                            resident_code[residents] = code
                            residents += 1
                        if turn == 0:
                            final[code] = version
                            final_list[code] = d + 1
                            last_row[version] = i
                            version += 1
                            continue
                        if not is_write:
                            age = fields[9 * p + 6]
                            source = -1
                            lag = 0
                            if age > 0:
                                if final_list[code] != d + 1:
                                    where[2] = code
                                    return 2
                                source = final[code]
                                lag = age
                            elif last_list[code] == d + 1:
                                source = last[code]
                            elif flags & 2:
                                if final_list[code] == d + 1:
                                    source = final[code]
                                    lag = 1
                            else:
                                where[2] = code
                                return 1
                            if source >= 0:
                                dep_row[edges] = last_row[source]
                                dep_lag[edges] = lag
                                dep_version[edges] = source
                                edges += 1
                            continue
                        root[version] = version
                        code_of[version] = code
                        if last_list[code] == d + 1:
                            before = last[code]
                            in_place = False
                            if flags & 4:
                                in_place = True
                                dep_row[edges] = last_row[before]
                                dep_lag[edges] = 0
                                dep_version[edges] = before
                                edges += 1
                            else:
                                for k in range(ptr[i], edges):
                                    if dep_version[k] == before and dep_lag[k] == 0:
                                        in_place = True
                            if in_place:
                                root[version] = root[before]
                        version += 1
                if turn == 1:
                    # the row's own writes become visible behind it; their codes were just noted in order
                    for v in range(own_version, version):
                        last[code_of[v]] = v
                        last_list[code_of[v]] = d + 1
                    while pair < len(after) and after[pair] == i:
                        dep_row[edges] = after[pair + 1]
                        dep_lag[edges] = 0
                        dep_version[edges] = -1
                        edges += 1
                        pair += 2
            if turn == 1:
                versions = version
        resident_ptr[d + 1] = residents
    ptr[offsets[num_lists]] = edges
    write_ptr[offsets[num_lists]] = versions
    return 0


def dependencies(program: Program) -> Dependencies:
    """Compile what every row waits for.

    Raises:
        ScheduleError: a row reads a value that nothing before it in its list wrote.
        ProgramError: a pattern names a value outside of the program's tables, an aged read has no writer, or a ring is
            read behind the write that displaces the version.
    """
    from meshwright.ir.ring import ring_dependencies

    t, c = program.tables, program.columns
    check_tables(program)
    check_columns(program)
    space = value_space(program)
    read_ptr, write_start, fields, patterns = pattern_tables(program, space)
    path_length, group_ptr, groups = row_tables(program)
    reads, writes = _bounds(program, patterns, read_ptr, write_start, group_ptr)
    n = program.num_rows
    carried = sum(
        int(i) * int(m)
        for k, i, m in zip(t.value_kinds, space.indices, space.microbatches, strict=True)
        if k.carried
    )
    outputs: list[Ints] = [
        *(np.zeros(space.size, dtype=np.int32) for _ in range(4)),
        np.zeros(max(writes, 1), dtype=np.int32),
        np.zeros(space.size, dtype=np.int32),
        np.zeros(n + 1, dtype=np.int32),
        np.zeros(max(reads, 1), dtype=np.int32),
        np.zeros(max(reads, 1), dtype=np.int16),
        np.zeros(max(reads, 1), dtype=np.int32),
        np.zeros(n + 1, dtype=np.int32),
        np.zeros(max(writes, 1), dtype=np.int32),
        np.zeros(max(writes, 1), dtype=np.int32),
        np.zeros(program.num_lists + 1, dtype=np.int64),
        np.zeros(max(1, min(carried * space.parts * program.num_lists, reads + writes)), dtype=np.int32),
        np.zeros(3, dtype=np.int64),
    ]
    inputs = (
        program.offsets, c.effect, c.stage, c.hop, c.microbatch, c.part, read_ptr, write_start, fields, path_length,
        group_ptr, groups, program.after.reshape(-1), num_microbatches(program), space.parts,
    )  # fmt: skip
    status = call(_derive, n, inputs, outputs)
    ptr, row, lag, version, write_ptr, code, root, resident_ptr, resident_code, where = outputs[6:]
    if status:
        _raise(program, status, where, patterns, space)
    edges, versions = int(ptr[n]), int(write_ptr[n])
    result = Dependencies(
        ptr, row[:edges], lag[:edges], version[:edges], write_ptr, code[:versions], root[:versions],
        resident_ptr, resident_code[: int(resident_ptr[-1])], space,
    )  # fmt: skip
    return ring_dependencies(program, result)


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


def _bounds(
    program: Program, patterns: list[Pattern], read_ptr: Ints, write_start: Ints, group_ptr: Ints
) -> tuple[int, int]:
    """Upper bounds for the number of dependencies and of versions: what to allocate."""
    c = program.columns
    num_stages = len(group_ptr) - 1
    num_effects = len(program.tables.effects)
    used = np.bincount(c.effect * np.int64(num_stages) + c.stage, minlength=num_effects * num_stages)
    groups = np.diff(group_ptr)
    accumulating = {kind.name for kind in program.tables.value_kinds if kind.accumulates}
    reads = writes = 0
    for e, rows in enumerate(used.reshape(num_effects, num_stages)):
        for p in range(int(read_ptr[e]), int(read_ptr[e + 1])):
            times = int((rows * groups).sum() if patterns[p].index == "groups" else rows.sum())
            is_write = p >= write_start[e]
            writes += times * is_write
            reads += times * (not is_write or patterns[p].kind in accumulating)
    return reads + len(program.after), writes


def _raise(program: Program, status: int, where: Ints, patterns: list[Pattern], space: ValueSpace) -> None:
    """The error behind a status of the kernel, with the grid."""
    row, pattern = int(where[0]), patterns[int(where[1])]
    view = program.row(row)
    place = f"device {view.device}, position {view.position}: {view.text}"
    if status == OUT_OF_RANGE:
        raise ProgramError(
            f"{place} names a {pattern.kind} that its stage, hop or part does not have ({pattern})"
        )
    value = space.describe(int(where[2]), program)
    if status == NO_WRITER:
        raise ProgramError(
            f"{place} reads {value} of {pattern.age} iterations ago, but nothing in its list writes it"
        )
    later = _later_writer(program, row, int(where[2]))
    said = (
        f"runs before {later}.\n  it reads {value}"
        if later
        else f"reads {value}, and nothing in its list writes it"
    )
    raise ScheduleError(f"{place} {said}\n{grid(program, row)}")


def _later_writer(program: Program, row: int, code: int) -> str:
    """Text of the row behind ``row`` in its list that writes the value, where there is one."""
    view = program.row(row)
    for later in range(row + 1, int(program.offsets[view.device + 1])):
        if code in written_codes(program, later):
            return program.text_of(later)
    return ""


def written_codes(program: Program, row: int) -> list[int]:
    """Codes of the values that one row writes (slow; for messages and the reference interpreter)."""
    return codes_of(program, row, program.tables.effects[program.columns.effect[row]].writes)


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
        row_microbatch = microbatch if t.value_kinds[kind].microbatch else 0
        row_part = (part if p.part == "row" else 0) + p.part_offset
        for index in chosen:
            codes.append(
                int(
                    space.base[kind]
                    + (index * space.microbatches[kind] + row_microbatch) * space.parts
                    + row_part
                )
            )
    return codes


def effect_of(program: Program, row: int) -> Effect:
    """The effect of a row."""
    return program.tables.effects[int(program.columns.effect[row])]
