"""Chain: the steps of a stage and the exchanges between them, cut into segments; which values go from one to another.

A *step* is a few operators that a model runs one behind the other (a norm, the products of an MLP). An *exchange* moves
what a step made. A *segment* is a run of steps between two exchanges: what goes from step to step within it is its own
affair, what leaves it is a value of the program. A value is numbered by the segment that makes it; what an exchange
delivers has a name of its own, so that an exchange left out is a read of what nobody wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from meshwright.ir.layout import COPIED, ENTER, MAPS, SPLIT, layout_text, layouts_of, split
from meshwright.specs.error import ProgramError
from meshwright.stage.relay.rounds import RING, Rounds

INPUT, OUTPUT = "input", "output"  # of a stage: what the one before it sends, and what the one behind it gets
LOSS = "loss"  # made by the last segment of all, and counted, not sent
# Layouts of what is split, by what each device has its part of.
BY_TOKENS, BY_HEADS, BY_HIDDEN, BY_INNER, BY_VOCABULARY, BY_EXPERTS = map(
    split, ("tokens", "heads", "hidden", "inner", "vocabulary", "experts")
)
ENDS = -1  # the block of steps that belong to none

# Forward algorithm -> that of its transpose, by which gradients go back; "" is no exchange (all have it, or take their part).
TRANSPOSES: Mapping[str, str] = {
    "all_gather": "reduce_scatter",  # split -> shared
    "reduce_scatter": "all_gather",  # partial -> split
    "all_reduce": "",  # partial -> copied
    "enter": "all_reduce",  # copied -> shared: every device does another part with it
    "all_to_all": "all_to_all",  # split along one dimension -> split along another
    "routed": "routed",  # rows go where their counts say
    "gather_rows": "scatter_rows",  # split -> shared: all members' rows, as many as each has
    "scatter_rows": "gather_rows",  # partial -> split: each gets the sums of its own rows
    "collect": "",  # split -> copied: all do the same with the whole
    "share": "collect",  # copied -> split: each gives its part
    "maximum": "",  # of numbers without gradient
    "counts": "",
    "gather_counts": "",
    "choices": "",  # numbers of experts beside rows, as many as these
    "gather_choices": "",
    "gather_chosen": "",  # where the tokens of all go, as many numbers of each
}
# Forward algorithm -> how what it reads lies along its axes, and what it delivers; of what is split each exchange says the
# dimension.
LAYOUTS: Mapping[str, tuple[str, str]] = {
    **{name: MAPS[name][0] for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")},
    "enter": MAPS[ENTER][0],
    **dict.fromkeys(("routed", "counts", "choices"), MAPS["all_to_all"][0]),
    "collect": (SPLIT, COPIED),
    "share": (COPIED, SPLIT),
    "maximum": MAPS["all_reduce"][0],
    **dict.fromkeys(
        ("gather_rows", "gather_counts", "gather_choices", "gather_chosen"), MAPS["all_gather"][0]
    ),
    "scatter_rows": MAPS["reduce_scatter"][0],
}
GRADIENT = "_gradient"  # behind the name of a value: its gradient; AGAIN: it, fetched once more
ALIASES = ("enter", "share")  # nothing is sent forward: what it delivers is what it reads
# Values that no gradient goes through.
WITHOUT_GRADIENT = frozenset(
    (
        *("maximum", "largest", "order", "near_order"),
        *("counts", "arrived", "all_counts", "near_counts", "far_counts"),
        *("choices", "received_choices", "all_choices", "near_choices", "far_choices"),
        *("chosen", "all_chosen"),
    )
)


class ChainStep(NamedTuple):
    """What a model runs of one block (or of `ENDS`): values it reads and makes, by name. ``of``: the step whose result it
    takes up, and its block, such as the MLP of the block before. ``read_layouts``, ``write_layouts``: how it needs and makes
    each of these values (`step_layout`); empty: nothing is said. ``earlier``: of its reads those that it has of all token
    parts before its own, too (keys and values of chunks of a sequence)."""

    name: str
    block: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    of: tuple[str, int] = ("", ENDS)
    read_layouts: tuple[str, ...] = ()
    write_layouts: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


class Moved(NamedTuple):
    """An exchange of value ``read`` along axes, which delivers ``write``; ``algorithm`` is a key of `TRANSPOSES`.

    ``dim``: of the tensor, along which it is divided. ``sizes``: values that say how much of it goes to, and comes from,
    each member (routed). ``is_again``: the backward does not keep what came, it is fetched once more. ``split_by``: how what
    it reads, and what it delivers, is split, where it is.
    """

    algorithm: str
    axes: tuple[str, ...]
    read: str
    write: str
    dim: int = 1
    sizes: tuple[str, ...] = ()
    is_again: bool = False
    split_by: tuple[str, str] = (BY_TOKENS, BY_TOKENS)

    @property
    def transpose(self) -> str:
        """The algorithm by which gradients go back, "" where none do."""
        return TRANSPOSES[self.algorithm]


class Relay(NamedTuple):
    """A step one of whose operands travels from device to device along axes, numbered as one: it runs ``num_steps`` times,
    each time with the operand of another device; ``rounds`` say which one, and what becomes of what the steps make."""

    step: ChainStep
    axes: tuple[str, ...]
    num_steps: int
    rounds: Rounds = RING


class Value(NamedTuple):
    """What goes from one segment or exchange to another: its name, and the number of the segment that made it, or behind
    which it was delivered; -1: it is the stage's input."""

    name: str
    maker: int


