"""What the forwards of some microbatches keep for their backwards waits at the host: stored behind each forward,
loaded ahead of its backward (Ge et al. 2025, ByteScale, arXiv 2502.21231, section 4.2).

A group says the share (`SequenceGroup.offload`) of what may wait there, which is what all segments but those of the last two
blocks keep: their backwards come before a store and a load are through. Those that wait longest, the first ones, go. A load
waits for the backward two segments before its own, so that no more than what the next backward needs is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.ir.core_vocabulary import SAVED
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Effect, Kind, Pattern, ValueBytes, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.lowering.order import with_effects
from meshwright.specs.operator import Operator
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.stage.chain.chain import Chain

AT_HOST, FETCHED = ValueKind("host_saved", tier="host"), ValueKind("fetched_saved")
STORE_SAVED = Effect(Kind.STORE, "STORE_SAVED", (SAVED,), (Pattern(AT_HOST.name),))
LOAD_SAVED = Effect(Kind.LOAD, "LOAD_SAVED", (Pattern(AT_HOST.name),), (Pattern(FETCHED.name),))
WORDS = Vocabulary.of(AT_HOST, FETCHED, Name(STORE_SAVED), Name(LOAD_SAVED))
LAST_BLOCKS = 2  # what they keep stays


def segments_at_host(chain: Chain, kept: Sequence[float], share: float) -> tuple[int, ...]:
    """Numbers of the segments whose bytes (`kept`, of each) are nearest to a share of all that may wait at the host."""
    last = max(step.block for segment in chain.segments for step in segment.steps)
    may = [
        number
        for number, segment in enumerate(chain.segments[:-1])
        if kept[number] and all(step.block <= last - LAST_BLOCKS for step in segment.steps)
    ]
    ends = np.cumsum([kept[number] for number in may])
    wanted = share * ends[-1] if may else 0.0
    count = int(np.argmin(np.abs(np.concatenate([[0.0], ends]) - wanted))) if may else 0
    return tuple(may[:count])


@dataclass(frozen=True)
class OffloadGroups:
    """A pass: STORE_SAVED and LOAD_SAVED around what segments keep. ``segments``: of every microbatch those whose forwards'
    tensors wait at the host."""

    segments: tuple[tuple[int, ...], ...]

    def __call__(self, program: Program) -> Program:
        """The program with its stores and loads; itself where nothing waits."""
        chosen = np.zeros((len(self.segments), program.tables.num_stages), dtype=bool)
        for microbatch, own in enumerate(self.segments):
            chosen[microbatch, list(own)] = True
        c = program.columns
        is_meant = chosen[c.microbatch, c.stage]
        is_forward = np.array(
            [effect.name == "F" for effect in program.tables.effects]
        )  # R makes what is there at once
        kept = is_meant & (is_forward & _having(program, "writes"))[c.effect]
        used = is_meant & _having(program, "reads")[c.effect]
        is_meant &= np.isin(_places(program), _places(program)[kept])
        used &= is_meant
        if not kept.any():
            return program
        program = _reading_fetched(program.with_vocabulary(WORDS), used)
        program, (store, load) = with_effects(program, STORE_SAVED, LOAD_SAVED)
        t = program.tables
        streams = (*t.streams, *(name for name in ("load", "store") if name not in t.streams))
        program = program.with_tables(streams=streams)
        stores, loads = np.flatnonzero(kept), _first_uses(program, used)

        def rows(at: np.ndarray, effect: int, stream: str) -> Columns:
            own = program.columns.take(at)
            none = np.full(len(at), -1)
            values = {
                "effect": none * 0 + effect,
                "stream": none * 0 + streams.index(stream),
                "part": none * 0,
            }
            for name, value in (values | {"work": none, "exchange": none, "batch": none * 0}).items():
                own = own.with_column(name, value)
            return own

        new = Columns.concatenate([rows(stores, store, "store"), rows(loads, load, "load")])
        before = np.concatenate([stores + 1, _ahead(program, loads)])
        lists = program.list_of_row[np.concatenate([stores, loads])]
        return _loading_late(program.inserted(before, lists, new), load)


def _having(program: Program, side: str) -> np.ndarray:
    """Of every effect: does it read, or write, what a forward keeps?"""
    return np.array([any(p.kind == SAVED.kind for p in getattr(e, side)) for e in program.tables.effects])


def _places(program: Program) -> np.ndarray:
    """A number for the microbatch and segment of every row."""
    c = program.columns
    return c.microbatch.astype(np.int64) * program.tables.num_stages + c.stage


def _reading_fetched(program: Program, used: np.ndarray) -> Program:
    """These rows read what was loaded."""
    effect = program.columns.effect.copy()
    for number in np.unique(effect[used]).tolist():
        own = program.tables.effects[number]
        reads = tuple(p._replace(kind=FETCHED.name) if p.kind == SAVED.kind else p for p in own.reads)
        program, (other,) = with_effects(program, own._replace(reads=reads))
        effect[used & (program.columns.effect == number)] = other
    return program.with_columns(effect=effect)


def _first_uses(program: Program, used: np.ndarray) -> np.ndarray:
    """The first row of every microbatch and segment that reads what was loaded."""
    rows = np.flatnonzero(used)
    _, first = np.unique(_places(program)[rows], return_index=True)
    return np.sort(rows[first])


def _ahead(program: Program, rows: np.ndarray) -> np.ndarray:
    """For each row the first one of the segment before its own, on its list and of its microbatch: behind the segments that
    come before that one it is loaded."""
    c, computes = program.columns, np.flatnonzero(program.kinds == Kind.COMPUTE)
    place = _places(program)[computes]
    begins = np.concatenate([[True], place[1:] != place[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(computes)), 0))  # of its run
    at = first[np.searchsorted(computes, rows)]
    before = first[np.maximum(at - 1, 0)]
    found = computes[before]
    is_same = (program.list_of_row[found] == program.list_of_row[rows]) & (
        c.microbatch[found] == c.microbatch[rows]
    )
    return np.where(is_same, found, rows)


def _loading_late(program: Program, load: int) -> Program:
    """Loads wait for the compute in front of them: earlier they would hold memory beside the forwards that left it."""
    computes = program.kinds == Kind.COMPUTE
    last = np.maximum.accumulate(np.where(computes, np.arange(program.num_rows), -1))
    loads = np.flatnonzero(program.columns.effect == load)
    pairs = np.stack([loads, last[loads]], axis=1)
    return replace(program, after=np.unique(np.concatenate([program.after, pairs]), axis=0))


def stored_segments(program: Program, device: int) -> frozenset[tuple[int, int]]:
    """Stages and microbatches of one list whose forwards' tensors leave the device until the backward."""
    effects = [e for e, effect in enumerate(program.tables.effects) if effect.name == STORE_SAVED.name]
    own = program.columns.take(slice(int(program.offsets[device]), int(program.offsets[device + 1])))
    rows = np.flatnonzero(np.isin(own.effect, effects))
    return frozenset(zip(own.stage[rows].tolist(), own.microbatch[rows].tolist(), strict=True))


