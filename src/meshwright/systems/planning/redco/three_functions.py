"""A training step made of three functions of a user - data, loss, predict - as CALLs, and what goes around them."""

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
)
from meshwright.ir.vocabulary import register_name, register_value_kind

DATA_AXIS, TENSOR_AXIS = "dp", "tp"
BATCH = register_value_kind(ValueKind("user_batch", index="none"))
USER_LOSS = register_value_kind(ValueKind("user_loss", index="none", microbatch=False, accumulates=True))
PREDICTION = register_value_kind(ValueKind("prediction", index="none", microbatch=False))
CALL_DATA, CALL_LOSS, CALL_PREDICT = "CALL_DATA", "CALL_LOSS", "CALL_PREDICT"
REDUCE_USER, USER_STEP = "REDUCE_USER_GRADIENT", "USER_STEP"
_PARAMETERS, _GRADIENTS = Pattern("parameter", index="groups"), Pattern("weight_gradient", index="groups")
_REDUCED, _STATE = Pattern("reduced_gradient", index="groups"), Pattern("optimizer_state", index="groups")
_BATCH = Pattern(BATCH.name, index="none")
EFFECTS = {
    effect.name: effect
    for effect in (
        Effect(Kind.CALL, CALL_DATA, (_PARAMETERS,), (_BATCH,)),
        Effect(
            Kind.CALL,
            CALL_LOSS,
            (_BATCH, _PARAMETERS),
            (_GRADIENTS, Pattern(USER_LOSS.name, index="none")),
        ),
        Effect(Kind.CALL, CALL_PREDICT, (_PARAMETERS,), (Pattern(PREDICTION.name, index="none"),)),
        Effect(
            Kind.COLLECTIVE,
            REDUCE_USER,
            (Pattern("weight_gradient", index="group"),),
            (Pattern("reduced_gradient", index="group"),),
        ),
        Effect(Kind.COMPUTE, USER_STEP, (_REDUCED, _PARAMETERS, _STATE), (_PARAMETERS, _STATE)),
    )
}
_PER = {CALL_DATA: "path", CALL_LOSS: "path", CALL_PREDICT: "stage", USER_STEP: "stage"}
for _effect in EFFECTS.values():
    register_name(_effect, per=_PER.get(_effect.name, ""))


def three_functions(num_devices: int, num_microbatches: int = 1, tp: int = 1) -> Program:
    """A step of data parallelism: one list, the same for all devices, each a part of `tp` of a model.

    `data` may look at the parameters, as an agent does that acts to gather its data; the gradients of microbatches and
    devices are averaged; `predict` runs with the stepped parameters.
    """
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(DATA_AXIS, num_devices, False), Axis(TENSOR_AXIS, tp, False)),
        microbatches=(Microbatch(1, 1.0 / num_microbatches),) * num_microbatches,
        paths=((Hop(0, 0),),),
        groups=(ParameterGroup("all", (0,), 0, (DATA_AXIS,)),),
        duties=tuple(Duty(name, per) for name, per in _PER.items()),
    )
    for microbatch in range(num_microbatches):
        for name in (CALL_DATA, CALL_LOSS):
            builder.add(0, EFFECTS[name], microbatch=microbatch, stream="host")
    exchange = Exchange((DATA_AXIS,), algorithm="all_reduce")
    builder.add(0, EFFECTS[REDUCE_USER], stream="reduce", exchange=exchange)
    builder.add(0, EFFECTS[USER_STEP])
    builder.add(0, EFFECTS[CALL_PREDICT], stream="host")
    return builder.build()
