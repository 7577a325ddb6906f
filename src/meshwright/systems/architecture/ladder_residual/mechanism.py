"""The forward of a residual stack, standard or as a ladder, as a program: sublayers and their all-reduces."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
    Duty,
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    ValueKind,
    Work,
)
from meshwright.ir.vocabulary import register_name, register_value_kind
from meshwright.specs.error import UnknownNameError

TENSOR_AXIS = "tp"
INPUT = register_value_kind(ValueKind("stream_input", index="none", microbatch=False, carried=True))
OUTPUT = register_value_kind(ValueKind("stream_output", index="none", microbatch=False))
RESIDUAL = register_value_kind(ValueKind("residual"))  # the stream of a hop, all-reduced outputs added
PARTIAL = register_value_kind(ValueKind("partial_output"))  # of a sublayer, this device's part of the sum
REDUCED = register_value_kind(ValueKind("reduced_output"))  # the sum over the devices
SUBLAYERS = ("LADDER_ATTENTION", "LADDER_MLP")
REDUCTIONS = ("REDUCE_ATTENTION", "REDUCE_MLP")
END = "LADDER_END"  # adds what is left to the stream
_WEIGHTS = Pattern("parameter", index="groups")
_OUTPUTS = (Pattern(RESIDUAL.name), Pattern(PARTIAL.name))


def _sublayer(name: str, delay: int, hop: int) -> Effect:
    """The effect of a sublayer that reads the all-reduced output `delay` hops back, where there is one."""
    stream = (Pattern(RESIDUAL.name, offset=-1),) if hop else (Pattern(INPUT.name, index="none"),)
    reduced = (Pattern(REDUCED.name, offset=-delay),) if hop >= delay else ()
    return Effect(Kind.COMPUTE, name, (*stream, *reduced, _WEIGHTS), _OUTPUTS)


def _end(delay: int) -> Effect:
    reduced = tuple(Pattern(REDUCED.name, offset=-back) for back in range(delay, 0, -1))
    output = Pattern(OUTPUT.name, index="none")
    return Effect(Kind.COMPUTE, END, (Pattern(RESIDUAL.name, offset=-1), *reduced), (output,))


for _name in SUBLAYERS:
    register_name(_sublayer(_name, 2, 2), per="some")
for _name in REDUCTIONS:
    register_name(Effect(Kind.COLLECTIVE, _name, (Pattern(PARTIAL.name),), (Pattern(REDUCED.name),)))
register_name(_end(2), per="some")


def delay_of(form: str) -> int:
    """How many sublayers back the newest output is that a sublayer sees: 1, or 2 in a ladder. Raises UnknownNameError."""
    if form not in FORMS:
        raise UnknownNameError("form of a residual stream", form, FORMS)
    return FORMS.index(form) + 1


def ladder_residual(num_blocks: int, tp: int, form: str = "ladder") -> Program:
    """The forward of blocks on `tp` devices: one list, the same for all of them.

    Raises:
        UnknownNameError: `form` is neither "ladder" nor "standard".
    """
    delay, num_sublayers = delay_of(form), 2 * num_blocks
    names = (*SUBLAYERS, END)
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(TENSOR_AXIS, tp, False)),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(stage, 0) for stage in range(num_sublayers + 1)),),
        groups=tuple(ParameterGroup(f"sublayer {hop}", (hop,)) for hop in range(num_sublayers)),
        duties=tuple(Duty(name, "some") for name in names),
    )
    for hop in range(num_sublayers):
        name = SUBLAYERS[hop % 2]
        builder.add(0, _sublayer(name, delay, hop), stage=hop, work=Work(name))
        reduction = Effect(
            Kind.COLLECTIVE, REDUCTIONS[hop % 2], (Pattern(PARTIAL.name),), (Pattern(REDUCED.name),)
        )
        exchange = Exchange((TENSOR_AXIS,), algorithm="all_reduce")
        builder.add(0, reduction, stage=hop, stream="reduce", exchange=exchange)
    builder.add(0, _end(delay), stage=num_sublayers)
    return builder.build()


FORMS = ("standard", "ladder")
