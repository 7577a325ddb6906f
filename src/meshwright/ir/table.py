"""The nouns of a program's tables: kinds, patterns, effects, value kinds, works, exchanges, microbatches, groups, duties."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from meshwright.specs.operator import Operator


class Kind(IntEnum):
    """What an instruction is: a closed set. What it is *called* is an open one (`Vocabulary`)."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    COLLECTIVE = 3
    LOAD = 4
    STORE = 5
    COPY = 6
    CALL = 7

    @property
    def is_exchange(self) -> bool:
        """Does it join more than one device?"""
        return self in (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)


INDEX_MODES = ("hop", "stage", "groups", "group", "none", "place")
PART_MODES = ("zero", "row", "outer", "first", "until")
WHEN_MODES = ("always", "not_first", "not_last", "first", "last")
VALUE_INDICES = ("hop", "stage", "group", "none")
DUTY_PLACES = ("path", "stage", "group", "microbatch", "device", "some")


class Pattern(NamedTuple):
    """A value that a row reads or writes, relative to the row's own stage, hop, microbatch and part.

    ``index``: ``hop`` (the row's hop + offset), ``stage`` (its stage + offset), ``groups`` (every parameter group of its
    stage), ``group`` (the group at place ``part`` among those of its stage), ``place`` (the group at place ``offset``
    among those of its stage), ``none`` (0).
    ``part``: ``zero`` or ``row``; ``part_offset`` is added. Of a relay of ``steps`` steps, whose step s of token part p is
    part p * steps + s: ``outer`` is a row's token part (row's part // steps), ``first`` the first step of the token part
    that a row beside the relay has as its part (row's part * steps). ``until``: all parts from the first to the row's, each a
    value. ``age``: iterations back (reads only).
    ``when``: only on rows that are (not) the first or last hop of their microbatch's path.
    ``layout``: how the value lies along axes (`ir.layout`), such as ``tp:split cp:partial``: of a write what the row makes,
    of a read what it needs; of ``groups`` also one for each, divided by ``|``. What is not named is not said.
    ``microbatch``: of a microbatch so many behind the row's own: only what an exchange is paired by (`Effect.moves`) has one.
    """

    kind: str
    index: str = "hop"  # type: ignore[assignment]  # a field here, not tuple.index
    offset: int = 0
    part: str = "zero"
    part_offset: int = 0
    age: int = 0
    when: str = "always"
    layout: str = ""
    steps: int = 1
    microbatch: int = 0

    def __repr__(self) -> str:
        return said_text(self)

    @property
    def is_many(self) -> bool:
        """Does it name several values of a row?"""
        return self.index == "groups" or self.part == "until"


# Fields that a row of a table got later: left out of texts and hashes where they say nothing, so that those of programs
# which do not use them stay what they were.
LATER = {
    "Pattern": ("layout", "steps", "microbatch"), "Duty": ("stages",), "ValueBytes": ("by_part",),
    "ParameterGroup": ("partial", "scattered"),
}  # fmt: skip


def said(row: Any) -> tuple[Any, ...]:
    """The fields of a table's row, without the last of those in ``LATER`` that say nothing."""
    values, later = tuple(row), LATER.get(type(row).__name__, ())
    for name in reversed(later):
        if values[-1] != row._field_defaults[name]:
            break
        values = values[:-1]
    return values


def said_text(row: Any) -> str:
    """The row as Python writes it, of the fields that `said` leaves."""
    fields = zip(row._fields, said(row), strict=False)
    return f"{type(row).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"


class Effect(NamedTuple):
    """What rows of one name touch. ``moves``: the value an exchange is paired by (default: first read of a SEND or
    COLLECTIVE, first write of a RECEIVE)."""

    kind: Kind
    name: str
    reads: tuple[Pattern, ...] = ()
    writes: tuple[Pattern, ...] = ()
    moves: Pattern | None = None


class ValueKind(NamedTuple):
    """A kind of value: how it is indexed, whether it has a microbatch, survives the iteration, sums up, and where it lives.

    ``index``: ``hop`` | ``stage`` | ``group`` | ``none``. ``ring``: slots shared by all values of the kind on a device
    (0: every version has memory of its own).
    """

    name: str
    index: str = "hop"  # type: ignore[assignment]  # a field here, not tuple.index
    microbatch: bool = True
    carried: bool = False
    accumulates: bool = False
    tier: str = "device"
    ring: int = 0


