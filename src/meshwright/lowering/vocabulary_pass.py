"""SplitVocabulary: both vocabulary layers divided among all devices of a pipeline, as passes of their own.

What they are stands in `vocabulary_effect`, where they go here: by the times of the computes alone, S of a microbatch stands
behind the compute that its device runs when the last stage's output is ready, T behind S of the next microbatch, LOOKUP
one compute before the first forward, SCATTER behind the compute that runs when the input's gradient is ready. For 1F1B
this is the rule of Yeung et al. 2024 (arXiv 2411.05288): per stage, S before or behind the forward of its period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Columns, Program
from meshwright.ir.replay import replay_program
from meshwright.ir.table import Duty, Effect, Exchange, Kind, ValueBytes
from meshwright.lowering.order import FIRST_AXIS, with_effects
from meshwright.lowering.transfer import Transfers
from meshwright.lowering.vocabulary_effect import (
    ALGORITHMS,
    COMPUTES,
    KINDS,
    LOOKUP,
    SCATTER,
    SHARE_INPUT_GRAD,
    SHARE_INPUT_GRAD_HERE,
    SHARE_OUTPUT,
    SHARE_OUTPUT_HERE,
    SUM_BOTH,
    SUM_BOTH_HERE,
    SUM_INPUT,
    SUM_INPUT_HERE,
    SUM_OUTPUT_GRAD,
    SUM_OUTPUT_GRAD_HERE,
    SUM_SOFTMAX,
    T_WHOLE,
    S,
    T,
    value,
)
from meshwright.specs.error import ProgramError

Algorithm = Literal["one_barrier", "two_barriers"]
# Microbatches that backwards wait longer, so that computes hide every barrier (arXiv 2411.05288: p + 1 and p + 2 alive).
DELAYS: dict[Algorithm, int] = {"one_barrier": 1, "two_barriers": 2}
# In units of a forward, for the order only: which compute runs when an output is ready.
TEXTBOOK_SECONDS = (("F", 1.0), ("R", 1.0), ("I", 1.0), ("W", 1.0), ("B", 2.0))
DIGITS, TOLERANCE = 9, 1e-9  # to which times are equal that are sums of the same few numbers
LOSS_BYTES = 4.0  # of a logit: the softmax is in float32
NORMALIZER_BYTES = 3 * LOSS_BYTES  # maximum, sum and the target's logit of a token
FORWARDS, BACKWARDS = ("F", "R"), ("B", "I")


class _Event(NamedTuple):
    """A new row: its list, the position it stands before, and what orders rows at one position: when, then what."""

    device: int
    position: int
    time_s: float
    rank: int
    microbatch: int
    effect: Effect


@dataclass(frozen=True)
class SplitVocabulary:
    """Take embedding and head out of the first and last stage, and give every device its rows of both.

    Takes a program of computes, before gradients are reduced and values sent. Backwards move behind one (one barrier) or
    two (two barriers) more microbatches of forwards. S of a microbatch then stands behind the compute that its device
    runs when the last stage's output of it is ready, so that the exchange of that output runs beside this compute.
    `seconds`: of F, R, I, W and B, by which that compute is found. `vocabulary_size`: for the bytes of the softmax.
    """

    algorithm: Algorithm = "one_barrier"
    seconds: tuple[tuple[str, float], ...] = TEXTBOOK_SECONDS
    vocabulary_size: int = 0
    name = "split_vocabulary"

    def __call__(self, program: Program) -> Program:
        """The program with its passes of the vocabulary. Raises ProgramError where it has exchanges, or several paths."""
        if (program.kinds != Kind.COMPUTE).any() or len(program.tables.paths) != 1:
            raise ProgramError(
                "the vocabulary is split in a program that has exchanges or several paths; split it before gradients are "
                "reduced and values sent, in a program where all microbatches take one path"
            )
        if self.algorithm not in DELAYS:
            raise ProgramError(
                f"a vocabulary is split with {self.algorithm!r}; one of {', '.join(DELAYS)} is allowed"
            )
        program = delayed(program, DELAYS[self.algorithm], dict(self.seconds))
        events = sorted(_Places(program, self).events(), key=lambda event: event[:5])
        return _with_bytes(_inserted(with_ends(program), events), self)


def delayed(program: Program, num_microbatches: int, seconds: Mapping[str, float]) -> Program:
    """The program with all that is no forward later by the time in which a device computes so many microbatches.

    Lists are in the order of the times that result. All that depends on each other keeps its order in time, so no order
    that runs becomes one that does not.
    """
    names = names_of(program)
    start, end = _times(program, names, seconds)
    lists = program.list_of_row
    busy = np.bincount(lists, weights=end - start, minlength=program.num_lists)
    later_s = num_microbatches * float(busy.max(initial=0.0)) / max(1, len(program.tables.microbatches))
    is_forward = names == "F"
    due = np.round(np.where(is_forward, start, start + later_s), DIGITS)
    return program.reordered(np.lexsort((is_forward, due, lists)), program.offsets)


def with_ends(program: Program) -> Program:
    """The program whose first stage reads its input and whose last writes its output, and back: no tokens and no loss."""
    chosen = program.columns.effect
    for place, effect in enumerate(program.tables.effects):
        reads, writes = effect.reads, effect.writes
        if effect.name in FORWARDS:
            reads = (*reads, value("input", "first"))
            writes = (*writes, value("output", "last")) if effect.name == "F" else writes
        elif effect.name in BACKWARDS:
            reads = (*reads, value("output_gradient", "last"))
            writes = (*writes, value("input_gradient", "first"))
        program, (changed,) = with_effects(program, effect._replace(reads=reads, writes=writes))
        chosen = np.where(program.columns.effect == place, changed, chosen)
    return program.with_columns(effect=chosen)


def names_of(program: Program) -> NDArray[Any]:
    """The name of every row."""
    names: NDArray[Any] = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    return names


class _Places:
    """Where everything goes, by the times of the computes alone."""

    def __init__(self, program: Program, options: SplitVocabulary) -> None:
        self.program, self.has_two = program, options.algorithm == "two_barriers"
        self.path = program.tables.paths[0]
        self.num_microbatches = len(program.tables.microbatches)
        c, names = program.columns, names_of(program)
        self.start, self.end = _times(program, names, dict(options.seconds))
        self.starts = np.split(self.start, program.offsets[1:-1])
        is_backward, last = np.isin(names, BACKWARDS), len(self.path) - 1
        self.first_forward = self._by_microbatch((names == "F") & (c.hop == 0))
        self.last_forward = self._by_microbatch((names == "F") & (c.hop == last))
        self.first_backward = self._by_microbatch(is_backward & (c.hop == 0))
        self.last_backward = self._by_microbatch(is_backward & (c.hop == last))
        # the first backward of a microbatch, or of a later one, on a device: S, and T of two barriers, stand before it
        self.limit = np.full((program.num_lists, self.num_microbatches), program.num_rows)
        rows = np.flatnonzero(is_backward)
        lists = program.list_of_row[rows]
        np.minimum.at(self.limit, (lists, c.microbatch[rows]), rows - program.offsets[lists])
        self.limit = np.minimum.accumulate(self.limit[:, ::-1], axis=1)[:, ::-1]

    def _by_microbatch(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """The chosen rows in the order of their microbatches."""
        rows = np.flatnonzero(chosen)
        found: NDArray[Any] = rows[np.argsort(self.program.columns.microbatch[rows], kind="stable")]
        return found

    def _behind(self, device: int, time_s: float) -> int:
        """The position behind the last compute of a list that has started by a time."""
        return int(np.searchsorted(self.starts[device], time_s + TOLERANCE, side="right"))

    def events(self) -> list[_Event]:
        """All new rows of all lists."""
        first, last = self.path[0].device, self.path[-1].device
        found: list[_Event] = []
        for m in range(self.num_microbatches):
            for device in range(self.program.num_lists):
                found += self._input(m, device, device == first)
                found += self._output(m, device, device == last)
                found += self._input_gradient(m, device, device == first)
        return found

    def _input(self, m: int, device: int, is_here: bool) -> list[_Event]:
        """LOOKUP one compute before the first forward."""
        low = int(self.program.offsets[self.path[0].device])
        time_s = float(self.start[max(low, int(self.first_forward[m]) - 1)])
        position = max(0, self._behind(device, time_s) - 1)
        effects = (LOOKUP, SUM_INPUT_HERE if is_here else SUM_INPUT)
        return [_Event(device, position, time_s, rank, m, effect) for rank, effect in enumerate(effects)]

    def _output(self, m: int, device: int, is_here: bool) -> list[_Event]:
        """S behind the compute that runs when the output is ready, T behind S of the next microbatch."""
        ready_s, s = self._place_of_s(m, device)
        later_s, t = self._place_of_t(m, device)
        share = int(self.last_forward[m] - self.program.offsets[device]) + 1 if is_here else max(0, s - 1)
        if self.has_two:
            summed, gradient = SUM_SOFTMAX, SUM_OUTPUT_GRAD_HERE if is_here else SUM_OUTPUT_GRAD
            behind = [_Event(device, t, later_s, 5, m, T_WHOLE), _Event(device, t, later_s, 6, m, gradient)]
        else:
            summed, behind = SUM_BOTH_HERE if is_here else SUM_BOTH, [_Event(device, t, later_s, 5, m, T)]
        sharing = SHARE_OUTPUT_HERE if is_here else SHARE_OUTPUT
        return [
            _Event(device, share, ready_s, 2, m, sharing),
            _Event(device, s, ready_s, 3, m, S),
            _Event(device, s, ready_s, 4, m, summed),
            *behind,
        ]

    def _place_of_s(self, m: int, device: int) -> tuple[float, int]:
        time_s = float(self.end[self.last_forward[m]])
        return time_s, min(self._behind(device, time_s), int(self.limit[device, m]))

    def _place_of_t(self, m: int, device: int) -> tuple[float, int]:
        ready_s, s = self._place_of_s(m, device)
        # two barriers: beside the compute before the backward that waits for it at the latest; one: behind that backward
        latest_s = float(self.start[self.last_backward[m] - self.has_two])
        if m + 1 < self.num_microbatches:
            next_s = float(self.end[self.last_forward[m + 1]])
            latest_s = min(next_s, latest_s) if self.has_two else next_s
        time_s = max(ready_s, latest_s)
        place = max(s, self._behind(device, time_s))
        return time_s, min(place, int(self.limit[device, m])) if self.has_two else place

    def _input_gradient(self, m: int, device: int, is_here: bool) -> list[_Event]:
        """SCATTER behind the compute that runs when the first stage's input gradient is ready."""
        row = int(self.first_backward[m])
        time_s = float(self.end[row])
        position = self._behind(device, time_s)
        share = row - int(self.program.offsets[device]) + 1 if is_here else max(0, position - 1)
        sharing = SHARE_INPUT_GRAD_HERE if is_here else SHARE_INPUT_GRAD
        return [
            _Event(device, share, time_s, 7, m, sharing),
            _Event(device, position, time_s, 8, m, SCATTER),
        ]


