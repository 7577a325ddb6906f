"""What a paper or a repository with published runs says of all of them, beside a table's columns: its settings and rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.evidence.tables.table import TrainingRow
from meshwright.specs.plan.plan import Recompute
from meshwright.specs.stack.traits import SHARDED, Traits, traits_of

BILLION = 1e9
# Days: an ISO date, else the month of a paper's number at arXiv.
DAY, PAPER = re.compile(r"\b20\d\d-[01]\d-[0-3]\d\b"), re.compile(r"\b(\d\d)([01]\d)\.\d{5}\b")
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


@dataclass(frozen=True)
class Published:
    """What holds for the runs that one paper or repository published.

    Attributes:
        named_by: its name in a row's source_repo, source_path or note, as a regular expression.
        software: what ran, where rows do not name it. day: when, where they do not say.
        settings: traits that its scripts set otherwise than the software by itself.
        microbatch_size, num_chunks: where the row does not say: from parameters, and from parameters and the
            layers of a pipeline rank. None: 1.
        recomputes: tried where the row does not say, until one fits; the last one is taken as it is.
        reference: where all of that stands.
    """

    named_by: str = ""
    software: str = ""
    day: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    microbatch_size: Callable[[float], int] | None = None
    num_chunks: Callable[[float, float], int] | None = None
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    reference: str = "general rule"


ALL_OVERLAPPED = (*SHARDED, "tp")
NOTHING_KNOWN = Published()
PUBLISHED = (
    Published(
        r"cases_april2021|2104\.04473", "Megatron-LM", "2021-04-09", microbatch_size=sc21_microbatch, num_chunks=sc21_chunks,
        reference="arXiv 2104.04473, table 1 and run_table_1.sh",
    ),
    Published(r"2205\.05198", "Megatron-LM", "2022-05-10", reference="arXiv 2205.05198"),
    Published(
        r"NVIDIA/Megatron-LM\b", settings={"overlaps": ALL_OVERLAPPED}, microbatch_size=lambda _: H100_MICROBATCH,
        num_chunks=most_chunks,
        reference="README of Megatron-LM: microbatches of 4, as many chunks as divide, all communication overlapped",
    ),
    Published(
        "Megatron-Bridge", settings={"overlaps": ALL_OVERLAPPED, "reduces_in": "bfloat16", "dispatch": "once"},
        recomputes=("none", "selective"),
        reference="Megatron-Bridge's performance recipes (scripts/performance): distributed optimizer, "
        "grad_reduce_in_fp32 off, all communication overlapped, recompute_modules of layernorm and moe_act at most; "
        "most of those with experts have moe_flex_dispatcher_backend hybridep",
    ),
    Published(
        "Megatron-MoE-ModelZoo", settings={"has_whole_experts": True, "overlaps": ALL_OVERLAPPED}, recomputes=("none",),
        reference="model_configs/benchmarking/*.yaml: distributed optimizer, grad-reduce and param-gather overlapped, "
        "expert-tensor-parallel-size 1; scripts recompute layernorm and moe_act at most, and sbatch_benchmarking.sh adds "
        "tp-comm-overlap in bf16",
    ),
    Published(
        r"training_results_v5", "Megatron-LM", settings={"overlaps": ALL_OVERLAPPED, "reduces_in": "bfloat16"},
        reference="NVIDIA's configurations of MLPerf Training v5.0 and v5.1: distributed Adam, user-buffer tp communication, "
        "grad_reduce_in_fp32 off (pretrain.py of llama31_405b)",
    ),
    Published(
        r"training_results", "Megatron-LM", settings={"overlaps": ALL_OVERLAPPED},
        reference="NVIDIA's earlier MLPerf configurations: distributed Adam, user-buffer tp communication",
    ),
    Published(
        r"NVIDIA/NeMo\b", settings={"overlaps": ALL_OVERLAPPED},
        reference="NeMo's performance recipes: distributed Adam, microbatches of one sequence",
    ),
    Published(
        "AMD-AGI/Primus", settings={"fuses_loss": "fused, loss in place"},
        reference="scripts of examples/moe_package fuse the loss with --cross_entropy_fusion_impl te",
    ),
    Published(
        "SimuMax", "Megatron-LM", reference="SimuMax compares with Megatron-LM and its distributed optimizer"
    ),
    Published(
        r"VocabularyParallelism|2411\.05288", "Megatron-LM", settings={"overlaps": (), "reports": "reserved"},
        reference="a fork of Megatron-LM (arXiv 2411.05288); artifact/quick_exp.sh takes the largest \"max reserved\"",
    ),
)  # fmt: skip


def published_of(row: TrainingRow) -> Published:
    """The paper or repository that a row names; nothing known where it names none of these."""
    text = " ".join(row.text(column) for column in ("source_repo", "source_path", "note"))
    return next((each for each in PUBLISHED if re.search(each.named_by, text)), NOTHING_KNOWN)


def traits_of_row(row: TrainingRow) -> Traits:
    """What the row's software does: by what it says of itself, else by who published it, with their settings."""
    published = published_of(row)
    said = (row.text(column) for column in ("extras", "schedule"))
    named = (row.text(column) for column in ("source_repo", "note"))
    return replace(traits_of((*said, published.software, *named), day_of(row)), **published.settings)


def day_of(row: TrainingRow) -> str:
    """When a row ran at the latest, as ISO; empty where neither it nor who published it says."""
    note = row.text("note")
    days = [*DAY.findall(note), *(f"20{year}-{month}" for year, month in PAPER.findall(note))]
    return published_of(row).day or max(days, default="")
