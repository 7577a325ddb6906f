"""Table 1 of arXiv 2104.04473 as plans: what two systems of the paper compare with; and its FLOPs of an iteration, which
further papers count by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

VOCABULARY_SIZE, SEQUENCE_LENGTH = 51_200, 2_048  # of every row
GPUS_PER_NODE = 8  # DGX A100, one 200 Gb/s HDR port a GPU


@dataclass(frozen=True)
class TableRow:
    """A row of Table 1. Attributes are its columns; `num_chunks` is the paper's v, `microbatch_size` its b.

    `has_torch_ddp`: gradients are reduced by PyTorch's DistributedDataParallel, beside the backward; otherwise by
    Megatron-LM's own of that time, after it. This, `num_chunks` and `microbatch_size` stand in NVIDIA/Megatron-LM,
    examples/academic_paper_scripts/sc21/run_table_1.sh (as 1.7B, 7.5B, 39B, 145B and 530B), not in the table.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    tp: int
    pp: int
    num_gpus: int
    global_batch: int
    microbatch_size: int
    num_chunks: int = 1
    has_torch_ddp: bool = False

    @property
    def dp(self) -> int:
        """The paper's d."""
        return self.num_gpus // (self.tp * self.pp)

    @property
    def num_microbatches(self) -> int:
        """The paper's m, of one pipeline."""
        return self.global_batch // (self.dp * self.microbatch_size)

    @property
    def schedule(self) -> str:
        """By name, as schedules/ has it."""
        return "1f1b" if self.num_chunks == 1 else "interleaved_1f1b"


TABLE_1 = {
    "1.7B": TableRow(24, 2304, 24, 1, 1, 32, 512, 16, has_torch_ddp=True),
    "7.5B": TableRow(36, 4096, 32, 4, 1, 128, 512, 16, has_torch_ddp=True),
    "39.1B": TableRow(48, 8192, 64, 8, 2, 512, 1536, 4),
    "145.6B": TableRow(80, 12288, 96, 8, 8, 1536, 2304, 2, 2),
    "529.6B": TableRow(105, 20480, 128, 8, 35, 2520, 2520, 1, 3),
}


def row(size: str) -> TableRow:
    """A row of Table 1 by its parameters, such as "39.1B". Raises UnknownNameError."""
    if size not in TABLE_1:
        raise UnknownNameError("row of Table 1", size, TABLE_1)
    return TABLE_1[size]


def model(size: str) -> ModelSpec:
    """The GPT-2-like model of a row: biases everywhere, learned positions, one table for words and head."""
    this = row(size)
    return ModelSpec.gpt(
        this.num_layers, this.hidden_size, this.num_heads, vocabulary_size=VOCABULARY_SIZE,
        max_sequence_length=SEQUENCE_LENGTH, name=f"gpt-{size}", source=f"arXiv 2104.04473, Table 1, {size}",
    )  # fmt: skip


def plan(size: str) -> tuple[Plan, ClusterSpec]:
    """A row as a plan, and the cluster it ran on.

    Mixed precision in float16 with gradients summed in float16 (the scripts set --fp16 and nothing else), all blocks
    recomputed, attention's scores written and read, with dropout (before FlashAttention). Raises UnknownNameError.
    """
    this = row(size)
    cluster = Cluster(f"{this.num_gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}xA100-80")
    made = Plan.of(
        model(size),
        cluster,
        Workload(this.global_batch, SEQUENCE_LENGTH),
        schedule=this.schedule,
        pp=this.pp,
        tp=this.tp,
        num_chunks=this.num_chunks,
        microbatch_size=this.microbatch_size,
        recompute="full",
        dtype="float16",
        reduction_dtype="float16",
        master_dtype="float32",
        overlap=("reduce",) if this.has_torch_ddp else (),
        attention="unfused_dropout",
        software="fused",
    )
    return made, cluster


def iteration_flops(
    num_layers: int, hidden_size: int, vocabulary_size: int, sequence_length: int, global_batch: int
) -> float:
    """The paper's F: forward, recompute and backward of B sequences, attention to all s tokens. Raises SpecError."""
    check_positive(num_layers=num_layers, hidden_size=hidden_size)
    l, h, s = num_layers, hidden_size, sequence_length
    return 96 * global_batch * s * l * h**2 * (1 + s / (6 * h) + vocabulary_size / (16 * l * h))


def check_positive(**values: float) -> None:
    """What is divided by; the message names it."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise SpecError(f"{name} is {value!r}", allowed="a finite number above 0")