class Delivery(NamedTuple):
    """An exchange in its place: behind segment number ``behind`` (-1: in front of all), with what it reads."""

    move: Moved
    behind: int
    read: Value
    sizes: tuple[Value, ...] = ()

    @property
    def write(self) -> Value:
        """What it delivers."""
        return Value(self.move.write, max(0, self.behind))

    def layout(self, of_read: str, *, is_write: bool) -> str:
        """How what it reads, or delivers, lies: along its axes as its algorithm has it, along others as the value does."""
        along = LAYOUTS.get(self.move.algorithm)
        if along is None:
            return of_read
        how = self.move.split_by[is_write] if along[is_write] == SPLIT else along[is_write]
        return layout_text({**layouts_of(of_read), **dict.fromkeys(self.move.axes, how)})


class Segment(NamedTuple):
    """A run of steps: what it reads, in the order of its steps, and names of what others read of it; how they lie. ``relay``:
    its only step is one."""

    steps: tuple[ChainStep, ...]
    reads: tuple[Value, ...]
    writes: tuple[str, ...]
    relay: Relay | None = None
    read_layouts: tuple[str, ...] = ()
    write_layouts: tuple[str, ...] = ()

    def with_steps(self, num_steps: int) -> Segment:
        """It, where it is a relay with so many steps."""
        return self if self.relay is None else self._replace(relay=self.relay._replace(num_steps=num_steps))

    @property
    def earlier(self) -> frozenset[str]:
        """Of what it reads, what it has of all token parts before its own, too."""
        return frozenset(name for step in self.steps for name in step.earlier)

    @property
    def name(self) -> str:
        """Its steps and their blocks, for people: "add.2+mlp_norm.2"."""
        return "+".join(
            step.name if step.block == ENDS else f"{step.name}.{step.block}" for step in self.steps
        )


