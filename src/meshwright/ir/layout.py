"""How a value lies along an axis: split, partial, copied or shared; the dual of each, what exchanges map, their transposes.

    split    each device has a part of it                 copied  all have it, and do the same with it
    partial  each device has a term of a sum              shared  all have it, and each does another part with it

Of what is split a layout may say the dimension, ``split(tokens)``, and that parts are under way around the axis: of
``split(tokens)+2`` a device has the part of the device two before it. Who names no dimension splits by one of its own.

The gradient of a value has the dual layout: split-split, partial-copied, copied-copied, shared-partial. Reversed, an
exchange becomes its transpose, which maps the duals. One exchange has no row: a value that is copied may be read as shared
("enter"), and its transpose is an all-reduce of the gradient.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import NamedTuple

from meshwright.ir.table import Exchange
from meshwright.specs.error import ProgramError

SPLIT, PARTIAL, COPIED, SHARED = LAYOUTS = ("split", "partial", "copied", "shared")
DUAL = {SPLIT: SPLIT, PARTIAL: COPIED, COPIED: COPIED, SHARED: PARTIAL}
ENTER = ""  # the exchange without a row: copied is read as shared
SEND = "send"  # of point-to-point exchanges, which name no algorithm
# What an exchange makes of what it takes, along each of its axes, by its operation.
MAPS: dict[str, tuple[tuple[str, str], ...]] = {
    # what is gathered is shared where it was made for a part of the work, and copied where it is the gradient of terms
    "all_gather": ((SPLIT, SHARED), (SPLIT, COPIED)),
    "reduce_scatter": ((PARTIAL, SPLIT),),
    "all_reduce": ((PARTIAL, COPIED),),
    ENTER: ((COPIED, SHARED),),
    "all_to_all": ((SPLIT, SPLIT),),
    SEND: ((SPLIT, SPLIT),),
    # sums of gradients: along the axes of those that share the optimizer's state each keeps its shard, along others the sum
    "all_reduce.two_level": ((PARTIAL, COPIED), (PARTIAL, SPLIT)),
    # terms of a sum are gathered, and all add them in one order
    "all_gather.canonical": ((PARTIAL, COPIED),),
}
# None: the gradient is there already, copied. The routed all-to-all's goes back with (received, sent) for (sent, received).
TRANSPOSES: dict[str, str | None] = {
    "all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_reduce": None, ENTER: "all_reduce",
    "all_to_all": "all_to_all", SEND: SEND,
}  # fmt: skip
_LAYOUT = re.compile(r"(partial|copied|shared)|(split)(?:\(([a-z_]+)\))?(?:\+([0-9]+))?")
ALLOWED = f"{', '.join(LAYOUTS)}; of what is split also split(DIMENSION), and +TURN behind it"
_SPELLINGS = {"ring": "all_reduce", "send_receive": SEND, "point_to_point": SEND}


STAYS = 0, sys.maxsize  # of a message that does not go around


class Layout(NamedTuple):
    """A layout along one axis: one of ``LAYOUTS``, and, of what is split, the dimension ("" where none is said), and by how
    many devices the parts are turned."""

    kind: str
    dimension: str = ""
    turn: int = 0

    def __str__(self) -> str:
        return self.kind + f"({self.dimension})" * bool(self.dimension) + f"+{self.turn}" * bool(self.turn)

    def turned(self, by: int, size: int) -> Layout:
        """Sent on by so many devices along an axis of this size; turned once around it is where it was."""
        return self._replace(turn=(self.turn + by) % size)


@cache
def layout_of(word: str) -> Layout:
    """What a word such as ``split(tokens)+2`` says. Raises ProgramError for one that says no layout."""
    found = _LAYOUT.fullmatch(word)
    if found is None:
        raise ProgramError(f"{word!r} is no layout", allowed=ALLOWED)
    return Layout(found[1] or found[2], found[3] or "", int(found[4] or 0))


def split(dimension: str) -> str:
    """The layout of what is split along a dimension, such as ``split(tokens)``."""
    return str(Layout(SPLIT, dimension))


def turned(text: str, axis: str, by: int, size: int) -> str:
    """The text of layouts of what was sent on by so many devices along an axis of this size that it is split along."""
    found = layouts_of(text)
    return (
        layout_text({**found, axis: str(layout_of(found[axis]).turned(by, size))}) if axis in found else text
    )


@cache
def layouts_of(text: str) -> dict[str, str]:
    """Layout by axis of a pattern's text, such as ``tp:split cp:partial``.

    Raises ProgramError for a layout that there is none of, or an axis that has two.
    """
    found: dict[str, str] = {}
    for word in text.split():
        axis, _, layout = word.partition(":")
        if not axis or not _LAYOUT.fullmatch(layout) or axis in found:
            raise ProgramError(
                f"the layout {text!r} says {word!r}", allowed=f"each axis once, as AXIS:LAYOUT, of {ALLOWED}"
            )
        found[axis] = layout
    return found


def layouts_by_group(text: str) -> list[dict[str, str]]:
    """Layouts of a pattern of all groups of a stage, which may say one for each, by their places: ``dp:split | cp:split``."""
    return [layouts_of(each.strip()) for each in text.split("|")]


def layout_text(layouts: dict[str, str]) -> str:
    """A pattern's text of layouts by axis, in their order."""
    return " ".join(f"{axis}:{layout}" for axis, layout in layouts.items())


