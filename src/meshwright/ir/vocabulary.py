"""`Vocabulary`: the names and kinds of values that a program is written in: the core's, and what its slots bring."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.ir.table import Duty, Effect, ValueKind
from meshwright.specs.error import ProgramError

WORD = r"[A-Za-z][A-Za-z_]*"  # of a name, so that a program's text tells it from the numbers beside it


class Name(NamedTuple):
    """What a name means: its default effect, and ``per``: what it must occur once for (`Duty`), or empty for moves, which
    may repeat."""

    effect: Effect
    per: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """What names and kinds of values mean, and ``owners``: who has handlers of the names beyond the core's, a published
    system by its name, or a module by dotted name or file. Two vocabularies may use one name for different things, in two
    programs; in one they are refused.
    """

    names: Mapping[str, Name] = field(default_factory=dict)
    value_kinds: Mapping[str, ValueKind] = field(default_factory=dict)
    owners: tuple[str, ...] = ()

    @staticmethod
    def of(*words: Name | ValueKind, owner: str = "") -> Vocabulary:
        """Of what somebody declares. Raises ProgramError for a name that a text cannot hold, or that means two things."""
        names = _joined("name", ((word.effect.name, word) for word in words if isinstance(word, Name)))
        unreadable = [name for name in names if not re.fullmatch(WORD, name)]
        if unreadable:
            raise ProgramError(
                f"a program's text cannot hold the name {unreadable[0]!r}; use letters and _, a letter first"
            )
        kinds = _joined("value kind", ((word.name, word) for word in words if isinstance(word, ValueKind)))
        return Vocabulary(names, kinds, (owner,) if owner else ())

    def __or__(self, other: Vocabulary) -> Vocabulary:
        """Both together. Raises ProgramError where they say the same name differently."""
        return Vocabulary(
            _joined("name", (*self.names.items(), *other.names.items())),
            _joined("value kind", (*self.value_kinds.items(), *other.value_kinds.items())),
            tuple(dict.fromkeys((*self.owners, *other.owners))),
        )

    def duties_of(self, names: Iterable[str]) -> tuple[Duty, ...]:
        """What must happen once of what has these names, by name."""
        known = [name for name in sorted(names) if name in self.names and self.names[name].per]
        return tuple(Duty(name, self.names[name].per) for name in known)

    def kinds_of(self, effects: Iterable[Effect], given: Iterable[ValueKind] = ()) -> tuple[ValueKind, ...]:
        """The value kinds that effects touch, in the order in which they do: those given, and of the vocabulary the rest.

        Raises ProgramError for a kind that nobody has declared.
        """
        known = {**self.value_kinds, **{kind.name: kind for kind in given}}
        touched: dict[str, str] = {}
        for effect in effects:
            for pattern in (*effect.reads, *effect.writes):
                touched.setdefault(pattern.kind, effect.name)
        for kind, name in touched.items():
            if kind not in known:
                raise ProgramError(
                    f"{name} touches values of kind {kind!r}, which nobody declared; declare it in the program's "
                    f"vocabulary (Vocabulary.of, Program.with_vocabulary) or give it in value_kinds"
                )
        return tuple(known[kind] for kind in touched)


def _joined(what: str, words: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """By name. Raises ProgramError where one means two things."""
    found: dict[str, Any] = {}
    for name, meaning in words:
        if found.setdefault(name, meaning) != meaning:
            raise ProgramError(
                f"the {what} {name!r} means two things in one program: {found[name]} and {meaning}; choose another name"
            )
    return found