@dataclass(frozen=True)
class Chain:
    """Segments and exchanges of a stage, in the order of its forward. ``recomputed``: numbers of the segments whose forward
    keeps nothing: it runs again before their backward. ``given``: how the residual stream lies that the stage gets, where no
    exchange says otherwise. ``products``: numbers of the segments that do not keep what they read: their backward has it
    again where a recomputed segment makes it.
    """

    segments: tuple[Segment, ...]
    deliveries: tuple[Delivery, ...]
    recomputed: frozenset[int] = frozenset()
    given: str = ""
    products: frozenset[int] = frozenset()

    def recomputing(self, steps: frozenset[str], products: frozenset[str] = frozenset()) -> Chain:
        """The chain of which the segments with these steps are recomputed; `products`: steps that keep nothing either."""
        names = [{step.name for step in segment.steps} for segment in self.segments]

        def having(some: frozenset[str]) -> frozenset[int]:
            return frozenset(n for n, own in enumerate(names) if own & some)

        return replace(self, recomputed=having(steps), products=having(products))

    def with_steps(self, num_steps: int) -> Chain:
        """The chain whose relays have so many steps: among so many devices an operand travels."""
        if all(each.relay is None for each in self.segments):
            return self
        return replace(self, segments=tuple(each.with_steps(num_steps) for each in self.segments))

    @cached_property
    def remade(self) -> Mapping[int, Value]:
        """Of segments that do not keep what they read, what a recomputed segment makes of it once more."""
        deliveries = {each.write: each for each in self.deliveries}
        found = {}
        for number in sorted(self.products):
            value = self.segments[number].reads[0]
            each = deliveries.get(value)
            if each is not None and (each.move.algorithm == "enter" or each.move.is_again):
                value = each.read
            elif each is not None:  # what came is kept
                continue
            if value.maker in self.recomputed and value.name in self.segments[value.maker].writes:
                found[number] = value
        return found

    def behind(self, number: int) -> tuple[Delivery, ...]:
        """Exchanges right behind a segment; -1: in front of all."""
        return tuple(each for each in self.deliveries if each.behind == number)

    @cached_property
    def backward_order(self) -> tuple[int | Delivery, ...]:
        """Numbers of segments, and exchanges, in the order of their backwards: behind all that read what they give, exchanges
        as early as can be. Of several segments that could be next it is the one whose gradients were exchanged longest ago,
        or not at all: what the others wait for runs beside it. Else the last of the chain."""
        return tuple(_backward_order(self))

    @cached_property
    def layouts(self) -> Mapping[Value, str]:
        """How every value lies that a segment makes or an exchange delivers."""
        found = {Value(INPUT, -1): self.given}
        for number in range(-1, len(self.segments)):
            if number >= 0:
                own = self.segments[number]
                found |= {
                    Value(name, number): how for name, how in zip(own.writes, own.write_layouts, strict=True)
                }
            for each in self.behind(number):
                found[each.write] = each.layout(found[each.read], is_write=True)
        return found

    @property
    def num_readers(self) -> Mapping[Value, int]:
        """How many segments and exchanges read each value."""
        found: dict[Value, int] = {}
        for value in [v for s in self.segments for v in s.reads] + [d.read for d in self.deliveries]:
            found[value] = found.get(value, 0) + 1
        return found


def _backward_order(chain: Chain) -> Iterator[int | Delivery]:
    """`Chain.backward_order`; exchanges are numbered behind the segments here."""
    num, waiting = len(chain.segments), Counter[int]()
    made = {Value(name, n): n for n, segment in enumerate(chain.segments) for name in segment.writes}
    made |= {each.write: num + n for n, each in enumerate(chain.deliveries)}
    reads = [each.reads for each in chain.segments] + [(each.read,) for each in chain.deliveries]
    makers = [[made[value] for value in own if value in made] for own in reads]
    waiting.update(maker for own in makers for maker in own)
    latest = [-1] * len(makers)  # of the exchanges by which its gradients come
    ready = [n for n in range(len(makers)) if not waiting[n]]
    num_exchanged = 0
    while ready:
        # exchanges have no use for a device's time: they start as soon as they can
        now = min(ready, key=lambda n: (n < num, latest[n] if n < num else 0, -n))
        ready.remove(now)
        number = -1 if now < num else latest[now]
        if now >= num and chain.deliveries[now - num].move.transpose:
            number = num_exchanged = num_exchanged + 1
        yield now if now < num else chain.deliveries[now - num]
        for maker in makers[now]:
            latest[maker], waiting[maker] = max(latest[maker], number), waiting[maker] - 1
            if not waiting[maker]:
                ready.append(maker)