def _times(
    program: Program, names: NDArray[Any], seconds: Mapping[str, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of every compute, with free messages and without the vocabulary."""
    sent = Transfers()(program)
    is_compute = sent.kinds == Kind.COMPUTE
    cost = np.zeros(sent.num_rows)
    cost[is_compute] = [seconds.get(name, 0.0) for name in names.tolist()]
    _, start, end = replay_program(sent, cost, np.zeros(sent.num_rows))
    return start[0][is_compute], end[0][is_compute]


def _inserted(program: Program, events: list[_Event]) -> Program:
    """The program with the new rows, each on the first stage of its device."""
    names = sorted({event.effect.name for event in events if event.effect.kind == Kind.COLLECTIVE})
    classes = [Exchange((FIRST_AXIS,), algorithm=ALGORITHMS[name]) for name in names]
    program, effects = with_effects(program, *(event.effect for event in events))
    program = _with_tables(program, names, classes)
    t = program.tables
    # -1 where there is none: on the compute stream, and no exchange
    number = np.array([names.index(e.effect.name) if e.effect.name in names else -1 for e in events])
    streams = np.array([*(t.streams.index(name.lower()) for name in names), 0])
    exchanges = np.array([*(t.exchanges.index(each) for each in classes), -1])
    hop_of = {hop.device: place for place, hop in reversed(list(enumerate(t.paths[0])))}
    lists, hops = (
        np.array(list(each)) for each in zip(*((e.device, hop_of[e.device]) for e in events), strict=True)
    )
    rows = Columns.of(
        len(events), effect=effects, stage=np.array([hop.stage for hop in t.paths[0]])[hops], hop=hops,
        microbatch=[event.microbatch for event in events], stream=streams[number], exchange=exchanges[number],
    )  # fmt: skip
    before = program.offsets[lists] + np.array([event.position for event in events])
    return program.inserted(before, lists, rows)


def _with_tables(program: Program, names: list[str], classes: list[Exchange]) -> Program:
    """The program with the exchanges' classes and streams, and what is due of the new computes."""
    t = program.tables
    # with several stages on a device the duty is not of each: then it is proven to be done at most once, and S by its readers
    per = "path" if len(t.paths[0]) == program.axes[0].size else "some"
    return program.with_tables(
        exchanges=tuple(dict.fromkeys((*t.exchanges, *classes))),
        streams=(*t.streams, *(name.lower() for name in names)),
        duties=(*t.duties, *(Duty(effect.name, per) for effect in COMPUTES)),
    )


def _with_bytes(program: Program, options: SplitVocabulary) -> Program:
    """The program with bytes of the new values, where it has those of activations."""
    known = {row.kind: row for row in program.tables.value_bytes}
    if "activation" not in known:
        return program
    activation = known["activation"].by_index[:1]
    num_bytes = sum(activation)
    rows = -(-options.vocabulary_size // program.axes[0].size)
    softmax = LOSS_BYTES * rows + (0.0 if options.algorithm == "two_barriers" else 2 * num_bytes)
    sizes = dict.fromkeys(KINDS, activation) | {"softmax": (softmax,), "normalizer": (NORMALIZER_BYTES,)}
    added = tuple(ValueBytes(kind, size, per_token=True) for kind, size in sizes.items())
    return program.with_tables(value_bytes=(*program.tables.value_bytes, *added))
