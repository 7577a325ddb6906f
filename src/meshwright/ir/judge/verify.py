"""`verify`: one iteration replayed at zero cost, and the proofs: duties once, gradients whole, memory bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import TOWARD
from meshwright.ir.grid import grid
from meshwright.ir.judge.in_place_check import check_in_place
from meshwright.ir.judge.layout_check import check_layouts
from meshwright.ir.judge.memory import peak_bound_bytes
from meshwright.ir.judge.operation_check import (
    check_operations,
    check_reductions,
    check_scatters,
    check_sums,
    is_due,
    scattered_axes,
)
from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, Effect, Kind
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.specs.error import ProgramError, ScheduleError

Ints = NDArray[Any]
WEIGHT_TOLERANCE = 1e-9  # weights of microbatches are products of a few float64 numbers


@dataclass(frozen=True, eq=False)
class Verification:
    """What was proven: the program can run, whole, and ``peak_bytes[list, tier]`` bounds its memory in every legal order."""

    wiring: Wiring = field(repr=False)
    peak_bytes: NDArray[np.float64]
    tiers: tuple[str, ...]

    def peak_of(self, tier: str = "device") -> float:
        """The bound of the fullest device in a tier, in bytes."""
        return (
            float(self.peak_bytes[:, self.tiers.index(tier)].max(initial=0.0)) if tier in self.tiers else 0.0
        )


def verify(program: Program | Wiring, host: str = "asynchronous") -> Verification:
    """Prove that a program is legal, deadlock-free and whole, and bound its memory.

    Args:
        program: the program, or its wiring where it was compiled before.
        host: ``asynchronous`` (all is issued at once) or ``in_order`` (one host thread walks the list).

    Raises:
        ScheduleError: a row reads what nothing before it wrote, or a row stands where its path does not pass.
        ProgramError: unmatched exchanges, a duty missing or done twice, a gradient read before it is whole, a value
            read in another layout than it has, or written in place while another row may read it.
        DeadlockError: exchanges, rings or streams wait in a circle.
    """
    wiring = program if isinstance(program, Wiring) else wire(program)
    program = wiring.program
    order = np.zeros(program.num_rows, dtype=np.int32)
    nothing = np.zeros(1)
    replay(wiring, nothing, nothing, np.zeros(program.num_rows, dtype=np.int32), host=host, order=order)
    check_places(program)
    check_tags(program)
    check_duties(program)
    check_weights(program)
    check_whole(wiring)
    check_in_place(wiring)
    check_reductions(program)
    check_sums(program)
    check_scatters(program)
    check_operations(program)
    check_layouts(wiring)
    return Verification(wiring, peak_bound_bytes(wiring, order), wiring.deps.space.tiers)


def check_places(program: Program) -> None:
    """Every row of a name that goes along paths stands on the stage and device that its microbatch's path has at its hop."""
    t, c = program.tables, program.columns
    along = [e for e, effect in enumerate(t.effects) if _follows_path(program, effect.name)]
    rows = np.flatnonzero(np.isin(np.arange(len(t.effects)), along)[c.effect])
    longest = max(len(path) for path in t.paths)
    if not len(rows) or not longest:
        return
    stage, device = (np.full((len(t.paths), longest), -1, dtype=np.int64) for _ in range(2))
    for number, path in enumerate(t.paths):
        stage[number, : len(path)] = [hop.stage for hop in path]
        device[number, : len(path)] = [hop.device for hop in path]
    paths = np.array([m.path for m in t.microbatches] or [0])[c.microbatch[rows]]
    hop = np.minimum(c.hop[rows].astype(np.int64), longest - 1)
    own = first_axis_coordinate(program)[program.list_of_row[rows]]
    wrong = (stage[paths, hop] != c.stage[rows]) | (device[paths, hop] != own) | (hop != c.hop[rows])
    if wrong.any():
        row = int(rows[np.flatnonzero(wrong)[0]])
        view = program.row(row)
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} stands at hop {view.hop}, "
            f"but the path of microbatch {view.microbatch} does not pass there\n" + grid(program, row)
        )


def first_axis_coordinate(program: Program) -> Ints:
    """Coordinate of every list along the first axis, the one along which paths go."""
    if not program.list_axes or program.list_axes[0] != program.axes[0]:
        return np.zeros(program.num_lists, dtype=np.int64)
    inner = program.num_lists // program.axes[0].size
    return np.arange(program.num_lists) // inner