def host_bytes(sizes: Sequence[ValueBytes]) -> tuple[ValueBytes, ...]:
    """Of what waits at the host, and what was loaded: as what is kept."""
    kept = [row for row in sizes if row.kind == SAVED.kind]
    return tuple(row._replace(kind=kind.name) for row in kept for kind in (AT_HOST, FETCHED))


def host_works(kept: Sequence[float], num_tokens: int, dtype: str) -> Mapping[tuple[str, int], Work]:
    """What stores and loads of every segment move, of so many tokens."""
    found = {}
    for number, each in enumerate(kept):
        num_bytes = each * num_tokens
        copied = (Operator("host_copy", 0.0, num_bytes, (num_tokens,), label="saved tensors"),)
        for effect in (STORE_SAVED, LOAD_SAVED):
            work = Work(effect.name, num_tokens, (num_tokens,), dtype, 0.0, num_bytes, 1.0, copied)
            found[effect.name, number] = work
    return found


def offload_of(groups: GroupedBatch, chain: Chain, kept: Sequence[float]) -> OffloadGroups:
    """The pass of the shares that groups say."""
    shares = [groups.groups[each.group].offload if each.sequences else 0.0 for each in groups.microbatches]
    known = {share: segments_at_host(chain, kept, share) for share in set(shares)}
    return OffloadGroups(tuple(known[share] for share in shares))
