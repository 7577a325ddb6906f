"""SplitVocabulary: both vocabulary layers divided among all devices of a pipeline, as passes S and T of their own.

    LOOKUP  each device's rows of the embedding         SUM_INPUT         their sum, to the first stage
    S       each device's logits and local softmax      SHARE_OUTPUT      the last stage's output, to all
    T       what needs the whole softmax                SUM_SOFTMAX       maximum, sum and the target's logit
    SCATTER gradient of each device's embedding rows    SUM_OUTPUT_GRAD   of the partial input gradients, two barriers only
                                                        SHARE_INPUT_GRAD  the first stage's input gradient, to all

With one barrier S also makes both halves of the input gradient, before the softmax is known, and SUM_SOFTMAX sums them:
T makes the weight gradient only. With two, T makes both gradients and SUM_OUTPUT_GRAD follows (Yeung et al. 2024,
arXiv 2411.05288). Every exchange has a stream of its own, in the order of the microbatches at all ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Columns, Program
from meshwright.ir.replay import replay_program
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueBytes, ValueKind
from meshwright.ir.vocabulary import register_name, register_value_kind
from meshwright.lowering.order import FIRST_AXIS, with_effects
from meshwright.lowering.transfer import Transfers
from meshwright.specs.error import ProgramError

Algorithm = Literal["one_barrier", "two_barriers"]
# Microbatches that backwards wait longer, so that computes hide every barrier (arXiv 2411.05288: p + 1 and p + 2 alive).
DELAYS: dict[Algorithm, int] = {"one_barrier": 1, "two_barriers": 2}
# In units of a forward, for the order only: which compute runs when an output is ready.
TEXTBOOK_SECONDS = (("F", 1.0), ("R", 1.0), ("I", 1.0), ("W", 1.0), ("B", 2.0))
TOLERANCE = 1e-9  # of times that are sums of the same few numbers
LOSS_BYTES = 4.0  # of a logit: the softmax is in float32
NORMALIZER_BYTES = 3 * LOSS_BYTES  # maximum, sum and the target's logit of a token
ALGORITHMS = {
    "SUM_INPUT": "all_reduce", "SHARE_OUTPUT": "broadcast", "SUM_SOFTMAX": "all_reduce",
    "SUM_OUTPUT_GRAD": "all_reduce", "SHARE_INPUT_GRAD": "broadcast",
}  # fmt: skip
FORWARDS, BACKWARDS = ("F", "R"), ("B", "I")
KINDS = (
    *("output", "softmax", "normalizer", "output_part", "output_gradient"),
    *("input_part", "input", "input_gradient"),
)
for _kind in KINDS:
    register_value_kind(ValueKind(_kind, index="none"))


def _value(kind: str, when: str = "always") -> Pattern:
    return Pattern(kind, index="none", when=when)


_PARAMETERS, _GRADIENTS = Pattern("parameter", index="groups"), Pattern("weight_gradient", index="groups")


def _collective(name: str, read: str, moved: str, *writes: str) -> Effect:
    reads = (_value(read),) if read else ()
    return Effect(Kind.COLLECTIVE, name, reads, tuple(map(_value, writes)), _value(moved))


LOOKUP = Effect(Kind.COMPUTE, "LOOKUP", (_PARAMETERS,), (_value("input_part"),))
S = Effect(Kind.COMPUTE, "S", (_value("output"), _PARAMETERS), (_value("softmax"),))
T = Effect(Kind.COMPUTE, "T", (_value("output"), _value("softmax"), _value("normalizer")), (_GRADIENTS,))
T_WHOLE = T._replace(reads=(*T.reads, _PARAMETERS), writes=(_GRADIENTS, _value("output_part")))
SCATTER = Effect(Kind.COMPUTE, "SCATTER", (_value("input_gradient"),), (_GRADIENTS,))
SUM_INPUT = _collective("SUM_INPUT", "input_part", "input")
SHARE_OUTPUT = _collective("SHARE_OUTPUT", "", "output", "output")
SUM_SOFTMAX = _collective("SUM_SOFTMAX", "softmax", "normalizer", "normalizer")
SUM_OUTPUT_GRAD = _collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient")
SHARE_INPUT_GRAD = _collective("SHARE_INPUT_GRAD", "", "input_gradient", "input_gradient")
# what the device of the first or last stage does instead, and every device where there is one barrier
SUM_INPUT_HERE = _collective("SUM_INPUT", "input_part", "input", "input")
SHARE_OUTPUT_HERE = _collective("SHARE_OUTPUT", "output", "output", "output")
SUM_BOTH = _collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer")
SUM_BOTH_HERE = _collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer", "output_gradient")
SUM_OUTPUT_GRAD_HERE = _collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient", "output_gradient")
SHARE_INPUT_GRAD_HERE = _collective("SHARE_INPUT_GRAD", "input_gradient", "input_gradient", "input_gradient")

COMPUTES = (LOOKUP, S, T, SCATTER)
for _effect in COMPUTES:
    register_name(_effect, per="path")
for _effect in (SUM_INPUT, SHARE_OUTPUT, SUM_SOFTMAX, SUM_OUTPUT_GRAD, SHARE_INPUT_GRAD):
    register_name(_effect)


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
        program = delayed(program, DELAYS[self.algorithm])
        events = sorted(_Places(program, self).events(), key=lambda event: event[:5])
        return _with_bytes(_inserted(with_ends(program), events), self)


def delayed(program: Program, num_microbatches: int) -> Program:
    """The program with all that is no forward behind so many more microbatches of forwards of its device."""
    names = names_of(program)
    orders = []
    for low, high in zip(program.offsets[:-1].tolist(), program.offsets[1:].tolist(), strict=True):
        is_forward = names[low:high] == "F"
        before = np.cumsum(is_forward) - is_forward
        total = int(is_forward.sum())
        later = num_microbatches * total // max(1, len(program.tables.microbatches))
        place = np.where(is_forward, before, np.minimum(before + later, total))
        orders.append(low + np.lexsort((is_forward, place)))
    return program.reordered(np.concatenate(orders), program.offsets)


def with_ends(program: Program) -> Program:
    """The program whose first stage reads its input and whose last writes its output, and back: no tokens and no loss."""
    chosen = program.columns.effect
    for place, effect in enumerate(program.tables.effects):
        reads, writes = effect.reads, effect.writes
        if effect.name in FORWARDS:
            reads = (*reads, _value("input", "first"))
            writes = (*writes, _value("output", "last")) if effect.name == "F" else writes
        elif effect.name in BACKWARDS:
            reads = (*reads, _value("output_gradient", "last"))
            writes = (*writes, _value("input_gradient", "first"))
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
    program: Program, names: NDArray[Any], seconds: dict[str, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of every compute, with free messages and without the vocabulary."""
    sent = Transfers()(program)
    is_compute = sent.kinds == Kind.COMPUTE
    cost = np.zeros(sent.num_rows)
    cost[is_compute] = [seconds.get(name, 0.0) for name in names.tolist()]
    _, start, end = replay_program(sent, cost, np.zeros(sent.num_rows))
    return start[0][is_compute], end[0][is_compute]


