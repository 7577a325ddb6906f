"""Programs as text, one line a list, in torch's spelling, then only what is not the default; and torch's schedule CSV."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.ir.core_vocabulary import CORE, TOWARD
from meshwright.ir.integrity import check_tables
from meshwright.ir.program import COLUMN_TYPES, Axis, Columns, Program, Tables, canonical
from meshwright.ir.stored.table_row import READERS, read_effect, read_row, row_text
from meshwright.ir.table import (
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
)
from meshwright.ir.vocabulary import WORD, Vocabulary
from meshwright.specs.bound.bound import MOST_MICROBATCHES, check_most
from meshwright.specs.error import ProgramError

VERSION = 1
_ROW = re.compile(rf"(\d+)({WORD})(\d*)(?:\.(\d+))?(\{{[^}}]*\}})?")
_FIELDS = {
    "value": "value_kinds", "effect": "effects", "work": "works", "exchange": "exchanges", "size": "sizes",
    "group": "groups", "bytes": "value_bytes", "duty": "duties",
}  # fmt: skip
_STREAMS = {Kind.COLLECTIVE: "reduce", Kind.LOAD: "load", Kind.STORE: "store", Kind.CALL: "host"}
# What braces behind a row may say, and how.
_SAYS = {
    "effect": r"\d+", "hop": r"\d+", "microbatch": r"\d+", "exchange": r"-1|\d+", "stream": r".+", "work": r"-1|\d+",
    "batch": r"\d+", "after": r"\d+(\+\d+)*",
}  # fmt: skip
TORCH_COMPUTES = ("F", "B", "I", "W")
TORCH_MOVES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD")


def to_text(program: Program) -> str:
    """The program as text; `from_text` gives it back with the same digest.

    It says all that is not the core's, so who reads it needs none of the vocabularies that it names: their owners have the
    handlers.
    """
    p = canonical(program)
    base = _default_tables(p)
    lines = [_head(p), *(f"vocabulary {owner}" for owner in p.vocabulary.owners), *_table_lines(p, base)]
    written = {exchange: place for place, exchange in enumerate(_written_exchanges(p))}
    for device in range(p.num_lists):
        rows = range(int(p.offsets[device]), int(p.offsets[device + 1]))
        texts = [p.text_of(i) + _deviation(p, i, written) for i in rows]
        lines.append(f"{device}: {' '.join(texts)}".rstrip())
    return "\n".join(lines) + "\n"


def _head(p: Program) -> str:
    axes = " ".join(f"{axis.name}={axis.size}{'' if axis.materialised else '*'}" for axis in p.axes)
    return f"meshwright-program {VERSION}   axes {axes}   microbatches {len(p.tables.microbatches)}"


def default_path(num_lists: int, num_stages: int) -> tuple[Hop, ...]:
    """Stage after stage round the devices."""
    return tuple(Hop(stage, stage % num_lists) for stage in range(num_stages))


def _default_tables(p: Program) -> dict[str, Any]:
    """What the text does not have to say."""
    m = len(p.tables.microbatches)
    return {
        "microbatches": (Microbatch(1, 1.0 / m),) * m if m else (),
        "paths": (default_path(p.list_axes[0].size if p.list_axes else 1, len(p.tables.paths[0])),),
        "duties": CORE.duties_of(effect.name for effect in p.tables.effects),
    }


def _table_lines(p: Program, base: dict[str, Any]) -> Iterable[str]:
    """Lines of the tables that differ from the default."""
    t = p.tables
    if t.paths != base["paths"]:
        for path in t.paths:
            yield "path " + " ".join(f"{hop.stage}@{hop.device}" for hop in path)
    elif len(t.paths[0]) != (p.list_axes[0].size if p.list_axes else 1):
        yield f"stages {len(t.paths[0])}"
    if t.stage_names:
        yield "stage-names " + " ".join(t.stage_names)
    if t.microbatches != base["microbatches"]:
        for microbatch in t.microbatches:
            yield "microbatch " + row_text(microbatch)
    for word, field in _FIELDS.items():
        for row in getattr(t, field):
            if (
                word == "value"
                and CORE.value_kinds.get(row.name) == row
                and all(row.name != b.kind for b in t.value_bytes)
            ):
                continue
            if word == "effect":
                yield from _effect_line(t, row)
                continue
            if word == "exchange" and _is_default_exchange(p, row):
                continue
            if word == "duty" and tuple(sorted(t.duties)) == tuple(sorted(base["duties"])):
                continue
            if word == "work" and not row.inner:
                row = row[:-1]  # exchanges inside stand last, and in few texts
            yield f"{word} {row_text(row)}"


def _effect_line(t: Tables, effect: Effect) -> Iterable[str]:
    """The line of an effect: with its place, and marked where a bare name means it; none where the name implies it."""
    place = t.effects.index(effect)
    bare = _default_effect(t, effect.name) == place
    if bare and effect.name in CORE.names and CORE.names[effect.name].effect == effect:
        return
    yield f"{'default-effect' if bare else 'effect'} {place} {row_text(effect)}"


def _is_default_exchange(p: Program, exchange: Exchange) -> bool:
    """Does every row that uses it get it from its path?"""
    rows = np.flatnonzero(p.columns.exchange == p.tables.exchanges.index(exchange))
    return all(default_exchange(p, int(i)) == exchange for i in rows)


def default_exchange(p: Program, row: int) -> Exchange | None:
    """The exchange that a row's name and path imply, for sends and receives along it."""
    c = p.columns
    return _implied_exchange(p, p.tables.effects[c.effect[row]], int(c.microbatch[row]), int(c.hop[row]))


