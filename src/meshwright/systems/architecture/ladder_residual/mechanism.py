"""The forward of a residual stack, standard or as a ladder, as a program: sublayers and their all-reduces."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
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
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import UnknownNameError

TENSOR_AXIS = "tp"
INPUT = ValueKind("stream_input", index="none", microbatch=False, carried=True)
OUTPUT = ValueKind("stream_output", index="none", microbatch=False)
RESIDUAL = ValueKind("residual")  # the stream of a hop, all-reduced outputs added
PARTIAL = ValueKind("partial_output")  # of a sublayer, this device's part of the sum
REDUCED = ValueKind("reduced_output")  # the sum over the devices
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


REDUCE = {
    name: Effect(Kind.COLLECTIVE, name, (Pattern(PARTIAL.name),), (Pattern(REDUCED.name),))
    for name in REDUCTIONS
}
VOCABULARY = Vocabulary.of(
    *(INPUT, OUTPUT, RESIDUAL, PARTIAL, REDUCED),
    *(Name(_sublayer(name, 2, 2), "some") for name in SUBLAYERS),
    *map(Name, REDUCE.values()),
    Name(_end(2), "some"),
    owner="ladder_residual",
)


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
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(TENSOR_AXIS, tp, False)),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(stage, 0) for stage in range(num_sublayers + 1)),),
        groups=tuple(ParameterGroup(f"sublayer {hop}", (hop,)) for hop in range(num_sublayers)),
        vocabulary=VOCABULARY,
    )
    for hop in range(num_sublayers):
        name = SUBLAYERS[hop % 2]
        builder.add(0, _sublayer(name, delay, hop), stage=hop, work=Work(name))
        reduction = REDUCE[REDUCTIONS[hop % 2]]
        exchange = Exchange((TENSOR_AXIS,), algorithm="all_reduce")
        builder.add(0, reduction, stage=hop, stream="reduce", exchange=exchange)
    builder.add(0, _end(delay), stage=num_sublayers)
    return builder.build()


FORMS = ("standard", "ladder")