def _inserted(program: Program, events: list[_Event]) -> Program:
    """The program with the new rows, each on the first stage of its device, and what is due of them."""
    program, _ = with_effects(program, *dict.fromkeys(event.effect for event in events))
    t = program.tables
    path, num_devices = t.paths[0], program.axes[0].size
    hop_of = {hop.device: place for place, hop in reversed(list(enumerate(path)))}
    names = sorted({event.effect.name for event in events if event.effect.kind == Kind.COLLECTIVE})
    per = "path" if len(path) == num_devices else "some"  # with several stages on a device: at most one of them
    program = program.with_tables(
        exchanges=(*t.exchanges, *(Exchange((FIRST_AXIS,), algorithm=ALGORITHMS[name]) for name in names)),
        streams=(*t.streams, *(name.lower() for name in names)),
        duties=(*t.duties, *(Duty(effect.name, per) for effect in COMPUTES)),
    )
    effects = [t.effects.index(event.effect) for event in events]
    number = np.array(
        [names.index(e.effect.name) if e.effect.kind == Kind.COLLECTIVE else -1 for e in events]
    )
    lists = np.array([event.device for event in events])
    hops = np.array([hop_of[event.device] for event in events])
    rows = Columns.of(
        len(events), effect=effects, stage=np.array([hop.stage for hop in path])[hops], hop=hops,
        microbatch=[event.microbatch for event in events],
        stream=np.where(number < 0, 0, number + len(t.streams)),
        exchange=np.where(number < 0, -1, number + len(t.exchanges)),
    )  # fmt: skip
    before = program.offsets[lists] + np.array([event.position for event in events])
    return program.inserted(before, lists, rows)


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
