"""How a value lies along an axis: split, partial, copied or shared; the dual of each, what exchanges map, their transposes.

    split    each device has a part of it                 copied  all have it, and do the same with it
    partial  each device has a term of a sum              shared  all have it, and each does another part with it

The gradient of a value has the dual layout: split-split, partial-copied, copied-copied, shared-partial. Reversed, an
exchange becomes its transpose, which maps the duals. One exchange has no row: a value that is copied may be read as shared
("enter"), and its transpose is an all-reduce of the gradient.
"""

from __future__ import annotations

from functools import cache

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
_SPELLINGS = {"ring": "all_reduce", "send_receive": SEND, "point_to_point": SEND}


@cache
def layouts_of(text: str) -> dict[str, str]:
    """Layout by axis of a pattern's text, such as ``tp:split cp:partial``.

    Raises ProgramError for a layout that there is none of, or an axis that has two.
    """
    found: dict[str, str] = {}
    for word in text.split():
        axis, _, layout = word.partition(":")
        if not axis or layout not in LAYOUTS or axis in found:
            raise ProgramError(
                f"the layout {text!r} says {word!r}", allowed=f"each axis once, as AXIS:{'|'.join(LAYOUTS)}"
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
    return layout_text({axis: DUAL[layout] for axis, layout in layouts_of(text).items()})


def fits(has: str, needs: str) -> bool:
    """May a value be read as ``needs``? As it is, or, where it is copied, as shared."""
    return has == needs or (has, needs) in MAPS[ENTER]


def operation_of(algorithm: str, is_message: bool = False) -> str:
    """The operation in ``MAPS`` that an exchange's algorithm does: its name, mostly without what stands behind a dot.

    ``is_message``: between two devices, where no algorithm has to be said. Raises ProgramError for an unknown one.
    """
    if is_message and not algorithm:
        return SEND
    name = algorithm.replace("/", ".").removesuffix(".hops").removeprefix("ring_")
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
