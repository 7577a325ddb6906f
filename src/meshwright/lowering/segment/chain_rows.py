"""The rows that a compute of a stage becomes: its chain forward, or transposed, with the values that go between.

Backward is derived: reversed, a segment's F is its B, and an exchange its transpose. Of every value there is one gradient;
where an exchange has no transpose (all have the sum, and its gradient), that of what it delivers is that of what it read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.core_vocabulary import (
    GRADIENTS,
    INPUT,
    INPUT_GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PENDING,
    SAVED,
    R,
)
from meshwright.ir.layout import dual
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.lowering.segment.part_rows import in_turns, of_parts
from meshwright.lowering.segment.relay_rows import NAMES, RelayRows, relay_duties, relay_kinds
from meshwright.stage.chain import chain as nouns
from meshwright.stage.chain.chain import (
    ALIASES,
    GRADIENT,
    WITHOUT_GRADIENT,
    Chain,
    Delivery,
    Relay,
    Segment,
    Value,
)
from meshwright.stage.relay.rounds import AGAIN

# Algorithm of a chain -> name of its rows, and algorithm by which they are priced and executed.
ROWS = {
    "all_gather": ("ALL_GATHER", "all_gather"),
    "collect": ("ALL_GATHER", "all_gather"),
    "reduce_scatter": ("REDUCE_SCATTER", "reduce_scatter"),
    "all_reduce": ("ALL_REDUCE", "all_reduce"),
    "maximum": ("MAXIMUM", "all_reduce"),
    "all_to_all": ("ALL_TO_ALL", "all_to_all"),
    "routed": ("ROUTE", "all_to_all"),
    "choices": ("CHOICES", "all_to_all"),
    "counts": ("COUNTS", "all_to_all"),
    "gather_rows": ("GATHER_ROWS", "all_gather"),
    "gather_choices": ("GATHER_CHOICES", "all_gather"),
    "scatter_rows": ("SCATTER_ROWS", "reduce_scatter"),
    "gather_counts": ("GATHER_COUNTS", "all_gather"),
    "gather_chosen": ("GATHER_CHOSEN", "all_gather"),
}
GATHERS = (
    "ALL_GATHER",
    "GATHER_ROWS",
    "GATHER_CHOICES",
    "GATHER_COUNTS",
    "GATHER_CHOSEN",
)  # their bytes are those of what they deliver


@dataclass(frozen=True)
class ChainRows:
    """Of a stage with this chain. ``trains``: of every segment, whether any parameter of it does. ``num_parts``: into so many
    parts each microbatch is cut (`part_rows`)."""

    chain: Chain
    trains: tuple[bool, ...]
    num_parts: int = 1

    def with_steps(self, num_steps: int) -> ChainRows:
        """The same with relays of so many steps."""
        return replace(self, chain=self.chain.with_steps(num_steps))

    def of(self, effect: Effect) -> tuple[ChainRow, ...]:
        """What a compute of the stage becomes, in order."""
        rows = self._of_part(effect)
        if self.num_parts == 1:
            return rows
        return tuple(in_turns(effect, rows, self.num_parts, self.chain.segments))

    def _of_part(self, effect: Effect) -> tuple[ChainRow, ...]:
        """Of one part, or of a microbatch that is not cut."""
        if effect.name in ("F", "R"):
            return tuple(self._forward(effect))
        if effect.name == "W":
            places = [n for n, trains in enumerate(self.trains) if trains]
            return tuple(ChainRow(number, effect) for number in reversed(places))
        return tuple(self._backward(effect))

    def _forward(self, effect: Effect) -> Iterator[ChainRow]:
        yield from (self._moved(each) for each in self.chain.behind(-1))
        rest_read = tuple(p for p in effect.reads if p != INPUT)
        rest_made = tuple(p for p in effect.writes if p != OUTPUT)
        for number, segment in enumerate(self.chain.segments):
            at = {
                Value(name, number): self._forward_at(Value(name, number), number) for name in segment.writes
            }
            made = [
                p._replace(layout=self._given_layout(value))
                for value, p in at.items()
                if p != OUTPUT or OUTPUT in effect.writes
            ]
            kept = tuple(p for p in rest_made if p != SAVED or number not in self.chain.recomputed)
            done = effect._replace(reads=(*self._reads(number), *rest_read), writes=(*made, *kept))
            yield from self._forward_rows(number, done)
            behind = (each for each in self.chain.behind(number) if each.move.algorithm not in ALIASES)
            yield from (self._moved(each) for each in behind)

    def _backward(self, effect: Effect) -> Iterator[ChainRow]:
        """What is fetched again is fetched beside the backward before it that gets such a thing, too: only the
        first one waits for it. What a product did not keep of a recomputed segment that one makes again before."""
        order = self.chain.backward_order
        again = {each: found for each in order if isinstance(each, int) and (found := self._again(each))}
        ahead = dict(itertools.pairwise(again))
        made: set[int] = set()
        yield from self._fetched(again, next(iter(again), -1), made)
        for each in order:
            if isinstance(each, int):
                yield from self._fetched(again, ahead.get(each, -1), made)
                for maker in (each, *(v.maker for n, v in self.chain.remade.items() if n == each)):
                    yield from self._made_again(maker, made)
                done = self._backward_effect(effect, each, again.get(each, []))
                relay = self.chain.segments[each].relay
                if relay is None:
                    yield ChainRow(each, done)
                else:
                    yield from self._relay_rows(each, relay).backward(done)
            elif each.move.transpose:
                yield self._moved_back(each)

    def _forward_rows(self, number: int, done: Effect) -> Iterator[ChainRow]:
        """A segment's forward, the first time or again."""
        relay = self.chain.segments[number].relay
        if relay is None:
            yield ChainRow(number, done)
        else:
            yield from self._relay_rows(number, relay).forward(done)

    def _relay_rows(self, number: int, relay: Relay) -> RelayRows:
        (made,) = self.chain.segments[number].write_layouts
        return RelayRows(number, relay, tuple(self._reads(number)), made)

    def _fetched(
        self, again: Mapping[int, list[Delivery]], number: int, made: set[int]
    ) -> Iterator[ChainRow]:
        if number in again and number in self.chain.remade:
            yield from self._made_again(self.chain.remade[number].maker, made)
        yield from (self._moved_again(each, number) for each in again.get(number, ()))

    def _made_again(self, number: int, made: set[int]) -> Iterator[ChainRow]:
        """R of a recomputed segment, unless it is among those `made`."""
        if number in self.chain.recomputed and number not in made:
            made.add(number)
            yield from self._forward_rows(number, self._recomputed_effect(number))

    def _again(self, number: int) -> list[Delivery]:
        return [each for each in self._delivered_to(self.chain.segments[number]) if each.move.is_again]

    def _recomputed_effect(self, number: int) -> Effect:
        """R: what its F read, for what its F did not keep; what others read of it they have, but for products that keep
        nothing."""
        found = dict.fromkeys(value for value in self.chain.remade.values() if value.maker == number)
        writes = (Pattern(value.name + AGAIN, layout=self.chain.layouts[value]) for value in found)
        rest = (p for p in R.reads if p != INPUT)
        return R._replace(reads=(*self._reads(number), *rest), writes=(*writes, *R.writes))

    def _reads(self, number: int) -> Iterator[Pattern]:
        """What the forward of a segment reads of others."""
        segment = self.chain.segments[number]
        for value, how in zip(segment.reads, segment.read_layouts, strict=True):
            yield self._forward_at(value, number)._replace(layout=how)

    def _backward_effect(self, effect: Effect, number: int, again: list[Delivery]) -> Effect:
        segment = self.chain.segments[number]
        made = zip(segment.writes, segment.write_layouts, strict=True)
        given = [(Value(name, number), how) for name, how in made if name not in WITHOUT_GRADIENT]
        needs = dict(zip(segment.reads, segment.read_layouts, strict=True))
        taken = [value for value in segment.reads if value.name not in WITHOUT_GRADIENT]
        own = () if self.trains[number] else (GRADIENTS, PENDING)
        reads = (
            SAVED,
            *(self._gradient_at(value, number)._replace(layout=dual(how)) for value, how in given),
            *(Pattern(each.move.write + AGAIN, layout=needs[each.write]) for each in again),
            *(self._remade_at(number) if not again else ()),
            *(p for p in effect.reads if p not in (SAVED, OUTPUT_GRADIENT)),
        )
        writes = (
            *(
                self._gradient_at(value, number)._replace(
                    layout=dual(self._taken_layout(value, needs[value]))
                )
                for value in taken
            ),
            *(p for p in effect.writes if p != INPUT_GRADIENT and p not in own),
        )
        return effect._replace(reads=reads, writes=writes)

    def _remade_at(self, number: int) -> Iterator[Pattern]:
        """What a product that kept nothing reads again of the recomputed segment itself."""
        if number in self.chain.remade:
            value, (layout, *_) = self.chain.remade[number], self.chain.segments[number].read_layouts
            yield Pattern(value.name + AGAIN, offset=value.maker - number, layout=layout)

    def _given_layout(self, value: Value) -> str:
        """How a segment leaves what it made: where it gives its part itself, divided."""
        for each in self.chain.deliveries:
            if each.read == value and each.move.algorithm == "share":
                return self.chain.layouts[each.write]
        return self.chain.layouts[value]

    def _taken_layout(self, value: Value, needed: str) -> str:
        """That of what a segment gives the gradient of: of what was collected, its own part."""
        for each in self.chain.deliveries:
            if each.write == value and each.move.algorithm == "collect":
                return self._read_layout(each)
        return needed

    def _read_layout(self, each: Delivery) -> str:
        return each.layout(self.chain.layouts[each.read], is_write=False)

    def _moved(self, each: Delivery) -> ChainRow:
        return self._delivered(each, each.move.write, max(0, each.behind))

    def _moved_again(self, each: Delivery, at: int) -> ChainRow:
        is_remade = self.chain.remade.get(at) == each.read
        return self._delivered(each, each.move.write + AGAIN, at, is_remade=is_remade)

    def _delivered(self, each: Delivery, kind: str, at: int, *, is_remade: bool = False) -> ChainRow:
        given = self._forward_at(each.read, at)
        if is_remade:
            given = Pattern(each.read.name + AGAIN, offset=each.read.maker - at)
        read = given._replace(layout=self._read_layout(each))
        write = Pattern(kind, layout=self.chain.layouts[each.write])
        return self._row(each, each.move.algorithm, read, write, at, each.sizes)

    def _moved_back(self, each: Delivery) -> ChainRow:
        at = max(0, each.behind)
        given = OUTPUT_GRADIENT if each.move.algorithm == "share" else self._gradient_at(each.write, at)
        taken = (
            Pattern(each.read.name + GRADIENT)
            if each.move.algorithm == "share"
            else self._gradient_at(each.read, at)
        )
        given = given._replace(layout=dual(self.chain.layouts[each.write]))
        taken = taken._replace(layout=dual(self._read_layout(each)))
        # what came goes back: as many rows to every device as came from it
        return self._row(each, each.move.transpose, given, taken, at, each.sizes[::-1])

    def _row(
        self,
        each: Delivery,
        algorithm: str,
        read: Pattern,
        write: Pattern,
        at: int,
        sizes: Sequence[Value] = (),
    ) -> ChainRow:
        name, algorithm = ROWS[algorithm]
        reads = (read, *(self._forward_at(size, at) for size in sizes))
        effect = Effect(Kind.COLLECTIVE, name, reads, (write,), write if name in GATHERS else None)
        return ChainRow(at, effect, Exchange(each.move.axes, algorithm=algorithm))

    def _delivered_to(self, segment: Segment) -> list[Delivery]:
        return [self._delivery_of[value] for value in segment.reads if value in self._delivery_of]

    @cached_property
    def _delivery_of(self) -> dict[Value, Delivery]:
        """The exchange that delivers each value, where one does."""
        return {each.write: each for each in self.chain.deliveries}

    def _forward_at(self, value: Value, at: int) -> Pattern:
        """Where a value is, seen from segment number `at`."""
        if value.name == nouns.INPUT:
            return INPUT
        alias = self._aliases.get(value)
        if alias is not None:
            return alias if isinstance(alias, Pattern) else self._forward_at(alias, at)
        return OUTPUT if value.name == nouns.OUTPUT else Pattern(value.name, offset=value.maker - at)

    @cached_property
    def _aliases(self) -> dict[Value, Value | Pattern]:
        """Values that no row delivers: what is entered is what it was; what is shared goes out as the maker cuts it."""
        found: dict[Value, Value | Pattern] = {}
        for each in self.chain.deliveries:
            if each.move.algorithm == "enter":
                found[each.write] = each.read
            elif each.move.algorithm == "share":
                found[each.read] = OUTPUT
        return found

    def _gradient_at(self, value: Value, at: int) -> Pattern:
        """Where its gradient is."""
        if value.name == nouns.INPUT:
            return INPUT_GRADIENT
        if value.name == nouns.OUTPUT:
            return OUTPUT_GRADIENT
        found = self._delivery_of.get(value)
        if found is not None and not found.move.transpose:
            return self._gradient_at(found.read, at)
        return Pattern(value.name + GRADIENT, offset=value.maker - at)

    @property
    def kinds(self) -> dict[str, ValueKind]:
        """Of all values between segments, and of their gradients, which add up where several read a value."""
        names = {name for segment in self.chain.segments for name in segment.writes} - {nouns.OUTPUT}
        names |= {each.move.write for each in self.chain.deliveries} - {nouns.OUTPUT}
        several = {value.name for value, count in self.chain.num_readers.items() if count > 1}
        several |= {name for segment in self.chain.segments for name in segment.earlier}
        kinds = [ValueKind(name) for name in names]
        kinds += [ValueKind(name + GRADIENT, accumulates=name in several) for name in names]
        kinds += [ValueKind(each.move.write + AGAIN) for each in self.chain.deliveries if each.move.is_again]
        kinds += [ValueKind(value.name + AGAIN) for value in self.chain.remade.values()]
        of_relays = (kind for relay in self._relays for kind in relay_kinds(relay.rounds))
        kinds += [kind._replace(ring=kind.ring * self.num_parts) for kind in of_relays]
        return {kind.name: kind for kind in kinds}

    @property
    def _relays(self) -> list[Relay]:
        return [segment.relay for segment in self.chain.segments if segment.relay is not None]

    @property
    def duties(self) -> tuple[Duty, ...]:
        """Of the steps of its relays."""
        found = (of_parts(duty, self.num_parts) for relay in self._relays for duty in relay_duties(relay))
        return tuple(dict.fromkeys(found))


# What chains say beyond the core: names of exchanges, whose patterns each row brings.
WORDS = Vocabulary.of(
    *(Name(Effect(Kind.COLLECTIVE, name)) for name in dict.fromkeys(n for n, _ in ROWS.values())),
    *NAMES,
)
