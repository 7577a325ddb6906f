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

from meshwright.ir.core_vocabulary import GRADIENTS, PARAMETERS, SPLIT_KINDS, T, collective, value

# A tensor that goes to all, or is summed for one, passes every link of a ring once: priced as what does so.
ALGORITHMS = {
    "SUM_INPUT": "reduce_scatter.reduce", "SHARE_OUTPUT": "all_gather.broadcast", "SUM_SOFTMAX": "all_reduce",
    "SUM_OUTPUT_GRAD": "reduce_scatter.reduce", "SHARE_INPUT_GRAD": "all_gather.broadcast",
}  # fmt: skip
KINDS = tuple(kind.name for kind in SPLIT_KINDS)
T_WHOLE = T._replace(reads=(*T.reads, PARAMETERS), writes=(GRADIENTS, value("output_part")))
# what the device of the first or last stage does instead, and every device where there is one barrier
SUM_INPUT_HERE = collective("SUM_INPUT", "input_part", "input", "input")
SHARE_OUTPUT_HERE = collective("SHARE_OUTPUT", "output", "output", "output")
SUM_BOTH = collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer")
SUM_BOTH_HERE = collective("SUM_SOFTMAX", "softmax", "output_gradient", "normalizer", "output_gradient")
SUM_OUTPUT_GRAD_HERE = collective("SUM_OUTPUT_GRAD", "output_part", "output_gradient", "output_gradient")
SHARE_INPUT_GRAD_HERE = collective("SHARE_INPUT_GRAD", "input_gradient", "input_gradient", "input_gradient")
