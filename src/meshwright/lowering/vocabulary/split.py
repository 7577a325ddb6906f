"""SplitVocabulary: both vocabulary layers divided among all devices of a pipeline, as passes of their own.

What they are stands in `vocabulary_effect`, where they go in `vocabulary_place`: by the times of the computes alone, S of a
microbatch stands behind the compute that its device runs when the last stage's output is ready, T behind S of the next
microbatch, LOOKUP one compute before the first forward, SCATTER behind the compute that runs when the input's gradient is
ready. For 1F1B this is the rule of Yeung et al. 2024 (arXiv 2411.05288): per stage, S before or behind the forward of its
period. Interlaced, nothing runs beside their exchanges (`vocabulary_interlaced`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from meshwright.ir.axis import FIRST_AXIS
from meshwright.ir.core_vocabulary import SPLIT_COMPUTES, value
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Exchange, Kind, ValueBytes
from meshwright.lowering.order import program_of_orders, with_effects
from meshwright.lowering.vocabulary.effect import ALGORITHMS, KINDS
from meshwright.lowering.vocabulary.interlaced import interlaced, interlaced_events
from meshwright.lowering.vocabulary.place import (
    BACKWARDS,
    DIGITS,
    TEXTBOOK_SECONDS,
    Event,
    Places,
    compute_times,
    names_of,
)
from meshwright.schedules.order import Compute, Orders
from meshwright.specs.error import ProgramError
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES, LOSS_EXCHANGES

Algorithm = Literal["one_barrier", "two_barriers", "interlaced"]
INTERLACED = "interlaced"
# Microbatches that backwards wait longer, so that computes hide every barrier (arXiv 2411.05288: p + 1 and p + 2 alive).
DELAYS: dict[Algorithm, int] = {"one_barrier": 1, "two_barriers": 2}
FORWARDS = ("F", "R")


@dataclass(frozen=True)
class SplitVocabulary:
    """Take embedding and head out of the first and last stage, and give every device its rows of both.

    Takes a program of computes, before gradients are reduced and values sent. Backwards move behind one (one barrier) or
    two (two barriers) more microbatches of forwards, unless the program `is_delayed` already (`delayed_orders`). S of a
    microbatch then stands behind the compute that its device runs when the last stage's output of it is ready, so that
    the exchange of that output runs beside this compute. "interlaced" puts all computes into an order of its own.
    `seconds`: of F, R, I, W and B, by which that compute is found; times `shares` of the stages where these differ.
    `vocabulary_size`: for the bytes of the softmax, whose numbers have `logit_bytes` each; rows of a device are divided
    among `tp` devices, tokens among `cp`.
    """

    algorithm: Algorithm = "one_barrier"
    seconds: tuple[tuple[str, float], ...] = TEXTBOOK_SECONDS
    vocabulary_size: int = 0
    shares: tuple[float, ...] = ()
    is_delayed: bool = False
    logit_bytes: float = LOSS_ELEMENT_BYTES
    tp: int = 1
    cp: int = 1
    name = "split_vocabulary"

    def __call__(self, program: Program) -> Program:
        """The program with its passes of the vocabulary.

        Raises ProgramError where it has exchanges, or several paths; interlaced, where a device has several stages that do
        not follow each other.
        """
        if (program.kinds != Kind.COMPUTE).any() or len(program.tables.paths) != 1:
            raise ProgramError(
                "the vocabulary is split in a program that has exchanges or several paths; split it before gradients are "
                "reduced and values sent, in a program where all microbatches take one path"
            )
        if self.algorithm not in (*DELAYS, INTERLACED):
            raise ProgramError(
                f"a vocabulary is split with {self.algorithm!r}; one of {', '.join(DELAYS)}, {INTERLACED} is allowed"
            )
        program, events = self._placed(program)
        events = sorted(events, key=lambda event: event[:5])
        return _with_bytes(_inserted(with_ends(program), events, self.algorithm != INTERLACED), self)

    def _placed(self, program: Program) -> tuple[Program, list[Event]]:
        """The computes in their order, and what is to be inserted."""
        if self.algorithm == INTERLACED:
            program = interlaced(program)
            return program, interlaced_events(program)
        seconds = dict(self.seconds)
        if not self.is_delayed:
            program = delayed(program, DELAYS[self.algorithm], seconds)
        return program, Places(program, self.algorithm == "two_barriers", seconds, self.shares).events()


def delayed_orders(orders: Orders, algorithm: Algorithm) -> Orders:
    """A schedule's orders with the backwards where `SplitVocabulary` wants them, every stage as long as the others.

    For stages that are cut into pieces afterwards: the pieces of a compute stay together.
    """
    program = delayed(program_of_orders(orders), DELAYS[algorithm], dict(TEXTBOOK_SECONDS))
    c, names = program.columns, names_of(program).tolist()
    flat = list(map(Compute, names, c.stage.tolist(), c.microbatch.tolist()))
    return [flat[first:end] for first, end in pairwise(program.offsets.tolist())]


def delayed(program: Program, num_microbatches: int, seconds: Mapping[str, float]) -> Program:
    """The program with all that is no forward later by the time in which a device computes so many microbatches.

    Lists are in the order of the times that result. All that depends on each other keeps its order in time, so no order
    that runs becomes one that does not.
    """
    names = names_of(program)
    start, end = compute_times(program, names, seconds)
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


def _inserted(program: Program, events: Sequence[Event], is_beside: bool) -> Program:
    """The program with the new rows, each on the first stage of its device; exchanges have streams of their own where they
    run beside computes."""
    names = sorted({event.effect.name for event in events if event.effect.kind == Kind.COLLECTIVE})
    classes = [Exchange((FIRST_AXIS,), algorithm=ALGORITHMS[name]) for name in names]
    program, effects = with_effects(program, *(event.effect for event in events))
    own_streams = [name.lower() if is_beside else program.tables.streams[0] for name in names]
    program = _with_tables(program, own_streams, classes)
    t = program.tables
    # -1 where there is none: on the compute stream, and no exchange
    number = np.array([names.index(e.effect.name) if e.effect.name in names else -1 for e in events])
    streams = np.array([*map(t.streams.index, own_streams), 0])
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


def _with_tables(program: Program, streams: list[str], classes: list[Exchange]) -> Program:
    """The program with the exchanges' classes and streams, and what is due of the new computes."""
    t = program.tables
    # once a device: with several stages there it is due on the first of them, where the rows stand
    first = {hop.device: hop.stage for hop in reversed(t.paths[0])}
    stages = () if len(t.paths[0]) == program.axes[0].size else tuple(sorted(first.values()))
    return program.with_tables(
        exchanges=tuple(dict.fromkeys((*t.exchanges, *classes))),
        streams=tuple(dict.fromkeys((*t.streams, *streams))),
        duties=(*t.duties, *(Duty(effect.name, stages=stages) for effect in SPLIT_COMPUTES)),
    )


def _with_bytes(program: Program, options: SplitVocabulary) -> Program:
    """The program with bytes of the new values, where it has those of activations."""
    known = {row.kind: row for row in program.tables.value_bytes}
    if "activation" not in known:
        return program
    activation = known["activation"].by_index[:1]
    num_bytes = sum(activation)
    rows = -(-options.vocabulary_size // (program.axes[0].size * options.tp))
    softmax = options.logit_bytes * rows / options.cp + (
        2 * num_bytes if options.algorithm == "one_barrier" else 0.0
    )
    normalizer = LOSS_EXCHANGES * options.logit_bytes / options.cp
    sizes = dict.fromkeys(KINDS, activation) | {"softmax": (softmax,), "normalizer": (normalizer,)}
    added = tuple(ValueBytes(kind, size, per_token=True) for kind, size in sizes.items())
    return program.with_tables(value_bytes=(*program.tables.value_bytes, *added))
