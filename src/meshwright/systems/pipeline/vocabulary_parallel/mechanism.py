"""Programs of a vocabulary split over pipeline stages: cells of the published table as plans, and orders with S and T."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.pricing import pricing_of
from meshwright.ir.program import Program
from meshwright.ir.table import Kind, Work
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.split import SplitVocabulary
from meshwright.prediction.step_program import step_program
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_priced
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Vocabulary
from meshwright.specs.plan.workload import Workload

TABLE = "sail-sg/VocabularyParallelism, artifact/README.md (8 A100, p=8, m=128)"
SOURCE = "vocab_parallel"  # the name of the rows of this paper: constants are taken without them
VOCABULARIES = {32: 32_000, 64: 64_000, 128: 128_000, 256: 256_000}
NUM_STAGES, NUM_MICROBATCHES, SEQUENCE_LENGTH = 8, 128, 2_048
NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS = 32, 3_072, 24
# Blocks of the last stage in "redis", by its published seconds of a forward: those of the baseline's last stage without
# its four blocks, plus so many (artifact/exp_one_host.csv of the same repository).
LAST_BLOCKS = {32: 4, 64: 3, 128: 2, 256: 0}
# In units of a forward: what S and T take with about 128k words in the published times, and the embedding's passes.
PASS_SECONDS = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0, "S": 0.2, "T": 0.2, "LOOKUP": 0.05, "SCATTER": 0.05}
STAGE_NAMES = ("F", "I", "W", "B")


def plan(vocabulary: Vocabulary, thousands: int, tokens: int = SEQUENCE_LENGTH) -> tuple[Plan, ClusterSpec]:
    """A cell of the table as a plan, and its cluster; `tokens` of a sequence. In float16 with its gradients, FlashAttention,
    no dropout and no fused loss, as the authors' pretrain_gpt.sh starts it. Raises UnknownNameError."""
    if thousands not in VOCABULARIES:
        raise UnknownNameError("vocabulary of the table", str(thousands), [str(key) for key in VOCABULARIES])
    model = ModelSpec.gpt(
        NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS, vocabulary_size=VOCABULARIES[thousands],
        max_sequence_length=tokens, name=f"gpt-4b-v{thousands}k", source=TABLE,
    )  # fmt: skip
    model = replace(model, has_tied_embeddings=False)
    cluster = Cluster("8xA100-80")
    made = Plan.of(
        model, cluster, Workload(NUM_MICROBATCHES, tokens), schedule="1f1b", pp=NUM_STAGES, microbatch_size=1,
        dtype="float16", reduction_dtype="float16", master_dtype="float32", overlap=(), vocabulary=vocabulary,
        software="fused, stepwise loss",
    )  # fmt: skip
    return made, cluster


def redistributed(thousands: int, tokens: int = SEQUENCE_LENGTH) -> tuple[Plan, ClusterSpec]:
    """A cell of the rows "redis": blocks moved from the last stage to those before it, the latest first. Raises
    UnknownNameError."""
    made, cluster = plan("ends", thousands, tokens)
    last = LAST_BLOCKS[thousands]
    share, rest = divmod(NUM_LAYERS - last, NUM_STAGES - 1)
    others = (share + (stage >= NUM_STAGES - 1 - rest) for stage in range(NUM_STAGES - 1))
    return made.changed(layers_per_stage=(*others, last)), cluster


def device_flops(made: Plan, cluster: ClusterSpec) -> NDArray[np.float64]:
    """FLOPs of the computes of every device of the pipeline in a step."""
    program = step_program(made, cluster).wiring.program
    flops = np.array([work.flops for work in program.tables.works])
    rows = np.flatnonzero((program.kinds == Kind.COMPUTE) & (program.columns.work >= 0))
    found = np.bincount(
        program.list_of_row[rows], weights=flops[program.columns.work[rows]], minlength=program.num_lists
    )
    return np.asarray(found, dtype=np.float64)


def priced_step(vocabulary: Vocabulary, thousands: int) -> Trace:
    """One iteration of a cell's program at the cost model's prices."""
    made, cluster = plan(vocabulary, thousands)
    step = step_program(made, cluster)
    return simulate_priced(step.wiring, step.priced(pricing_of(made, cluster, left_out=SOURCE).costs))


def split_order(
    schedule: str,
    num_devices: int,
    num_microbatches: int,
    vocabulary: Vocabulary,
    num_chunks: int | None = None,
) -> Program:
    """Any schedule's computes, with the passes of a split vocabulary ("ends": without), and what is sent between devices."""
    found = registered()[schedule]
    chunks = found.num_chunks if num_chunks is None else num_chunks
    program = program_of_orders(found.orders(num_devices, num_microbatches, chunks))
    if vocabulary != "ends":
        program = SplitVocabulary(vocabulary)(program)
    stages = range(program.tables.num_stages)
    works = {
        (name, stage): Work(name, share=1 / chunks if name in STAGE_NAMES else 1.0)
        for name in PASS_SECONDS
        for stage in stages
    }
    return with_works(Transfers()(program), works)