def dual(text: str) -> str:
    """The layout of the gradient of a value that has this one."""
    found = {axis: layout_of(layout) for axis, layout in layouts_of(text).items()}
    return layout_text({axis: str(how._replace(kind=DUAL[how.kind])) for axis, how in found.items()})


def fits(has: str, needs: str) -> bool:
    """May a value be read as ``needs``? As it is, or, where it is copied, as shared."""
    return has == needs or (has, needs) in MAPS[ENTER]


def maps(operation: str, taken: str, made: str, turn: tuple[int, int] = STAYS) -> bool:
    """Does an operation make the one layout of the other? All to all makes parts of another dimension, every other one leaves
    parts what they are. ``turn``: of a message, by how many devices of how many it goes on."""
    before, behind = layout_of(taken), layout_of(made)
    if (before.kind, behind.kind) not in MAPS[operation]:
        return False
    if operation == SEND:
        return before.turned(*turn) == behind
    if before.turn or behind.turn:
        return False
    return before.kind != behind.kind or (before.dimension != behind.dimension) == (operation == "all_to_all")


def operation_of(algorithm: str, is_message: bool = False) -> str:
    """The operation in ``MAPS`` that an exchange's algorithm does: its name, mostly without what stands behind a dot.

    ``is_message``: between two devices, where no algorithm has to be said. Raises ProgramError for an unknown one.
    """
    if is_message and not algorithm:
        return SEND
    name = algorithm.replace("/", ".").removeprefix("ring_")
    if name not in MAPS:
        name = name.split(".")[0]
    name = _SPELLINGS.get(name, name)
    if not name or name not in MAPS:
        known = ", ".join((*(each for each in MAPS if each), *_SPELLINGS))
        raise ProgramError(
            f"an exchange of values with layouts has the algorithm {algorithm!r}, of which nobody knows what it makes",
            allowed=f"{known}, with more behind a dot",
        )
    return name


def transposed(exchange: Exchange) -> Exchange | None:
    """The exchange of the gradient of what this one moves; None where the gradient is there already (of an all-reduce).

    What stands behind a dot in its algorithm stays. A run-time size stays, too: who knows what is sent and what is received
    exchanges the two.
    """
    operation = operation_of(exchange.algorithm, bool(exchange.shift) or exchange.ends is not None)
    opposite = TRANSPOSES.get(operation, operation)
    if opposite is None:
        return None
    if opposite == SEND:
        ends = exchange.ends[::-1] if exchange.ends is not None else None
        return exchange._replace(ends=ends, shift=-exchange.shift)
    _, dot, behind = exchange.algorithm.replace("/", ".").partition(".")
    return exchange._replace(algorithm=opposite + dot + behind)


def entered(axes: tuple[str, ...]) -> Exchange:
    """What sums the gradient of a value that is copied along these axes and read as shared."""
    return Exchange(axes, algorithm="all_reduce")