class Work(NamedTuple):
    """What an instruction costs is asked once per distinct work and device class. ``share``: of a full stage (1/V for a
    chunk). ``operators``: the work in detail, where it is known. ``inner``: exchanges inside it, priced with it."""

    name: str
    tokens: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    flops: float = 0.0
    bytes: float = 0.0
    share: float = 1.0
    operators: tuple[Operator, ...] = ()
    inner: tuple[Inner, ...] = ()


class Inner(NamedTuple):
    """``count`` exchanges of ``bytes`` each inside a compute, among devices that all do the same (tensor, context and
    expert parallelism below the level of instructions). ``beside``: kind of the operators that they run beside; only
    what takes longer than these is added. Empty: computes wait for it. ``label`` is for people."""

    exchange: Exchange
    bytes: float
    count: int = 1  # type: ignore[assignment]  # a field here, not tuple.count
    beside: str = ""
    label: str = ""


# Beginnings of the algorithm's name of tokens that go to their experts, and back; behind stands how many experts a token
# has. Of the first it goes once to each of them, of the second once to each device that has any.
ROUTED, ROUTED_ONCE = "all_to_all.top", "all_to_all.once"
# End of the name of what is sent in parts by the kernels that compute beside it.
IN_PARTS = ".in_parts"


class Exchange(NamedTuple):
    """A class of exchanges, relative to the axes it does not run along (there all ends have the same coordinate).

    Point to point: ``ends = (source, target)`` coordinates along ``axes[0]``, or ``ends = None`` and a cyclic ``shift`` along
    `axes`, which are numbered as one, the first outermost; what it turns is turned along the first.
    Group: ``ends`` are the members along ``axes[0]``, or None for everybody along ``axes``.
    ``size``: name of a run-time size (`Size`); otherwise the bytes are those of the value moved.
    """

    axes: tuple[str, ...]
    ends: tuple[int, ...] | None = None
    shift: int = 0
    size: str = ""
    algorithm: str = ""
    dtype: str = ""


class Size(NamedTuple):
    """A size in bytes known only at run time: expected and maximum."""

    name: str
    expected: float
    max: float


class Microbatch(NamedTuple):
    """Tokens in it, its weight in the loss of the iteration (weights sum to one), and its path."""

    tokens: int
    weight: float
    path: int = 0


class Hop(NamedTuple):
    """One step of a path: which stage, on which coordinate of the first axis."""

    stage: int
    device: int


class ParameterGroup(NamedTuple):
    """Parameters that are reduced and stepped together: the stages that use them, bytes, axes on which they are copies.

    ``partial``: axes along which some of them are copies that read parts of one microbatch's values: each device has a term
    of their gradients, and what is divided along these axes is the rest of the group. ``scattered``: axes of its copies along
    which the gradients of every microbatch are scattered as they are made, so that a device keeps its shard of the sum.
    """

    name: str
    stages: tuple[int, ...]
    bytes: int = 0
    replicated: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    scattered: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return said_text(self)


class Duty(NamedTuple):
    """What must happen exactly once: ``name`` per ``path`` step of every microbatch, per ``stage``, ``group`` or ``device``;
    ``microbatch``: per microbatch and group whose gradients are scattered; ``some``: at most once per path step.

    ``order``: 1 where the parts have to run in rising order, -1 in falling order (they rewrite one value, such as the
    activations that go through layers), 0 where any order is the same.
    ``stages``: due on these only (empty: on all), so that a name may have other parts on other stages.
    """

    name: str
    per: str = "path"
    parts: int = 1
    order: int = 0
    stages: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return said_text(self)


class ValueBytes(NamedTuple):
    """Bytes of one value of ``kind``, by index (one number: the same for all); ``per_token`` scales with the microbatch.

    ``size``: name of a run-time size (`Size`), whose maximum is taken instead. ``by_part``: of each part its share of that
    (those behind the last as it; empty: each part has all).
    """

    kind: str
    by_index: tuple[float, ...] = ()
    per_token: bool = False
    size: str = ""
    by_part: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return said_text(self)
