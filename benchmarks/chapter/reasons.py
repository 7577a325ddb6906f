"""Sentences about rows whose predicted step is far off, by row, and causes that many rows share; `worst` makes the table.

Each was found by looking at the row's neighbours in its table and at the parts of its prediction. "Not known" is said where
it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.evidence.tables.table import TrainingRow

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
_PIPED = (
    "not known: in this source a block of a pipeline over several nodes takes as long as its tensor degree says, whatever "
    "its work (see above)"
)
_FAR_TP = "not known: each exchange of tensor parallelism over nodes takes longer than in NCCL's tests on this network"
_FAR_AND_PIPED = f"{_FAR_TP}, and with a pipeline longer still"
_BROADCASTS = (
    "stepped parameters are sent by one broadcast of every device, one after another, each of 2 to 3 ms; they are priced "
    "as one gather, and take no part in the fit"
)


_DISTURBED = "a disturbed run, probably: this source ran every layout once, for two minutes"
_TWICE_DISTURBED = f"{_DISTURBED}, or a fault of this layout: of three runs of this model two are as slow"
_FULL_PIPE = (
    "guessed: nearly full memory, as the peaks of these rows are the highest of their layout; the allocator gives back and "
    "asks again, which is not priced. On four nodes and more the same layout is as predicted"
)
_ONE_SIZE = "not known: the same tensor degree and microbatch on twice and on a quarter of the nodes is near to predicted"


def _over_nodes(row: TrainingRow) -> bool:
    return row.count("gpus") > max(1, row.count("gpus_per_node", 8))


def _has_far_tp(row: TrainingRow) -> bool:
    return row.count("tp", 1) > max(1, row.count("gpus_per_node", 8))


# In this order: name of a cause -> the rows that are of it. Rows of none are of a cause of their own.
ALIKE: Mapping[str, Callable[[TrainingRow], bool]] = {
    "tensor parallelism over nodes, with a pipeline": lambda row: _has_far_tp(row) and row.count("pp", 1) > 1,
    "tensor parallelism over nodes": _has_far_tp,
    "nanotron's pipelines over several nodes with tensor parallelism": lambda row: (
        "nanotron" in row.text("extras").lower()
        and _over_nodes(row) and row.count("tp", 1) > 1 and row.count("pp", 1) > 1
    ),
    "a broadcast for every device": lambda row: (
        "zero1 group size all" in row.text("extras")
    ),
    "BLOOM's search": lambda row: row.text("model").startswith("bloom"),
    "long sequences on Hopper with portable attention": lambda row: (
        row.text("model").startswith("mpt") and row.text("gpu").startswith("H100") and row.sequence_length > 8192
    ),
}  # fmt: skip
REASONS: Mapping[str, str] = {
    "nanotron_playbook-0251": _DISTURBED,
    "nanotron_playbook-1221": _TWICE_DISTURBED,
    "nanotron_playbook-1402": _TWICE_DISTURBED,
    "nanotron_playbook-0243": _DISTURBED,
    "nanotron_playbook-0354": _DISTURBED,
    "nanotron_playbook-0223": _DISTURBED,
    "nanotron_playbook-1409": _FAR_AND_PIPED,
    "nanotron_playbook-0373": _FAR_AND_PIPED,
    "nanotron_playbook-0252": _FAR_AND_PIPED,
    "nanotron_playbook-0372": _FAR_AND_PIPED,
    "nanotron_playbook-0371": _FAR_AND_PIPED,
    "nanotron_playbook-1218": f"{_PIPED}; without ZeRO, as here, even twice as long as with it",
    "nanotron_playbook-1280": f"{_PIPED}; without ZeRO, as here, even twice as long as with it",
    "nanotron_playbook-1388": f"{_PIPED}; without ZeRO, as here, even twice as long as with it",
    "nanotron_playbook-0353": _PIPED,
    "nanotron_playbook-1275": _PIPED,
    "nanotron_playbook-1383": _PIPED,
    "nanotron_playbook-0242": _PIPED,
    "nanotron_playbook-0363": _FAR_TP,
    "nanotron_playbook-0362": _FAR_TP,
    "nanotron_playbook-0156": _FAR_TP,
    "nanotron_playbook-0246": _FAR_TP,
    "nanotron_playbook-0247": _FAR_TP,
    "nanotron_playbook-1130": _FULL_PIPE,
    "nanotron_playbook-1158": _FULL_PIPE,
    "nanotron_playbook-0193": "not known; the same with ZeRO-1 takes half as long, so it is a disturbed run or the reduction "
    "of whole gradients",
    "nanotron_playbook-1343": "not known: two microbatches of half the size take little more than half as long on the same "
    "devices, as predicted",
    "nanotron_playbook-1245": _ONE_SIZE,
    "nanotron_playbook-0190": _ONE_SIZE,
    "nanotron_playbook-0284": "not known: without ZeRO; the same with ZeRO-1 is nearer",
    "internevo-008": _BROADCASTS,
    "internevo-007": _BROADCASTS,
    "internevo-006": _BROADCASTS,
    "bloom_prequel-051": "guessed: heads of 108 numbers, no multiple of eight, for which tensor cores have no fast path; the "
    "same model with 144 is as near as the rest of this source",
    "bloom_prequel-053": "not known: the same layers with other heads, of 192 and not of 128 numbers, run a sixth faster in "
    "this table; single iterations",
    "bloom_prequel-055": "not known: the same job with twice the stages takes a sixth less here, and is as predicted",
    "moe_modelzoo-003": "guessed: our program gathers parameters of 235 billion for every microbatch, forward and backward, "
    "and waits for much of it; Megatron's FSDP evidently hides or saves more than that",
    "mlperf_v5-025": "guessed: reductions of 8 billion parameters are most of so short a step for us; the measured step does "
    "not grow from 4 to 16 nodes at all, as if the network's switches added (SHARP)",
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