def _implied_exchange(p: Program, effect: Effect, microbatch: int, hop: int) -> Exchange | None:
    toward, path = TOWARD.get(effect.name, 0), p.path_of(microbatch)
    if not toward or not 0 <= hop + toward < len(path) or hop >= len(path):
        return None
    own, other = path[hop].device, path[hop + toward].device
    ends = (own, other) if effect.kind == Kind.SEND else (other, own)
    return Exchange((p.list_axes[0].name,), ends) if p.list_axes else None


def default_stream(p: Program, kind: Kind, exchange: Exchange | None) -> str:
    """The stream that a row's kind and peer imply."""
    if kind in (Kind.SEND, Kind.RECEIVE) and exchange is not None:
        word = "send" if kind == Kind.SEND else "receive"
        if exchange.ends is None:
            return f"{word}/{exchange.axes[0]}{exchange.shift:+d}"
        return f"{word}/{exchange.axes[0]}{exchange.ends[-1 if kind == Kind.SEND else 0]}"
    return _STREAMS.get(kind, "compute")


def _default_effect(t: Tables, name: str) -> int:
    """Place of the effect that a bare name means: the first of that name."""
    return next((e for e, effect in enumerate(t.effects) if effect.name == name), -1)


def _default_hop(p: Program, stage: int, microbatch: int) -> int:
    """The first hop of the path that visits the stage."""
    return next((hop for hop, at in enumerate(p.path_of(microbatch)) if at.stage == stage), stage)


def _deviation(p: Program, i: int, written: Mapping[Exchange, int]) -> str:
    """What a row has that its text, tables and path do not imply, in braces. ``written``: places of exchanges in the text."""
    t, c = p.tables, p.columns
    effect = t.effects[c.effect[i]]
    says: list[str] = []
    bare = _default_effect(t, effect.name)
    if int(c.effect[i]) != bare:
        says.append(f"effect={int(c.effect[i])}")
    if int(c.hop[i]) != _default_hop(p, int(c.stage[i]), int(c.microbatch[i])):
        says.append(f"hop={int(c.hop[i])}")
    if p._is_per_iteration(int(c.effect[i])) and int(c.microbatch[i]):
        says.append(f"microbatch={int(c.microbatch[i])}")
    exchange = t.exchanges[c.exchange[i]] if c.exchange[i] >= 0 else None
    if exchange != default_exchange(p, i):
        says.append(f"exchange={-1 if exchange is None else written[exchange]}")
    if t.streams[c.stream[i]] != default_stream(p, effect.kind, exchange):
        says.append(f"stream={t.streams[c.stream[i]]}")
    if int(c.work[i]) != default_work(t, effect.name, int(c.stage[i])):
        says.append(f"work={int(c.work[i])}")
    if c.batch[i]:
        says.append(f"batch={int(c.batch[i])}")
    after = p.after_of(i)
    if after:
        low = int(p.offsets[p.list_of_row[i]])
        says.append("after=" + "+".join(str(other - low) for other in after))
    return "{" + ",".join(says) + "}" if says else ""