def _follows_path(program: Program, name: str) -> bool:
    return name in TOWARD or any(
        duty.name == name and duty.per in ("path", "some") for duty in program.tables.duties
    )


def check_tags(program: Program) -> None:
    """A row says no more than its name takes: parts within its duty, and what is per stage names no microbatch."""
    t, c = program.tables, program.columns
    wrong = np.empty(0, np.int64)
    if int(c.part.max(initial=0)):
        num_stages = int(c.stage.max()) + 1
        limit = np.array([_num_parts(program, effect, num_stages) for effect in t.effects])
        wrong = np.flatnonzero(c.part >= limit[c.effect, c.stage])
    per_stage = {duty.name for duty in t.duties if duty.per in ("stage", "group")}
    once = np.array([effect.name in per_stage for effect in t.effects] or [False])
    rows = np.flatnonzero(once[c.effect]) if once.any() else np.empty(0, np.int64)
    hop_of_stage = np.zeros(max(t.num_stages, int(c.stage.max(initial=0)) + 1), dtype=np.int64)
    for path in reversed(t.paths):
        for hop in reversed(range(len(path))):
            hop_of_stage[path[hop].stage] = hop
    astray = rows[(c.microbatch[rows] != 0) | (c.hop[rows] != hop_of_stage[c.stage[rows]])]
    on_device = {duty.name for duty in t.duties if duty.per == "device"}
    if on_device and not len(astray):
        rows = np.flatnonzero(np.array([effect.name in on_device for effect in t.effects])[c.effect])
        astray = rows[c.microbatch[rows] != 0]
    if len(wrong) or len(astray):
        view = program.row(int((wrong if len(wrong) else astray)[0]))
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} has hop {view.hop}, microbatch {view.microbatch}, "
            f"part {view.part}, which {view.name} does not take here; "
            f"{'it has fewer parts' if len(wrong) else 'it is done once a stage or device'}\n"
            + grid(program, view.row)
        )


def _num_parts(program: Program, effect: Effect, num_stages: int) -> list[int]:
    """Parts that rows of an effect may have, by stage: those of its duty there; any where it uses them; one for other moves
    along paths."""
    patterns = (*effect.reads, *effect.writes)
    uses = any(p.part != "zero" or p.index == "group" for p in patterns)
    limits = [1 if effect.name in TOWARD and not uses else 1 << 15] * num_stages
    for duty in program.tables.duties:
        if duty.name == effect.name and duty.per not in ("group", "microbatch"):
            for stage in duty.stages or range(num_stages):
                limits[stage : stage + 1] = [duty.parts] * (stage < num_stages)
    return limits


def check_duties(program: Program) -> None:
    """Every duty is done exactly once where it is due, and every compute and call is somebody's duty."""
    t = program.tables
    duties: dict[str, list[Duty]] = {}
    for duty in t.duties:
        duties.setdefault(duty.name, []).append(duty)
    for e, effect in enumerate(t.effects):
        own = duties.get(effect.name, [])
        stages = [stage for duty in own for stage in duty.stages]
        if stages or (effect.kind in (Kind.COMPUTE, Kind.CALL) and not own):
            _check_due(program, e, stages)
    # names, not effects, are counted: a pass may give rows of one name other effects
    names = sorted(duties)
    number = np.array(
        [names.index(effect.name) if effect.name in duties else -1 for effect in t.effects], dtype=np.int64
    )
    _check_once(program, names, number)
    for name in names:
        effects = np.flatnonzero(number == names.index(name))
        for duty in duties[name]:
            rows = _rows_of(program, duty, effects)
            _check_count(program, duty, rows)
            if duty.order:
                _check_order(program, duty, rows)


def _check_due(program: Program, effect: int, stages: list[int]) -> None:
    """Rows of an effect stand only on the stages on which its name is a duty."""
    rows = np.flatnonzero(program.columns.effect == effect)
    astray = rows[~np.isin(program.columns.stage[rows], stages)]
    if len(astray):
        name, view = program.tables.effects[effect].name, program.row(int(astray[0]))
        where = f" on stage {view.stage}" if stages else ""
        raise ProgramError(
            f"the program computes {name}{where}, which is no duty of it; add Duty({name!r}, ...) to its table"
        )


