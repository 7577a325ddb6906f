"""Sentences about rows of the training tables whose predicted step is far off; `training_page.py` puts them in its table.

Each was found by looking at the row's neighbours in its table and at the parts of its prediction.
"""

from __future__ import annotations

from collections.abc import Mapping

_LONG_ON_HOPPER = (
    "portable attention on Hopper falls further behind our curve the longer the sequence, see the figure; rows of A100 "
    "do not. One factor stands for all lengths"
)
_FULL_MEMORY = (
    "nearly full memory: we count 77 GB of tensors on 80; the allocator then gives back and asks again, which is not "
    "priced. With 2,048 tokens the model is predicted well on both chips"
)
_UNEXPLAINED_760M = (
    "not explained: A100s of 40 GB run the same tokens of this model faster (2.8 s at 512, 2.9 s at 1,024) than "
    "these of 80 GB, and 2,048 tokens on these are as predicted"
)
_BROADCASTS = (
    "stepped parameters are sent by one broadcast of every device, one after another, each of 2 to 3 ms; they are priced "
    "as one gather, and take no part in the fit"
)
REASONS: Mapping[str, str] = {
    "internevo-006": _BROADCASTS,
    "internevo-007": _BROADCASTS,
    "internevo-008": _BROADCASTS,
    "megatron_h100-004": "one microbatch of 4 sequences a device: gradients in float32 take longer over 48 nodes than the "
    "backward beside which they run; by the table they do not, as if reduced in 16 bits, which it does not say",
    "megatron_bridge-242": "the release: the one before (25.09) ran this layout in 12.5 s, near our prediction; two releases "
    "of another layout of this model differ by 1.8 times, too",
    "megatron_bridge-235": "two microbatches a step only: reductions and gathers of 120 billion parameters, each a "
    "quarter of the step, hide behind computes for us and evidently not in that release. With five microbatches (26.04.01) "
    "the same experts are as predicted",
    "megatron_bridge-241": "four stages, eight microbatches and no chunks in the table: a bubble of a quarter of the "
    "step, for which the measured time leaves little room; attention with sinks, priced unfused, leans the same way",
    "mosaic-080": _FULL_MEMORY,
    "mosaic-021": _FULL_MEMORY,
    "mosaic-022": "nearly full memory: 72 GB of tensors, 78 with fragments, on 80; see the same model at 8,192 tokens",
    "mosaic-051": _LONG_ON_HOPPER,
    "mosaic-052": _LONG_ON_HOPPER,
    "mosaic-053": _LONG_ON_HOPPER,
    "mosaic-062": _LONG_ON_HOPPER,
    "mosaic-063": _LONG_ON_HOPPER,
    "mosaic-075": _LONG_ON_HOPPER,
    "mosaic-035": _LONG_ON_HOPPER,
    "mosaic-036": _LONG_ON_HOPPER,
    "torchtitan-007": "the factor of portable attention on Hopper then comes from mosaic, whose long rows are slower than "
    "torchtitan's",
    "torchtitan-008": "the factor of portable attention on Hopper then comes from mosaic, whose long rows are slower than "
    "torchtitan's; and pieces off the ring's diagonal, which have no mask, run better than the causal products we price",
    "mosaic-121": _UNEXPLAINED_760M,
    "mosaic-120": _UNEXPLAINED_760M,
    "vocab_parallel-017": "layers are redistributed to make room for the head, and the paper's split is not in the table; "
    "ours, by FLOPs, misses to both sides at the smaller vocabularies, too",
    "vocab_parallel-007": "layers are redistributed to make room for the head, and the paper's split is not in the table; "
    "ours, by FLOPs, is slower here",
    "mosaic-077": "rows of 512 tokens on H100 run faster than predicted, the other side of what happens at long sequences; "
    "float8 shortens the products, so that attention weighs more",
    "megatron_bridge-082": "dispatch and launches of 48 layers of experts are a third of the step, by one constant for "
    "all releases; on B300 release 26.06 runs this model 1.3 times as fast as 26.04 does",
    "megatron_bridge-032": "a third of the step is the all-to-all of 16 devices and the host, both by one constant "
    "for all releases",
    "megatron_bridge-236": "microbatches of one sequence: three fifths of the step are the host and the all-to-all, by "
    "one constant for all releases",
    "mosaic-179": "a disturbed measurement, probably: with as many tokens a device, 64 and 128 devices take 17 % less a step "
    "than these 32",
    "mosaic-040": "full recompute is declared; short rows of this model are faster than that allows, as if a part had "
    "been kept",
    "torchtitan-001": "compiled (row 002) the same job is as predicted: the eager kernels of this stack move more than "
    "we count",
    "torchtitan-025": "eight tensor-parallel devices, nothing beside: small exchanges and their synchronisation",
    "megatron_sc21-001": "values read off a figure; the stack of 2021 runs its small model (1.7 billion) with "
    "more and smaller kernels than we count",
    "megatron_selective-003": "a stack of 2022: our factors of A100 come from stacks with other kernels",
}