def _written_exchanges(p: Program) -> list[Exchange]:
    return [exchange for exchange in p.tables.exchanges if not _is_default_exchange(p, exchange)]


def default_work(t: Tables, name: str, stage: int) -> int:
    """The work of a name on a stage where works of that name come one a stage, or one for all; otherwise -1."""
    own = [w for w, work in enumerate(t.works) if work.name == name]
    if len(own) == 1:
        return own[0]
    return own[stage] if 0 <= stage < len(own) == t.num_stages else -1


def from_text(text: str) -> Program:
    """Read a program's text.

    Raises:
        ProgramError: no header, a newer version, or a line that says nothing known; the message names the line.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines or not lines[0][1].startswith("meshwright-program"):
        raise ProgramError("this is no program: its first line must begin with 'meshwright-program 1'")
    axes, num_microbatches = _read_head(lines[0][1])
    tables: dict[str, list[Any]] = {
        field: [] for field in (*_FIELDS.values(), "paths", "microbatches", "owners", "stage_names")
    }
    num_stages: int | None = None
    rows: dict[int, list[str]] = {}
    effects: dict[int, tuple[Effect, bool]] = {}
    for number, line in lines[1:]:
        word, _, rest = line.partition(" ")
        try:
            if word.endswith(":") and word[:-1].isdigit():
                _add_once(rows, int(word[:-1]), rest.split())
            elif word == "path":
                tables["paths"].append(tuple(Hop(*map(int, hop.split("@"))) for hop in rest.split()))
            elif word == "vocabulary":
                tables["owners"].append(rest)
            elif word == "stage-names":
                tables["stage_names"] += rest.split()
            elif word == "stages":
                num_stages = _stages(rest)
            elif word == "microbatch":
                tables["microbatches"].append(read_row(Microbatch, json.loads(rest)))
            elif word in ("effect", "default-effect"):
                place, _, row = rest.partition(" ")
                _add_once(effects, int(place), (read_effect(json.loads(row)), word == "default-effect"))
            else:
                tables[_FIELDS[word]].append(READERS[word](json.loads(rest)))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ProgramError(f"line {number}: {line[:60]!r} is no line of a program ({error})") from error
    return _assemble(axes, num_microbatches, num_stages, tables, effects, rows)


def _read_head(line: str) -> tuple[tuple[Axis, ...], int]:
    match = re.fullmatch(
        r"meshwright-program\s+(\d+)\s+axes\s+((?:\w+=\d+\*?\s+)*)microbatches\s+(\d+)", line
    )
    if match is None:
        raise ProgramError(
            f"line 1: {line[:70]!r}; it must read 'meshwright-program 1   axes pp=2   microbatches 2'"
        )
    if int(match[1]) > VERSION:
        raise ProgramError(
            f"the program has version {match[1]}, this meshwright reads {VERSION}; upgrade meshwright"
        )
    axes = []
    for word in match[2].split():
        name, _, size = word.partition("=")
        axes.append(Axis(name, int(size.rstrip("*")), not size.endswith("*")))
    check_most("line 1: microbatches of a program", int(match[3]), MOST_MICROBATCHES, ProgramError)
    if not axes or min(axis.size for axis in axes) < 1 or len({axis.name for axis in axes}) < len(axes):
        raise ProgramError(
            f"line 1: axes {match[2].strip()!r}; name at least one, each once, of size 1 or more"
        )
    return tuple(axes), int(match[3])


def _add_once(rows: dict[int, Any], place: int, row: Any) -> None:
    if place in rows:
        raise ValueError(f"{place} is there already")
    rows[place] = row


def _stages(text: str) -> int:
    limit = int(np.iinfo(COLUMN_TYPES["stage"]).max)
    if not 0 <= int(text) <= limit:
        raise ValueError(f"0 to {limit} stages")
    return int(text)


def _assemble(
    axes: tuple[Axis, ...],
    num_microbatches: int,
    num_stages: int | None,
    given: dict[str, list[Any]],
    written_effects: dict[int, tuple[Effect, bool]],
    rows: dict[int, list[str]],
) -> Program:
    """Tables with their defaults, then the rows against them."""
    vocabulary = CORE | Vocabulary(owners=tuple(given.pop("owners")))
    lists = [axis for axis in axes if axis.materialised]
    num_lists = math.prod(axis.size for axis in lists)
    if len(rows) != num_lists or max(rows) >= num_lists:
        raise ProgramError(
            f"the program has lists {sorted(rows)}, its axes ask for 0 to {num_lists - 1}; write one line a list"
        )
    if not given["microbatches"] and num_microbatches:
        given["microbatches"] = [Microbatch(1, 1.0 / num_microbatches)] * num_microbatches
    if not given["paths"]:
        first = lists[0].size if lists else 1
        given["paths"] = [default_path(first, first if num_stages is None else num_stages)]
    parsed = [[_read_row(text, device) for text in rows[device]] for device in range(num_lists)]
    flat = [row for device in parsed for row in device]
    effects, numbers = _order_effects(written_effects, flat)
    tables = Tables(**{**{k: tuple(v) for k, v in given.items()}, "effects": tuple(effects)})
    tables = _with_defaults(tables)
    offsets = np.concatenate([[0], np.cumsum([len(device) for device in parsed])]).astype(np.int64)
    shell = Program(
        axes, tables, Columns.of(0), np.zeros(num_lists + 1, dtype=np.int64), vocabulary=vocabulary
    )
    check_tables(shell)
    return _fill(shell, flat, numbers, offsets, given["exchanges"])


def _order_effects(
    written: dict[int, tuple[Effect, bool]], flat: list[dict[str, Any]]
) -> tuple[list[Effect], list[int]]:
    """Effects by first appearance, and the place of every row's; a bare name means its default-effect line, or else
    what it means in the core."""
    bare = {effect.name: effect for effect, is_default in written.values() if is_default}
    table: dict[Effect, int] = {}
    numbers = []
    for row in flat:
        name, place = row["name"], row["says"].get("effect")
        if place is not None and (int(place) not in written or written[int(place)][0].name != name):
            raise ProgramError(
                f"a row of {name} says effect={place}, but no effect line of {name} has that place; add it"
            )
        if place is None and name not in bare and name not in CORE.names:
            raise ProgramError(
                f"the name {name!r} is none of the core's, and no default-effect line says what it touches"
            )
        effect = (
            written[int(place)][0]
            if place is not None
            else bare[name]
            if name in bare
            else CORE.names[name].effect
        )
        numbers.append(table.setdefault(effect, len(table)))
    return list(table), numbers


def _with_defaults(t: Tables) -> Tables:
    """Value kinds that effects touch, and the duties of the names that occur."""
    kinds = CORE.kinds_of(t.effects, t.value_kinds)
    kinds += tuple(kind for kind in t.value_kinds if kind not in kinds)
    return replace(
        t, value_kinds=kinds, duties=t.duties or CORE.duties_of({effect.name for effect in t.effects})
    )


def _read_row(text: str, device: int) -> dict[str, Any]:
    match = _ROW.fullmatch(text)
    if match is None:
        raise ProgramError(
            f"list {device}: {text!r} is no instruction; write one such as 0F3, 1SEND_B2 or 0REDUCE_GRAD.1"
        )
    stage, name, microbatch, part, says = match.groups()
    pairs = dict(pair.partition("=")[::2] for pair in (says or "{}")[1:-1].split(",") if pair)
    for key, value in pairs.items():
        if key not in _SAYS or not re.fullmatch(_SAYS[key], value, re.ASCII):
            raise ProgramError(
                f"list {device}: {text!r} says {key}={value!r}; braces say {', '.join(_SAYS)}, each a number from 0, "
                f"but stream a name, and after numbers joined by +"
            )
    return {
        "stage": int(stage),
        "name": name,
        "microbatch": int(microbatch or 0),
        "part": int(part or 0),
        "says": pairs,
    }


def _written_exchange(number: str, written: list[Exchange]) -> Exchange | None:
    if int(number) >= len(written):
        raise ProgramError(
            f"a row says exchange={number}, but there are {len(written)} exchange lines, numbered from 0; add it"
        )
    return None if number == "-1" else written[int(number)]


def _fill(
    shell: Program, flat: list[dict[str, Any]], effects: list[int], offsets: Any, written: list[Exchange]
) -> Program:
    """Columns of the rows, each field from the row or by its default."""
    t = shell.tables
    exchanges: dict[Exchange, int] = {}
    streams: dict[str, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in COLUMN_TYPES}
    after = []
    for place, row in enumerate(flat):
        says, stage, name = row["says"], row["stage"], row["name"]
        effect = effects[place]
        microbatch = int(says.get("microbatch", row["microbatch"]))
        if microbatch >= max(1, len(t.microbatches)):
            raise ProgramError(
                f"{stage}{name}{microbatch}: the program has {len(t.microbatches)} microbatches, numbered from 0"
            )
        hop = int(says["hop"]) if "hop" in says else _default_hop(shell, stage, microbatch)
        exchange = (
            _written_exchange(says["exchange"], written)
            if "exchange" in says
            else _implied_exchange(shell, t.effects[effect], microbatch, hop)
        )
        stream = says.get("stream", default_stream(shell, t.effects[effect].kind, exchange))
        values = {
            "effect": effect, "stage": stage, "hop": hop, "microbatch": microbatch, "part": row["part"],
            "stream": streams.setdefault(stream, len(streams)),
            "work": int(says.get("work", default_work(t, name, stage))),
            "exchange": -1 if exchange is None else exchanges.setdefault(exchange, len(exchanges)),
            "batch": int(says.get("batch", 0)),
        }  # fmt: skip
        for column, value in values.items():
            columns[column].append(value)
        low = int(offsets[np.searchsorted(offsets, place, side="right") - 1])
        waits = [int(other) for other in says.get("after", "").split("+") if other]
        if max(waits, default=-1) >= place - low:
            raise ProgramError(
                f"{stage}{name}{microbatch} stands at position {place - low} and says after={says['after']}; "
                f"only rows before it can be waited for"
            )
        after += [(place, low + other) for other in waits]
    full = shell.with_tables(exchanges=tuple(exchanges), streams=tuple(streams) or ("compute",))
    pairs = np.array(sorted(after), dtype=np.int64).reshape(-1, 2)
    return replace(full, columns=Columns.of(len(flat), **columns), offsets=offsets, after=pairs)


def to_torch_csv(program: Program) -> str:
    """The lists in the CSV of ``torch.distributed.pipelining`` (one row a rank), for its ``_load_csv``; STEP is left out.

    Raises:
        ProgramError: the program does what torch has no action for, such as R.
    """
    used = np.unique(program.columns.effect).tolist()
    names = {program.tables.effects[e].name for e in used} - {"STEP", *TORCH_COMPUTES, *TORCH_MOVES}
    if names:
        raise ProgramError(
            f"torch's CSV has no action {' or '.join(sorted(names))}",
            allowed=", ".join((*TORCH_COMPUTES, *TORCH_MOVES)),
            next="write program text instead, which holds all of it",
        )
    lines = []
    for device in range(program.num_lists):
        rows = range(int(program.offsets[device]), int(program.offsets[device + 1]))
        lines.append(
            ",".join(
                program.text_of(i)
                for i in rows
                if program.tables.effects[program.columns.effect[i]].name != "STEP"
            )
        )
    return "\n".join(lines) + "\n"


def from_torch_csv(text: str) -> list[list[str]]:
    """The computes of a schedule CSV of torch, one list of texts a rank: what a schedule function would return.

    Sends, receives and gathers are left out (our passes place them again).

    Raises:
        ProgramError: an action that is no compute and no move, such as a fused OVERLAP_F_B.
    """
    lists = []
    for number, line in enumerate(text.rstrip().splitlines()):
        computes = []
        for cell in (cell.strip() for cell in line.split(",")):
            if not cell:
                continue
            match = _ROW.fullmatch(cell)
            if match is None or match[2] not in (*TORCH_COMPUTES, *TORCH_MOVES):
                raise ProgramError(
                    f"rank {number}: action {cell!r} is not one that meshwright reads",
                    allowed=", ".join((*TORCH_COMPUTES, *TORCH_MOVES)),
                    next="write what is fused as actions of its own, one behind the other",
                )
            if match[2] in TORCH_COMPUTES:
                computes.append(cell)
        lists.append(computes)
    return lists