def chain_of(
    items: Iterable[ChainStep | Moved | Relay],
    cuts: frozenset[str] = frozenset(),
    *,
    apart: frozenset[str] = frozenset(),
    given: str = "",
) -> Chain:
    """Steps and exchanges cut into segments, wherever an exchange is, around relays, around the steps whose names are `cuts`,
    between those that are `apart` and others, and in front of steps that read what other token parts made."""
    runs: list[list[ChainStep]] = []
    relays: dict[int, Relay] = {}
    moves: list[tuple[int, Moved]] = []
    is_open = False
    for item in items:
        if isinstance(item, Moved):
            moves.append((len(runs) - 1, item))
            is_open = False
        elif isinstance(item, Relay):
            relays[len(runs)] = item
            runs.append([item.step])
            is_open = False
        elif is_open and not (item.earlier or _is_cut(runs[-1][-1].name, item.name, cuts, apart)):
            runs[-1].append(item)
        else:
            runs.append([item])
            is_open = True
    return replace(_resolved(runs, moves, relays), given=given)


def _is_cut(before: str, behind: str, cuts: frozenset[str], apart: frozenset[str]) -> bool:
    """Does a segment end between two steps?"""
    return bool(cuts & {before, behind}) or (before in apart) != (behind in apart)


def _resolved(
    runs: Sequence[Sequence[ChainStep]], moves: Sequence[tuple[int, Moved]], relays: Mapping[int, Relay]
) -> Chain:
    """With the makers of all values, and of what a segment makes only what others read."""
    latest = {INPUT: Value(INPUT, -1)}
    deliveries: list[Delivery] = []

    def deliver(behind: int) -> None:
        for move in (move for place, move in moves if place == behind):
            made = Delivery(move, behind, latest[move.read], tuple(latest[name] for name in move.sizes))
            deliveries.append(made)
            latest[move.write] = made.write

    deliver(-1)
    reads: list[tuple[Value, ...]] = []
    for number, steps in enumerate(runs):
        reads.append(tuple(latest[name] for name in _read_names(steps)))
        latest |= {name: Value(name, number) for step in steps for name in step.writes}
        deliver(number)
    wanted = {value for own in reads for value in own} | {latest.get(OUTPUT, Value(OUTPUT, -1))}
    wanted |= {value for each in deliveries for value in (each.read, *each.sizes)}
    segments = tuple(
        _segment(
            tuple(steps), own,
            tuple(n for n in dict.fromkeys(n for s in steps for n in s.writes) if Value(n, number) in wanted),
            relays.get(number),
        )
        for number, (steps, own) in enumerate(zip(runs, reads, strict=True))
    )  # fmt: skip
    return Chain(segments, tuple(deliveries))


def _segment(
    steps: tuple[ChainStep, ...], reads: tuple[Value, ...], writes: tuple[str, ...], relay: Relay | None
) -> Segment:
    """With how its values lie. Raises ProgramError where a step needs what another of them makes in another layout: only what
    is read of other segments may have been exchanged, or be entered."""
    needs, made = dict[str, str](), dict[str, str]()
    for step in steps:
        for name, how in zip(step.reads, step.read_layouts or ("",) * len(step.reads), strict=True):
            has = made[name] if name in made else needs.setdefault(name, how)
            if has != how:
                raise ProgramError(
                    f"step {step.name} of block {step.block} reads {name} as {how}, and within its segment it is {has}",
                    next="yield the exchange between them, or cut the segment there",
                )
        made |= zip(step.writes, step.write_layouts or ("",) * len(step.writes), strict=True)
    layouts = tuple(needs[value.name] for value in reads), tuple(made[name] for name in writes)
    return Segment(steps, reads, writes, relay, *layouts)


def _read_names(steps: Iterable[ChainStep]) -> tuple[str, ...]:
    """What a run of steps reads that none of them has made before, each once."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for step in steps:
        found |= dict.fromkeys(name for name in step.reads if name not in made)
        made |= set(step.writes)
    return tuple(found)
