"""The core's vocabulary: what its names touch by default. Passes give their rows other effects of the same names."""

from __future__ import annotations

from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

# Along a path: forward, backward, their halves, recompute; reduction and step.
INPUT = Pattern("activation", when="not_first")
OUTPUT = Pattern("activation", offset=1, when="not_last")
OUTPUT_GRADIENT = Pattern("gradient", when="not_last")
INPUT_GRADIENT = Pattern("gradient", offset=-1, when="not_first")
PARAMETERS = Pattern("parameter", index="groups")
GRADIENTS = Pattern("weight_gradient", index="groups")
STATE = Pattern("optimizer_state", index="groups")
SAVED, PENDING = Pattern("saved"), Pattern("pending")

F = Effect(Kind.COMPUTE, "F", (INPUT, PARAMETERS), (OUTPUT, SAVED))
F_RECOMPUTED = F._replace(writes=(OUTPUT,))  # keeps only its input; R makes what backward needs
R = Effect(Kind.COMPUTE, "R", (INPUT, PARAMETERS), (SAVED,))
B = Effect(Kind.COMPUTE, "B", (SAVED, OUTPUT_GRADIENT, PARAMETERS), (INPUT_GRADIENT, GRADIENTS))
I = Effect(Kind.COMPUTE, "I", (SAVED, OUTPUT_GRADIENT, PARAMETERS), (INPUT_GRADIENT, PENDING))  # noqa: E741
W = Effect(Kind.COMPUTE, "W", (SAVED, PENDING), (GRADIENTS,))
SEND_F = Effect(Kind.SEND, "SEND_F", (Pattern("activation", offset=1),))
RECV_F = Effect(Kind.RECEIVE, "RECV_F", (), (Pattern("activation"),))
SEND_B = Effect(Kind.SEND, "SEND_B", (Pattern("gradient", offset=-1),))
RECV_B = Effect(Kind.RECEIVE, "RECV_B", (), (Pattern("gradient"),))
# The way of what moves along a path, from the row's hop to that of the other end.
TOWARD = {SEND_F.name: +1, RECV_F.name: -1, SEND_B.name: -1, RECV_B.name: +1}
REDUCE_GRAD = Effect(
    Kind.COLLECTIVE,
    "REDUCE_GRAD",
    (Pattern("weight_gradient", index="group"),),
    (Pattern("reduced_gradient", index="group"),),
)
# Gradients of one microbatch, whole until they are scattered into the shard that a device keeps of the sum.
MICROBATCH_GRADIENT = ValueKind("microbatch_gradient", index="group", accumulates=True)
SCATTER_GRAD = Effect(
    Kind.COLLECTIVE,
    "SCATTER_GRAD",
    (Pattern(MICROBATCH_GRADIENT.name, index="group"),),
    (Pattern("weight_gradient", index="group"),),
)
GRADIENT_KINDS = (GRADIENTS.kind, MICROBATCH_GRADIENT.name)  # what computes add to
# Gradients of which each device that shares microbatches has a term, summed; where they are reduced, too, behind that.
SUM_GRAD = REDUCE_GRAD._replace(name="SUM_GRAD")
SUM_REDUCED = SUM_GRAD._replace(reads=SUM_GRAD.writes)
STEP = Effect(Kind.COMPUTE, "STEP", (GRADIENTS, PARAMETERS, STATE), (PARAMETERS, STATE))
STEP_REDUCED = STEP._replace(reads=(Pattern("reduced_gradient", index="groups"), *STEP.reads))
# Kinds that most passes touch stand in every table of a schedule, so that passes seldom have to add one.
STANDARD_KINDS = (
    ValueKind("activation"),  # the input of a hop: what F of the hop before wrote
    ValueKind("gradient"),  # the gradient of the output of a hop: what B or I of the hop behind wrote
    ValueKind("saved"),  # what forward (or recompute) keeps for the backward of the same hop
    ValueKind("pending"),  # the queue of (input, output gradient) between I and W
    ValueKind("parameter", index="group", microbatch=False, carried=True),
    ValueKind("optimizer_state", index="group", microbatch=False, carried=True),
    ValueKind("weight_gradient", index="group", microbatch=False, accumulates=True),
    ValueKind("reduced_gradient", index="group", microbatch=False),  # in weight_gradient's memory
)

