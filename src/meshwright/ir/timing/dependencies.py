"""What every row waits for, derived once from effects: flat tables that replay, verification and the executor share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.integrity import check_columns, check_tables
from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.table import Pattern
from meshwright.ir.timing.dependency_table import Dependencies
from meshwright.ir.timing.ring import ring_dependencies
from meshwright.ir.value_space import (
    ValueSpace,
    num_microbatches,
    pattern_tables,
    row_tables,
    value_space,
    written_codes,
)
from meshwright.specs.error import ProgramError, ScheduleError

# What `_derive` returns. 0: all is well; 1: nothing before the row wrote what it reads.
NO_WRITER, OUT_OF_RANGE = 2, 3

Ints = NDArray[Any]


def _derive(
    offsets: Any, effects: Any, stages: Any, hops: Any, microbatches: Any, parts: Any,
    read_ptr: Any, write_start: Any, fields: Any, path_length: Any, group_ptr: Any, groups: Any, after: Any,
    num_microbatches: int,
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
                    when = fields[10 * p + 7]
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
                    mode = fields[10 * p + 2]
                    flags = fields[10 * p + 8]
                    scale = num_microbatches if flags & 1 else 1
                    microbatch = microbatches[i] if flags & 1 else 0
                    steps, part = fields[10 * p + 4], fields[10 * p + 5]
                    if steps != 0:
                        part += parts[i] // steps if steps > 0 else -parts[i] * steps
                    low, high = 0, 1
                    if mode == 2:
                        low, high = group_ptr[stages[i]], group_ptr[stages[i] + 1]
                    elif mode == 3:
                        low = group_ptr[stages[i]] + parts[i]
                        if parts[i] < 0 or low >= group_ptr[stages[i] + 1]:
                            return 3
                        high = low + 1
                    elif mode == 5:
                        low = group_ptr[stages[i]] + fields[10 * p + 3]
                        if low >= group_ptr[stages[i] + 1]:
                            return 3
                        high = low + 1
                    for place in range(low, high):
                        index = 0
                        if mode == 0:
                            index = hops[i] + fields[10 * p + 3]
                        elif mode == 1:
                            index = stages[i] + fields[10 * p + 3]
                        elif mode != 4:
                            index = groups[place]
                        if (
                            index < 0
                            or index >= fields[10 * p + 1]
                            or part < 0
                            or part >= fields[10 * p + 9]
                            or microbatch < 0
                            or microbatch >= scale
                        ):
                            return 3
                        for own_part in range(0 if flags & 8 else part, part + 1):
                            code = (
                                fields[10 * p] + (index * scale + microbatch) * fields[10 * p + 9] + own_part
                            )
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
                                age = fields[10 * p + 6]
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
    t, c = program.tables, program.columns
    check_tables(program)
    check_columns(program)
    space = value_space(program)
    read_ptr, write_start, fields, patterns = pattern_tables(program, space)
    path_length, group_ptr, groups = row_tables(program)
    reads, writes = _bounds(program, patterns, read_ptr, write_start, group_ptr)
    n = program.num_rows
    is_carried = np.array([kind.carried for kind in t.value_kinds], dtype=bool)
    carried = int(space.counts[is_carried].sum())
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
        np.zeros(max(1, min(carried * program.num_lists, reads + writes)), dtype=np.int32),
        np.zeros(3, dtype=np.int64),
    ]
    inputs = (
        program.offsets, c.effect, c.stage, c.hop, c.microbatch, c.part, read_ptr, write_start, fields, path_length,
        group_ptr, groups, program.after.reshape(-1), num_microbatches(program),
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
            if patterns[p].part == "until":
                times *= int(c.part[c.effect == e].max(initial=0)) + max(0, patterns[p].part_offset) + 1
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
    later = _later_writer(program, row, int(where[2]), space)
    said = (
        f"runs before {later}.\n  it reads {value}"
        if later
        else f"reads {value}, and nothing in its list writes it"
    )
    raise ScheduleError(f"{place} {said}\n{grid(program, row)}")


def _later_writer(program: Program, row: int, code: int, space: ValueSpace) -> str:
    """Text of the row behind ``row`` in its list that writes the value, where there is one."""
    view = program.row(row)
    for later in range(row + 1, int(program.offsets[view.device + 1])):
        if code in written_codes(program, later, space):
            return program.text_of(later)
    return ""