def _rows_of(program: Program, duty: Duty, effects: Ints) -> Ints:
    """Rows of the effects of a duty's name, on the stages on which it is due."""
    c = program.columns
    chosen = np.isin(np.arange(len(program.tables.effects)), effects)[c.effect]
    if duty.stages:
        chosen &= np.isin(c.stage, duty.stages)
    return np.flatnonzero(chosen)


def _check_order(program: Program, duty: Duty, rows: Ints) -> None:
    """Parts of an ordered duty stand in their order on every list, for each hop and microbatch."""
    c = program.columns
    rows = rows[np.lexsort((rows, c.microbatch[rows], c.hop[rows], program.list_of_row[rows]))]
    first, second = rows[:-1], rows[1:]
    together = program.list_of_row[first] == program.list_of_row[second]
    together &= (c.hop[first] == c.hop[second]) & (c.microbatch[first] == c.microbatch[second])
    rises = (c.part[second].astype(np.int64) - c.part[first]) * duty.order > 0
    wrong = np.flatnonzero(together & ~rises)
    if len(wrong):
        before, view = program.row(int(first[wrong[0]])), program.row(int(second[wrong[0]]))
        raise ScheduleError(
            f"device {view.device}, position {view.position}: {view.text} runs behind {before.text}, but the parts of "
            f"{duty.name} run in {'rising' if duty.order > 0 else 'falling'} order\n"
            + grid(program, view.row)
        )


def _check_once(program: Program, names: list[str], number: Ints) -> None:
    """No (name, hop, microbatch, part) twice on a list."""
    c = program.columns
    hops, microbatches, parts = (int(x.max(initial=0)) + 1 for x in (c.hop, c.microbatch, c.part))
    stages = int(c.stage.max(initial=0)) + 1
    seen = np.zeros(max(1, len(names)) * max(hops, stages) * microbatches * parts, dtype=np.int32)
    per_stage = {duty.name for duty in program.tables.duties if duty.per in ("stage", "group")}
    by_stage = np.array([name in per_stage for name in names] or [False], dtype=np.int8)
    inputs = (
        program.offsets, c.effect, c.stage, c.hop, c.microbatch, c.part, number, by_stage, max(hops, stages),
        microbatches, parts,
    )  # fmt: skip
    where = np.zeros(1, dtype=np.int64)
    if call(_find_repeat, program.num_rows, inputs, [seen, where]):
        row = int(where[0])
        view = program.row(row)
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} is done a second time\n"
            + grid(program, row)
        )


def _find_repeat(
    offsets: Any, effects: Any, stage: Any, hop: Any, microbatch: Any, part: Any, number: Any, by_stage: Any,
    places: int, microbatches: int, parts: int, seen: Any, where: Any,
) -> int:  # fmt: skip
    """Kernel: 1 and the row, where a duty is done twice on a list."""
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            n = number[effects[i]]
            if n < 0:
                continue
            place = stage[i] if by_stage[n] else hop[i]
            m = 0 if by_stage[n] else microbatch[i]
            code = ((n * places + place) * microbatches + m) * parts + part[i]
            if seen[code] == d + 1:
                where[0] = i
                return 1
            seen[code] = d + 1
    return 0


def _check_count(program: Program, duty: Duty, rows: Ints) -> None:
    """As many rows of a duty on every list as are due there; with none twice and all in place, each is done once."""
    if duty.per == "some":
        return
    counts = np.bincount(program.list_of_row[rows], minlength=program.num_lists)
    expected = expected_counts(program, duty)
    wrong = np.flatnonzero(counts != expected)
    if len(wrong):
        d = int(wrong[0])
        raise ProgramError(
            f"device {d} has {int(counts[d])} rows of {duty.name}, its duty is {int(expected[d])} (once per {duty.per}); "
            f"a compute, reduction or step is missing or stands twice"
        )