# Beside the path, as skip connections and encoders' outputs are. Both are numbered by the stage that made the forward value;
# a part of `skip` is one of its outputs, a part of `skip_gradient` one of its readers.
SKIP, SKIP_GRADIENT = ValueKind("skip", index="stage"), ValueKind("skip_gradient", index="stage")
MOVED_SKIP = Pattern(SKIP.name, index="stage", part="row")
MOVED_SKIP_GRADIENT = Pattern(SKIP_GRADIENT.name, index="stage", part="row")
SEND_SKIP = Effect(Kind.SEND, "SEND_SKIP", (MOVED_SKIP,))
RECV_SKIP = Effect(Kind.RECEIVE, "RECV_SKIP", (), (MOVED_SKIP,))
SEND_SKIP_B = Effect(Kind.SEND, "SEND_SKIP_B", (MOVED_SKIP_GRADIENT,))
RECV_SKIP_B = Effect(Kind.RECEIVE, "RECV_SKIP_B", (), (MOVED_SKIP_GRADIENT,))

# Sharded parameters, buffers in which computes add to gradients, and what R makes beside what forward kept.
GATHERED_PARAMETER = ValueKind("gathered_parameter", index="group", microbatch=False)
GRADIENT_BUFFER = ValueKind("gradient_buffer", index="group", microbatch=False)
REMADE = ValueKind("remade")  # it lives as long as what forward kept
PARAMETER, GATHERED = Pattern("parameter", index="group"), Pattern(GATHERED_PARAMETER.name, index="group")
UNSHARD = Effect(Kind.COLLECTIVE, "UNSHARD", (PARAMETER,), (GATHERED,), moves=GATHERED)
GATHER_PARAM = Effect(Kind.COLLECTIVE, "GATHER_PARAM", (PARAMETER,), (PARAMETER,))

# The norm of all gradients, and a step that did not wait for it.
SQUARED_NORM = ValueKind("squared_norm", index="none", microbatch=False, accumulates=True)
GLOBAL_NORM = ValueKind("global_norm", index="none", microbatch=False)
STEP_COPY = ValueKind("step_copy", index="group", microbatch=False)
PARTIAL_SUM, WHOLE_SUM = Pattern(SQUARED_NORM.name, index="none"), Pattern(GLOBAL_NORM.name, index="none")
NORM = Effect(Kind.COMPUTE, "NORM", (GRADIENTS,), (PARTIAL_SUM,))
REDUCE_NORM = Effect(Kind.COLLECTIVE, "REDUCE_NORM", (PARTIAL_SUM,), (WHOLE_SUM,))
# Tokens that routers sent to each expert, which steps correct them by.
EXPERT_TOKENS = ValueKind("expert_tokens", index="none", microbatch=False, accumulates=True)
ALL_EXPERT_TOKENS = ValueKind("all_expert_tokens", index="none", microbatch=False)
OWN_TOKENS, ALL_TOKENS = (Pattern(kind.name, index="none") for kind in (EXPERT_TOKENS, ALL_EXPERT_TOKENS))
COUNT_TOKENS = Effect(Kind.COMPUTE, "COUNT_TOKENS", (GRADIENTS,), (OWN_TOKENS,))
REDUCE_TOKENS = Effect(Kind.COLLECTIVE, "REDUCE_TOKENS", (OWN_TOKENS,), (ALL_TOKENS,))
VALIDATE = Effect(
    Kind.COMPUTE,
    "VALIDATE",
    (WHOLE_SUM, Pattern(STEP_COPY.name, index="groups"), PARAMETERS, STATE),
    (PARAMETERS, STATE),
)

# The optimizer's state on the host; a master copy of the parameters stays on the device.
MASTER_COPY = ValueKind("master_copy", index="group", microbatch=False, carried=True)
HOST_STATE = ValueKind("host_optimizer_state", index="group", microbatch=False, carried=True, tier="host")
_AT_HOST = Pattern(HOST_STATE.name, index="groups")
LOAD_STATE = Effect(Kind.LOAD, "LOAD_STATE", (_AT_HOST,), (STATE,))
STORE_STATE = Effect(Kind.STORE, "STORE_STATE", (STATE,), (_AT_HOST,))

