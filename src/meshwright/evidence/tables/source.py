"""What is known of sources of measured training runs and does not stand in their rows' columns, with its reference.

A source is found by its name or by the repository that published it. Of an unknown one nothing is assumed but the
general rules of `Facts`. Words of single rows (`schedule`, `extras`, `precision`) are read in `training_job`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.specs.plan.plan import Attention, Recompute

BILLION = 1e9


@dataclass(frozen=True)
class Facts:
    """What holds for the rows of one source.

    Attributes:
        stack: name of the software; empty where it is not known.
        repository: part of `source_repo` by which the source is known, too.
        overlap: communication that runs beside computes; None: gradients, and with sharded parameters these, too.
        is_tp_overlapped: tensor parallelism's communication runs beside computes where tp > 1.
        software: efficiency class, where rows do not say it; empty: by their words.
        stages: "even", or "by cost": blocks go to a stage until its share of all products is exceeded, the head included.
        attention: "unfused_dropout" before FlashAttention.
        reduction_dtype: of gradients, where the row does not say.
        has_whole_experts: no expert is divided along tp.
        zero: what is sharded where the row does not say.
        microbatch_size, num_chunks: where the row does not say: from parameters, and from parameters and the
            layers of a pipeline rank. None: 1.
        reports_reserved: its memory column is what the allocator holds, not what tensors take.
        recomputes: tried where the row does not say, until one fits; the last one is taken as it is.
        reference: where all of that stands.
    """

    stack: str = ""
    repository: str = ""
    overlap: tuple[str, ...] | None = None
    is_tp_overlapped: bool = False
    software: str = ""
    stages: Literal["even", "by cost"] = "even"
    attention: Attention = "flash"
    reduction_dtype: str = "float32"
    has_whole_experts: bool = False
    zero: int = 0
    microbatch_size: Callable[[float], int] | None = None
    num_chunks: Callable[[float, float], int] | None = None
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    reports_reserved: bool = False
    reference: str = "general rule for a source that is not known"


# Parameters (1e9) up to which a microbatch has so many sequences: Narayanan et al., arXiv 2104.04473, table 1, and
# its scripts run_table_1.sh; a size that is not listed takes the microbatch of the next larger one.
SC21_MICROBATCHES = ((1.7, 16), (7.5, 16), (39.1, 4), (145.6, 2), (529.6, 1))
SC21_CHUNKS = ((76.0, 3), (145.0, 2), (310.0, 2), (530.0, 3))  # the same scripts, by parameters (1e9)
SAME_SIZE = 0.05  # parameters are published rounded, and with or without the padded vocabulary
H100_MICROBATCH = 4  # as the calibration tables' README has it; the script for the table is not published


def sc21_microbatch(num_parameters: float) -> int:
    """Sequences of a microbatch of the 2021 paper for a model of that size."""
    found = (
        size for listed, size in SC21_MICROBATCHES if num_parameters <= listed * BILLION * (1 + SAME_SIZE)
    )
    return next(found, 1)


def sc21_chunks(num_parameters: float, layers_per_rank: float) -> int:
    """Chunks a device of the 2021 paper for a model of that size."""
    near = (
        chunks for listed, chunks in SC21_CHUNKS if abs(num_parameters / (listed * BILLION) - 1) <= SAME_SIZE
    )
    return next(near, 1)


def most_chunks(num_parameters: float, layers_per_rank: float) -> int:
    """The largest number of chunks that divides the layers of a pipeline rank: one layer in each."""
    return int(layers_per_rank) if layers_per_rank == int(layers_per_rank) else 1


SHARDED_OVERLAP = ("reduce", "gather")
SOURCES: Mapping[str, Facts] = {
    "mosaic": Facts(
        stack="llm-foundry",
        repository="llm-foundry",
        overlap=SHARDED_OVERLAP,
        reference="PyTorch FSDP prefetches parameters and reduces gradients beside the backward; Composer's DEFAULT "
        "reduces in float32, PURE in bfloat16",
    ),
    "torchtitan": Facts(
        stack="torchtitan",
        repository="torchtitan",
        overlap=SHARDED_OVERLAP,
        reports_reserved=True,
        reference="FSDP2 prefetches parameters and reduces gradients in float32 beside the backward; its memory column "
        "is max_reserved (components/metrics.py)",
    ),
    "megatron_sc21": Facts(
        stack="megatron 2021",
        overlap=(),
        attention="unfused_dropout",
        microbatch_size=sc21_microbatch,
        num_chunks=sc21_chunks,
        reference="arXiv 2104.04473, table 1 and run_table_1.sh; nothing overlapped, before FlashAttention",
    ),
    "megatron_selective": Facts(
        stack="megatron 2021",
        overlap=(),
        attention="unfused_dropout",
        reference="arXiv 2205.05198; nothing overlapped, before FlashAttention",
    ),
    "megatron_h100": Facts(
        stack="megatron",
        repository="Megatron-LM",
        overlap=SHARDED_OVERLAP,
        is_tp_overlapped=True,
        zero=1,
        microbatch_size=lambda _: H100_MICROBATCH,
        num_chunks=most_chunks,
        reference="README of Megatron-LM: microbatches of 4, as many chunks as divide, all communication overlapped",
    ),
    "megatron_bridge": Facts(
        stack="megatron",
        repository="Megatron-Bridge",
        overlap=SHARDED_OVERLAP,
        is_tp_overlapped=True,
        reduction_dtype="bfloat16",
        zero=1,
        recomputes=("none", "selective"),
        reference="Megatron-Bridge's performance recipes (scripts/performance): distributed optimizer, "
        "grad_reduce_in_fp32 off, all communication overlapped, recompute_modules of layernorm and moe_act at most",
    ),
    "moe_modelzoo": Facts(
        stack="megatron",
        repository="Megatron-MoE-ModelZoo",
        overlap=SHARDED_OVERLAP,
        has_whole_experts=True,
        zero=1,
        recomputes=("none",),
        reference="model_configs/benchmarking/*.yaml: distributed optimizer, grad-reduce and param-gather overlapped, "
        "expert-tensor-parallel-size 1, no tp-comm-overlap; scripts recompute layernorm and moe_act at most",
    ),
    "mlperf_train": Facts(
        stack="megatron",
        repository="training_results",
        overlap=SHARDED_OVERLAP,
        is_tp_overlapped=True,
        zero=1,
        reference="NVIDIA's MLPerf configurations: distributed Adam, user-buffer tp communication",
    ),
    "nemo_longseq": Facts(
        stack="megatron",
        repository="NVIDIA/NeMo",
        overlap=SHARDED_OVERLAP,
        is_tp_overlapped=True,
        zero=1,
        reference="NeMo's performance recipes: distributed Adam, microbatches of one sequence",
    ),
    "simumax_b200": Facts(
        stack="megatron",
        repository="SimuMax",
        overlap=SHARDED_OVERLAP,
        zero=1,
        reference="SimuMax compares with Megatron-LM and its distributed optimizer",
    ),
    "vocab_parallel": Facts(
        stack="megatron",
        repository="VocabularyParallelism",
        overlap=(),
        reference="a fork of Megatron-LM (arXiv 2411.05288)",
    ),
    "internevo": Facts(
        stack="internevo",
        repository="InternEvo",
        overlap=("reduce",),
        reduction_dtype="bfloat16",
        zero=1,
        reference="InternEvo's 7B configuration: overlap_sync_grad on, overlap_sync_param off; gradients in bfloat16",
    ),
    "nanotron_playbook": Facts(
        stack="nanotron",
        repository="nanotron",
        software="eager",
        stages="by cost",
        reference="nanotron: modules of PyTorch run eagerly; build_model balances pipeline blocks by get_block_compute_costs",
    ),
}


def facts_of(source: str, repository: str) -> Facts:
    """The facts of a source by its name, else by its repository; general rules for one that is not known."""
    if source in SOURCES:
        return SOURCES[source]
    published = (facts for facts in SOURCES.values() if facts.repository and facts.repository in repository)
    return next(published, Facts())
