"""Tables 1 and 2 of arXiv 2104.04473 as plans: what two systems of the paper compare with; and its FLOPs of an iteration,
which further papers count by."""

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
    """A job of the paper. Attributes are columns of its tables; `num_chunks` is the paper's v, `microbatch_size` its b.

    `teraflops` is what each GPU achieved, in 1e12 FLOP/s. `has_torch_ddp`: gradients are reduced by PyTorch's
    DistributedDataParallel, beside the backward; otherwise by Megatron-LM's own of that time, after it.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    tp: int
    pp: int
    num_gpus: int
    global_batch: int
    microbatch_size: int
    teraflops: float
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

    @property
    def num_parameters(self) -> float:
        """The paper's P."""
        return parameters(self.num_layers, self.hidden_size, VOCABULARY_SIZE, SEQUENCE_LENGTH)


# All ten rows, as printed in NVIDIA/Megatron-LM, images/cases_april2021.png (which has t p in one column). Heads, t, p, b, v
# and the kind of data parallelism: examples/academic_paper_scripts/sc21/run_table_1.sh there.
TABLE_1 = {
    "1.7B": TableRow(24, 2304, 24, 1, 1, 32, 512, 16, 137, has_torch_ddp=True),
    "3.6B": TableRow(30, 3072, 32, 2, 1, 64, 512, 16, 138, has_torch_ddp=True),
    "7.5B": TableRow(36, 4096, 32, 4, 1, 128, 512, 16, 142, has_torch_ddp=True),
    "18.4B": TableRow(40, 6144, 48, 8, 1, 256, 1024, 8, 135, has_torch_ddp=True),
    "39.1B": TableRow(48, 8192, 64, 8, 2, 512, 1536, 4, 138),
    "76.1B": TableRow(60, 10240, 80, 8, 4, 1024, 1792, 2, 140, 3),
    "145.6B": TableRow(80, 12288, 96, 8, 8, 1536, 2304, 2, 148, 2),
    "310.1B": TableRow(96, 16384, 128, 8, 16, 1920, 2160, 1, 155, 2),
    "529.6B": TableRow(105, 20480, 128, 8, 35, 2520, 2520, 1, 163, 3),
    "1008.0B": TableRow(128, 25600, 160, 8, 64, 3072, 3072, 1, 163),
}
# The rows of PTD-P: t p and b are columns of the table, t is a node's GPUs; no chunks are spoken of.
TABLE_2 = {
    "174.6B on 384": TableRow(96, 12288, 96, 8, 12, 384, 1536, 1, 153),
    "174.6B on 768": TableRow(96, 12288, 96, 8, 12, 768, 1536, 1, 149),
    "174.6B on 1536": TableRow(96, 12288, 96, 8, 12, 1536, 1536, 1, 141),
    "529.6B on 560": TableRow(105, 20480, 128, 8, 35, 560, 2240, 1, 171),
    "529.6B on 1120": TableRow(105, 20480, 128, 8, 35, 1120, 2240, 1, 167),
    "529.6B on 2240": TableRow(105, 20480, 128, 8, 35, 2240, 2240, 1, 159),
}
ROWS = TABLE_1 | TABLE_2


def row(size: str) -> TableRow:
    """A row by its parameters, such as "39.1B", or for Table 2 "174.6B on 384" GPUs. Raises UnknownNameError."""
    if size not in ROWS:
        raise UnknownNameError("row of Tables 1 and 2", size, ROWS)
    return ROWS[size]


def nearest(size: str) -> TableRow:
    """Of all other rows the one with the nearest parameters, then with the nearest number of GPUs (of two, the first)."""
    this = row(size)

    def distance(other: TableRow) -> tuple[float, float]:
        return (
            abs(math.log(other.num_parameters / this.num_parameters)),
            abs(math.log(other.num_gpus / this.num_gpus)),
        )

    return min((other for name, other in ROWS.items() if name != size), key=distance)


def model(size: str) -> ModelSpec:
    """The GPT-2-like model of a row. Raises UnknownNameError."""
    return _model(row(size), size)


def plan(size: str) -> tuple[Plan, ClusterSpec]:
    """A row as a plan, and the cluster it ran on. Raises UnknownNameError."""
    return plan_of(row(size), size)


def plan_of(this: TableRow, name: str) -> tuple[Plan, ClusterSpec]:
    """A job of the paper as a plan, and the cluster it ran on.

    Mixed precision in float16 with gradients summed in float16 (the scripts set --fp16 and nothing else), all blocks
    recomputed, attention's scores written and read, with dropout (before FlashAttention). Raises PlanError.
    """
    cluster = Cluster(f"{this.num_gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}xA100-80")
    made = Plan.of(
        _model(this, name),
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
        software="fused, stepwise loss",
    )
    return made, cluster


def _model(this: TableRow, name: str) -> ModelSpec:
    """Biases everywhere, learned positions, one table for words and head."""
    return ModelSpec.gpt(
        this.num_layers, this.hidden_size, this.num_heads, vocabulary_size=VOCABULARY_SIZE,
        max_sequence_length=SEQUENCE_LENGTH, name=f"gpt-{name.split()[0]}", source=f"arXiv 2104.04473, {name}",
    )  # fmt: skip


def parameters(num_layers: int, hidden_size: int, vocabulary_size: int, sequence_length: int) -> float:
    """The paper's P, with l, h, V and s as named. Raises SpecError."""
    check_positive(num_layers=num_layers, hidden_size=hidden_size)
    l, h = num_layers, hidden_size
    return 12 * l * h**2 * (1 + 13 / (12 * h) + (vocabulary_size + sequence_length) / (12 * l * h))


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