# A vocabulary of tokens split over the pipeline (`lowering.vocabulary.effect` says what each is).
SPLIT_KINDS = tuple(
    ValueKind(kind, index="none")
    for kind in (
        *("output", "softmax", "normalizer", "output_part", "output_gradient"),
        *("input_part", "input", "input_gradient"),
    )
)


def value(kind: str, when: str = "always") -> Pattern:
    """A value of a microbatch that belongs to no stage."""
    return Pattern(kind, index="none", when=when)


def collective(name: str, read: str, moved: str, *writes: str) -> Effect:
    """An exchange among all devices, of values that belong to no stage."""
    reads = (value(read),) if read else ()
    return Effect(Kind.COLLECTIVE, name, reads, tuple(map(value, writes)), value(moved))


LOOKUP = Effect(Kind.COMPUTE, "LOOKUP", (PARAMETERS,), (value("input_part"),))
S = Effect(Kind.COMPUTE, "S", (value("output"), PARAMETERS), (value("softmax"),))
T = Effect(Kind.COMPUTE, "T", (value("output"), value("softmax"), value("normalizer")), (GRADIENTS,))
SCATTER = Effect(Kind.COMPUTE, "SCATTER", (value("input_gradient"),), (GRADIENTS,))
SUM_INPUT = collective("SUM_INPUT", "input_part", "input")
SHARE_OUTPUT = collective("SHARE_OUTPUT", "", "output", "output")
SUM_SOFTMAX = collective("SUM_SOFTMAX", "softmax", "normalizer", "normalizer")
SUM_OUTPUT_GRAD = collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient")
SHARE_INPUT_GRAD = collective("SHARE_INPUT_GRAD", "", "input_gradient", "input_gradient")

SPLIT_COMPUTES = (LOOKUP, S, T, SCATTER)
COMPUTES = (F, R, B, I, W, *SPLIT_COMPUTES)
MOVES = (
    *(SEND_F, RECV_F, SEND_B, RECV_B, SEND_SKIP, RECV_SKIP, SEND_SKIP_B, RECV_SKIP_B, UNSHARD, GATHER_PARAM),
    *(SUM_INPUT, SHARE_OUTPUT, SUM_SOFTMAX, SUM_OUTPUT_GRAD, SHARE_INPUT_GRAD),
)
# What exchanges of these names do, whatever algorithm does it; and those that run along the first axis, as pipelines do.
OPERATIONS = {
    "UNSHARD": "all_gather", "GATHER_PARAM": "all_gather", "REDUCE_NORM": "all_reduce", "SUM_GRAD": "all_reduce",
    "REDUCE_TOKENS": "all_reduce", "SCATTER_GRAD": "reduce_scatter",
    "SUM_INPUT": "reduce_scatter", "SHARE_OUTPUT": "all_gather", "SUM_SOFTMAX": "all_reduce",
    "SUM_OUTPUT_GRAD": "reduce_scatter", "SHARE_INPUT_GRAD": "all_gather",
}  # fmt: skip
ALONG_FIRST_AXIS = ("SUM_INPUT", "SHARE_OUTPUT", "SUM_SOFTMAX", "SUM_OUTPUT_GRAD", "SHARE_INPUT_GRAD")
CORE = Vocabulary.of(
    *STANDARD_KINDS, *SPLIT_KINDS,
    *(SKIP, SKIP_GRADIENT, GATHERED_PARAMETER, GRADIENT_BUFFER, REMADE, SQUARED_NORM, GLOBAL_NORM, STEP_COPY),
    *(MASTER_COPY, HOST_STATE, MICROBATCH_GRADIENT, EXPERT_TOKENS, ALL_EXPERT_TOKENS),
    *(Name(effect, "path") for effect in COMPUTES), *map(Name, MOVES),
    *(Name(effect, "stage") for effect in (STEP, NORM, COUNT_TOKENS, VALIDATE, LOAD_STATE, STORE_STATE)),
    *(Name(effect, "group") for effect in (REDUCE_GRAD, SUM_GRAD)),
    *(Name(SCATTER_GRAD, "microbatch"), Name(REDUCE_NORM, "device"), Name(REDUCE_TOKENS, "device")),
)  # fmt: skip
