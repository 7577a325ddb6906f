"""What instructions of a split vocabulary touch: S, T and their like, and the exchanges between them.

    LOOKUP  each device's rows of the embedding         SUM_INPUT         their sum, to the first stage
    S       each device's logits and local softmax      SHARE_OUTPUT      the last stage's output, to all
    T       what needs the whole softmax                SUM_SOFTMAX       maximum, sum and the target's logit
    SCATTER gradient of each device's embedding rows    SUM_OUTPUT_GRAD   of the partial input gradients, two barriers only
                                                        SHARE_INPUT_GRAD  the first stage's input gradient, to all

With one barrier S also makes both halves of the input gradient, before the softmax is known, and SUM_SOFTMAX sums them:
T makes the weight gradient only. With two, T makes both gradients and SUM_OUTPUT_GRAD follows (Yeung et al. 2024,
arXiv 2411.05288). Every exchange has a stream of its own, in the order of the microbatches at all ends.
"""

from __future__ import annotations

from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.vocabulary import register_name, register_value_kind

# A tensor that goes to all, or is summed for one, passes every link of a ring once: priced as what does so.
ALGORITHMS = {
    "SUM_INPUT": "reduce_scatter.reduce", "SHARE_OUTPUT": "all_gather.broadcast", "SUM_SOFTMAX": "all_reduce",
    "SUM_OUTPUT_GRAD": "reduce_scatter.reduce", "SHARE_INPUT_GRAD": "all_gather.broadcast",
}  # fmt: skip
KINDS = (
    *("output", "softmax", "normalizer", "output_part", "output_gradient"),
    *("input_part", "input", "input_gradient"),
)
for _kind in KINDS:
    register_value_kind(ValueKind(_kind, index="none"))


def value(kind: str, when: str = "always") -> Pattern:
    """A value of a microbatch that belongs to no stage."""
    return Pattern(kind, index="none", when=when)


_PARAMETERS, _GRADIENTS = Pattern("parameter", index="groups"), Pattern("weight_gradient", index="groups")


def _collective(name: str, read: str, moved: str, *writes: str) -> Effect:
    reads = (value(read),) if read else ()
    return Effect(Kind.COLLECTIVE, name, reads, tuple(map(value, writes)), value(moved))


LOOKUP = Effect(Kind.COMPUTE, "LOOKUP", (_PARAMETERS,), (value("input_part"),))
S = Effect(Kind.COMPUTE, "S", (value("output"), _PARAMETERS), (value("softmax"),))
T = Effect(Kind.COMPUTE, "T", (value("output"), value("softmax"), value("normalizer")), (_GRADIENTS,))
T_WHOLE = T._replace(reads=(*T.reads, _PARAMETERS), writes=(_GRADIENTS, value("output_part")))
SCATTER = Effect(Kind.COMPUTE, "SCATTER", (value("input_gradient"),), (_GRADIENTS,))
SUM_INPUT = _collective("SUM_INPUT", "input_part", "input")
SHARE_OUTPUT = _collective("SHARE_OUTPUT", "", "output", "output")
SUM_SOFTMAX = _collective("SUM_SOFTMAX", "softmax", "normalizer", "normalizer")
SUM_OUTPUT_GRAD = _collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient")
SHARE_INPUT_GRAD = _collective("SHARE_INPUT_GRAD", "", "input_gradient", "input_gradient")
# what the device of the first or last stage does instead, and every device where there is one barrier
SUM_INPUT_HERE = _collective("SUM_INPUT", "input_part", "input", "input")
SHARE_OUTPUT_HERE = _collective("SHARE_OUTPUT", "output", "output", "output")
SUM_BOTH = _collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer")
SUM_BOTH_HERE = _collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer", "output_gradient")
SUM_OUTPUT_GRAD_HERE = _collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient", "output_gradient")
SHARE_INPUT_GRAD_HERE = _collective("SHARE_INPUT_GRAD", "input_gradient", "input_gradient", "input_gradient")

COMPUTES = (LOOKUP, S, T, SCATTER)
for _effect in COMPUTES:
    register_name(_effect, per="path")
for _effect in (SUM_INPUT, SHARE_OUTPUT, SUM_SOFTMAX, SUM_OUTPUT_GRAD, SHARE_INPUT_GRAD):
    register_name(_effect)
