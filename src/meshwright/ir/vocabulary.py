"""Names that instructions may have: each registers its default effect, its duty and its way along a path, once."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.specs.error import ProgramError, UnknownNameError


class Name(NamedTuple):
    """A registered name. ``toward``: for SEND and RECEIVE, +1 along the path, -1 against it, 0 elsewhere.
    ``per``: what it must occur once for (`Duty`), or empty for moves, which may repeat."""

    effect: Effect
    per: str = ""
    toward: int = 0


NAMES: dict[str, Name] = {}
VALUE_KINDS: dict[str, ValueKind] = {}


def register_name(effect: Effect, per: str = "", toward: int = 0) -> Name:
    """Register a name with its default effect; the same name twice with another meaning is a `ProgramError`."""
    name = Name(effect, per, toward)
    if NAMES.setdefault(effect.name, name) != name:
        raise ProgramError(
            f"the name {effect.name!r} is registered already, with another effect; choose another name"
        )
    return name


def register_value_kind(kind: ValueKind) -> ValueKind:
    """Register a kind of value; the same name twice with another meaning is a `ProgramError`."""
    if VALUE_KINDS.setdefault(kind.name, kind) != kind:
        raise ProgramError(f"the value kind {kind.name!r} is registered already, with another meaning")
    return kind


def name_of(name: str) -> Name:
    """The registered name, or `UnknownNameError` with near matches."""
    if name not in NAMES:
        raise UnknownNameError("instruction", name, sorted(NAMES))
    return NAMES[name]


for _kind in (
    ValueKind("activation"),  # the input of a hop: what F of the hop before wrote
    ValueKind("gradient"),  # the gradient of the output of a hop: what B or I of the hop behind wrote
    ValueKind("saved"),  # what forward (or recompute) keeps for the backward of the same hop
    ValueKind("pending"),  # the queue of (input, output gradient) between I and W
    ValueKind("parameter", index="group", microbatch=False, carried=True),
    ValueKind("optimizer_state", index="group", microbatch=False, carried=True),
    ValueKind("weight_gradient", index="group", microbatch=False, accumulates=True),
    ValueKind(
        "reduced_gradient", index="group", microbatch=False
    ),  # in place: the memory is weight_gradient's
):
    register_value_kind(_kind)

_INPUT = Pattern("activation", when="not_first")
_OUTPUT = Pattern("activation", offset=1, when="not_last")
_OUTPUT_GRADIENT = Pattern("gradient", when="not_last")
_INPUT_GRADIENT = Pattern("gradient", offset=-1, when="not_first")
_PARAMETERS = Pattern("parameter", index="groups")
_ALL_GRADIENTS = Pattern("weight_gradient", index="groups")

F = Effect(Kind.COMPUTE, "F", (_INPUT, _PARAMETERS), (_OUTPUT, Pattern("saved")))
F_RECOMPUTED = F._replace(writes=(_OUTPUT,))  # keeps only its input; R makes what backward needs
R = Effect(Kind.COMPUTE, "R", (_INPUT, _PARAMETERS), (Pattern("saved"),))
B = Effect(
    Kind.COMPUTE, "B", (Pattern("saved"), _OUTPUT_GRADIENT, _PARAMETERS), (_INPUT_GRADIENT, _ALL_GRADIENTS)
)
I = Effect(
    Kind.COMPUTE,
    "I",
    (Pattern("saved"), _OUTPUT_GRADIENT, _PARAMETERS),
    (_INPUT_GRADIENT, Pattern("pending")),
)  # noqa: E741
W = Effect(Kind.COMPUTE, "W", (Pattern("saved"), Pattern("pending")), (_ALL_GRADIENTS,))
REDUCE_GRAD = Effect(
    Kind.COLLECTIVE,
    "REDUCE_GRAD",
    (Pattern("weight_gradient", index="group"),),
    (Pattern("reduced_gradient", index="group"),),
)
STEP = Effect(
    Kind.COMPUTE,
    "STEP",
    (Pattern("weight_gradient", index="groups"), _PARAMETERS, Pattern("optimizer_state", index="groups")),
    (_PARAMETERS, Pattern("optimizer_state", index="groups")),
)
STEP_REDUCED = STEP._replace(reads=(Pattern("reduced_gradient", index="groups"), *STEP.reads))

for _effect in (F, R, B, I, W):
    register_name(_effect, per="path")
register_name(STEP, per="stage")
register_name(REDUCE_GRAD, per="group")
register_name(Effect(Kind.SEND, "SEND_F", (Pattern("activation", offset=1),)), toward=+1)
register_name(Effect(Kind.RECEIVE, "RECV_F", (), (Pattern("activation"),)), toward=-1)
register_name(Effect(Kind.SEND, "SEND_B", (Pattern("gradient", offset=-1),)), toward=-1)
register_name(Effect(Kind.RECEIVE, "RECV_B", (), (Pattern("gradient"),)), toward=+1)
