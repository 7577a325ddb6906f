"""Attention over TP x CP x DP and experts over ETP x EP x EDP of the same devices, each folded as is best for it.

Paper:      MoE Parallel Folding: Heterogeneous Parallelism Mappings for Efficient Large-Scale MoE Model Training with
            Megatron Core, Dennis Liu, Zijie Yan, Xin Yao, Tong Liu, Vijay Korthikanti, Evan Wu, Shiqing Fan, Gao Deng,
            Hongxiao Bai, Jianbin Chang, Ashwath Aithal, Michael Andersch, Mohammad Shoeybi, Jiajie Yao, Chandler Zhou,
            David Wu, Xipeng Li, June Yang, 2025, arXiv 2504.14960
Problem:    Experts that are divided as attention is share its tensor-parallel degree, and lie along its data-parallel devices
            only: groups leave the node, and matrices of small experts are cut further.
Idea:       The devices of a pipeline stage fold twice: TP x CP x DP = ETP x EP x EDP. Experts' groups are innermost, so that
            eight of them stay in a node, whatever attention's degrees are. Tokens go along EP, are gathered along ETP, and
            come back the same way. Gradients of experts are reduced over EDP.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner parallel_folding
Simulated:  the fastest plan of every way to divide each model of the table, by this package's own search and prices
Executed:   any folding trains in train (`Plan.etp`, `Plan.ep`), against one process in float64
Differs:    1. Nothing is fitted on the table. Which degrees its rows had is not known to us, so a column is the best plan
            that our search finds under the column's rules, with dropless and evenly loaded experts.
            2. PyTorch's FSDP reached 2 to 10 % of the peak, and 9 to 25 % with experts apart. Ours gathers over all NICs of a
            node, beside computes, in two microbatches at most: 37 %. So these columns are misses, and so is their order.
            3. Sequences are taken to be of 4,096 tokens, jobs of other lengths to have as many tokens a step.
            4. Megatron's unfolded rule is cp 1 here, experts along dp, and etp as tp.
"""

from __future__ import annotations

from meshwright.specs.error import OutOfMemoryError
from meshwright.systems.moe.parallel_folding.mechanism import BATCH, LENGTH, WAYS, best

FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "MFU of {model} on {devices} H100, {way}",
        "kind": "predicted",
        "unit": "%",
        "tolerance": 0.15,
        "reason": "the acceptance of this system",
        "how": "the fastest of the best four plans that the search finds under the column's rules, batch 256, bfloat16",
        "by": "mfu",
        "source": "table of the five methods",
        "null": {"no effect": "unfolded_mfu"},
        "cases": (
            ({"model": "Mixtral-8x22B", "devices": 128, "way": "FSDP"}, 4.3),
            ({"model": "Mixtral-8x22B", "devices": 128, "way": "FSDP+EP"}, 23.4),
            ({"model": "Mixtral-8x22B", "devices": 128, "way": "TP+EP+DP"}, 36.6),
            ({"model": "Mixtral-8x22B", "devices": 128, "way": "MCore"}, 46.3),
            ({"model": "Mixtral-8x22B", "devices": 128, "way": "folded"}, 49.3),
            ({"model": "Llama3-8x70B", "devices": 256, "way": "FSDP+EP"}, 19.6),
            ({"model": "Llama3-8x70B", "devices": 256, "way": "MCore"}, 38.8),
            ({"model": "Llama3-8x70B", "devices": 256, "way": "folded"}, 41.6),
            ({"model": "Qwen2-57B-A14B", "devices": 64, "way": "FSDP"}, 9.9),
            ({"model": "Qwen2-57B-A14B", "devices": 64, "way": "FSDP+EP"}, 25.4),
            ({"model": "Qwen2-57B-A14B", "devices": 64, "way": "TP+EP+DP"}, 23.1),
            ({"model": "Qwen2-57B-A14B", "devices": 64, "way": "MCore"}, 35.3),
            ({"model": "Qwen2-57B-A14B", "devices": 64, "way": "folded"}, 39.0),
            ({"model": "8x22B-G8T8", "devices": 128, "way": "FSDP"}, 2.2),
            ({"model": "8x22B-G8T8", "devices": 128, "way": "FSDP+EP"}, 9.0),
            ({"model": "8x22B-G8T8", "devices": 128, "way": "TP+EP+DP"}, 8.7),
            ({"model": "8x22B-G8T8", "devices": 128, "way": "MCore"}, 17.1),
            ({"model": "8x22B-G8T8", "devices": 128, "way": "folded"}, 28.8),
        ),
    },
    {
        "claim": "{model} on {devices} H100: columns of the table in the published order, of five",
        "kind": "predicted",
        "unit": "columns",
        "tolerance": 0.0,
        "reason": "an order is right or not",
        "how": "columns whose place by predicted MFU is that by published MFU; what does not fit is last",
        "by": "ordered_columns",
        "source": "table of the five methods",
        "null": {"no effect": 0.0},
        "cases": (
            ({"model": "Mixtral-8x22B", "devices": 128}, 5.0),
            ({"model": "Llama3-8x70B", "devices": 256}, 5.0),
            ({"model": "Qwen2-57B-A14B", "devices": 64}, 5.0),
            ({"model": "8x22B-G8T8", "devices": 128}, 5.0),
        ),
    },
    {
        "claim": "Llama3-8x70B, {way}, 256 H100: share of the table's plans that do not fit",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.15,
        "reason": "fits or does not",
        "how": "1 where the search finds nothing that fits",
        "by": "is_out_of_memory",
        "source": "table of the five methods: OOM",
        "null": {"no effect": 0.0},
        "cases": (({"way": "FSDP"}, 1.0), ({"way": "TP+EP+DP"}, 1.0)),
    },
    {
        "claim": "Mixtral-8x22B on 128 H100 in float8 over bfloat16, {way}: TFLOP/s",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "as the table",
        "how": "steps of the fastest plans, linear layers in float8 by one scale a tensor",
        "by": "float8_gain",
        "source": "float8: 575.1 over 458.3 TFLOP/s, folded 631.7 over 487.7",
        "null": {"no effect": 1.0},
        "cases": (({"way": "MCore"}, 1.2549), ({"way": "folded"}, 1.2953)),
    },
    {
        "claim": "{model}, contexts of 128K over 4K tokens, folded: MFU",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "as the table",
        "how": "1,024 H100, as many tokens a step as 1,024 sequences of 4K; attention's operations count",
        "by": "context_ratio",
        "source": "contexts: 35.9 over 38.7 %, and 42.9 over 47.6 %",
        "null": {"no effect": 1.0},
        "cases": (({"model": "Qwen2-57B-A14B"}, 0.9276), ({"model": "Mixtral-8x22B"}, 0.9013)),
    },
    {
        "claim": "headline: MFU of Llama3-8x70B on 1,024 H100, folded",
        "kind": "predicted",
        "unit": "%",
        "tolerance": 0.15,
        "reason": "as the table",
        "how": "as the table; the batch is not known, 1,024 sequences are taken",
        "by": "headline_mfu",
        "source": "strong scaling: 43.7 % to 41.5 % on 1,024 GPUs",
        "null": {"nearest published row": 43.7},
        "cases": (({}, 41.5),),
    },
)
# The published columns in their order, the best first; what ran out of memory is last, in the table's order.
ORDERS = {
    "Mixtral-8x22B": ("folded", "MCore", "TP+EP+DP", "FSDP+EP", "FSDP"),
    "Llama3-8x70B": ("folded", "MCore", "FSDP+EP", "FSDP", "TP+EP+DP"),
    "Qwen2-57B-A14B": ("folded", "MCore", "FSDP+EP", "TP+EP+DP", "FSDP"),
    "8x22B-G8T8": ("folded", "MCore", "FSDP+EP", "TP+EP+DP", "FSDP"),
}
PERCENT, LARGE, LONG = 100.0, 1024, 32  # devices, and contexts of so many times 4K


def mfu(model: str, devices: int, way: str, batch: int = BATCH, length: int = LENGTH) -> float:
    """Percent of the peak. Raises OutOfMemoryError where nothing fits."""
    found = best(model, devices, way, batch, length).mfu
    return PERCENT * (found or 0.0)


def unfolded_mfu(model: str, devices: int, way: str) -> float:
    """What one knows who has seen no difference between columns: the unfolded plan's."""
    return mfu(model, devices, "MCore" if way == "folded" else "folded")


def mfu_or_nothing(model: str, devices: int, way: str) -> float:
    """The same; 0 where nothing fits."""
    try:
        return mfu(model, devices, way)
    except OutOfMemoryError:
        return 0.0


def ordered_columns(model: str, devices: int) -> float:
    """How many columns stand at their published place."""
    ours = sorted(WAYS, key=lambda way: -mfu_or_nothing(model, devices, way))
    return float(sum(one == other for one, other in zip(ours, ORDERS[model], strict=True)))


def is_out_of_memory(way: str) -> float:
    """1 where nothing fits."""
    return float(mfu_or_nothing("Llama3-8x70B", 256, way) == 0.0)


def float8_gain(way: str) -> float:
    """Rate in float8 over that in bfloat16."""
    plain, eighth = (best("Mixtral-8x22B", 128, way, float8=each).step.value for each in ("", "tensorwise"))
    return plain / eighth


def context_ratio(model: str) -> float:
    """MFU with sequences of 128K over that of 4K, as many tokens a step."""
    long = mfu(model, LARGE, "folded", LARGE // LONG, LENGTH * LONG)
    return long / mfu(model, LARGE, "folded", LARGE, LENGTH)


def headline_mfu() -> float:
    """Of 8x70B on 1,024 devices."""
    return mfu("Llama3-8x70B", LARGE, "folded", LARGE)