def expected_counts(program: Program, duty: Duty) -> Ints:
    """How often every list has to do a duty."""
    t = program.tables
    coordinate = first_axis_coordinate(program)
    if duty.per == "device":
        return np.where(_has_stage(program, duty)[coordinate], duty.parts, 0)
    if duty.per in ("path", "microbatch"):
        visits = np.zeros(max(program.axes[0].size, 1), dtype=np.int64)
        uses = np.bincount([m.path for m in t.microbatches] or [0], minlength=len(t.paths))
        for path, times in zip(t.paths, uses.tolist(), strict=True):
            if duty.per == "path":
                for hop in path:
                    visits[hop.device] += times * duty.parts * _is_due(duty, hop.stage)
            else:
                for device, _ in {(hop.device, g) for hop in path for g in _scattered(program, hop.stage)}:
                    visits[device] += times
        return visits[coordinate]
    due = np.zeros(max(program.axes[0].size, 1), dtype=np.int64)
    groups: dict[int, set[int]] = {}
    for stage, devices in enumerate(t.devices_of_stage):
        for device in devices if _is_due(duty, stage) else ():
            due[device] += duty.per == "stage"
            groups.setdefault(device, set()).update(t.groups_of_stage[stage])
    if duty.per == "group":  # once a device, also where several of its stages use the group
        for device, own in groups.items():
            due[device] = sum(is_due(program, duty.name, g) for g in own)
    return due[coordinate]


def _scattered(program: Program, stage: int) -> Iterator[int]:
    """Groups of a stage of which the gradients of every microbatch are scattered."""
    return (g for g in program.tables.groups_of_stage[stage] if scattered_axes(program, g))


def _is_due(duty: Duty, stage: int) -> bool:
    return not duty.stages or stage in duty.stages


def _has_stage(program: Program, duty: Duty) -> NDArray[np.bool_]:
    """Which devices along the first axis have one of a duty's stages; all where it names none."""
    found = np.full(max(program.axes[0].size, 1), not duty.stages)
    for stage in duty.stages:
        if stage < program.tables.num_stages:
            found[list(program.tables.devices_of_stage[stage])] = True
    return found


def check_weights(program: Program) -> None:
    """The weights of the microbatches sum to one: then the contributions to every gradient do."""
    weights = [m.weight for m in program.tables.microbatches]
    if (
        weights and not abs(sum(weights) - 1.0) <= WEIGHT_TOLERANCE
    ):  # a weight that is no number is refused, too
        raise ProgramError(
            f"the weights of the {len(weights)} microbatches sum to {sum(weights):.12g}; they must sum to 1"
        )


def check_whole(wiring: Wiring) -> None:
    """A value that accumulates is read by others only when whole: no contribution follows its first other reader."""
    program, deps = wiring.program, wiring.deps
    kinds = [k for k, kind in enumerate(program.tables.value_kinds) if kind.accumulates]
    if not kinds or not len(deps.code):
        return
    accumulates = np.isin(np.arange(len(program.tables.value_kinds)), kinds)
    flag = np.repeat(accumulates, deps.space.counts).astype(np.int8)
    where = np.zeros(3, dtype=np.int64)
    inputs = (program.offsets, deps.ptr, deps.lag, deps.version, deps.write_ptr, deps.code, flag)
    if call(_find_part, program.num_rows, inputs, [np.zeros(deps.space.size, dtype=np.int32), where]):
        view, later = program.row(int(where[0])), program.row(int(where[1]))
        raise ProgramError(
            f"device {view.device}, position {later.position}: {later.text} adds to a "
            f"{deps.space.describe(int(where[2]), program)} that {view.text} has read before; "
            f"read it when it is whole\n" + grid(program, later.row)
        )


def _find_part(
    offsets: Any,
    ptr: Any,
    lag: Any,
    version: Any,
    write_ptr: Any,
    codes: Any,
    flag: Any,
    read_by: Any,
    where: Any,
) -> int:
    """Kernel: 1, two rows and a code, where a contribution follows a reader that does not contribute itself."""
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            for k in range(ptr[i], ptr[i + 1]):
                if version[k] < 0 or lag[k] != 0 or flag[codes[version[k]]] == 0:
                    continue
                code = codes[version[k]]
                contributes = False
                for v in range(write_ptr[i], write_ptr[i + 1]):
                    if codes[v] == code:
                        contributes = True
                if not contributes:
                    read_by[code] = i + 1
            for v in range(write_ptr[i], write_ptr[i + 1]):
                code = codes[v]
                if flag[code] and read_by[code] > offsets[d]:
                    where[0] = read_by[code] - 1
                    where[1] = i
                    where[2] = code
                    return 1
    return 0
