"""Groups of byte_scale here: a sequence on three processes beside packed short ones on a fourth, against one process."""

from __future__ import annotations

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.grouped_program import grouped_program
from meshwright.lowering.sequence.group_plan import plan_of_rank
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.byte_scale.mechanism import ByteScale

MODEL = ModelSpec.decoder(2, 32, 4, max_sequence_length=64, vocabulary_size=60, name="grouped")
LENGTHS, RANK_TOKENS, NUM_RANKS = (41, 3, 9, 5, 2, 14, 11), 16, 4
# Of groups whose pieces take as long as they have tokens and a start: a machine that was measured would have its own groups.
COSTS = SequenceCosts(
    square_s=0.0, token_s=1.0, fixed_s=7.0, token_bytes=1.0, state_bytes=0.0, capacity_bytes=1e6, ring_bytes=1.0,
    rates={NUM_RANKS: 1.0}, is_beside=True,
)  # fmt: skip
ITERATIONS = 2


def plan_of(num_ranks: int) -> Plan:
    """Ranks that hold copies of a small model, in float64."""
    cluster, workload = Cluster.detect(num_ranks), Workload(num_ranks, 16)
    return Plan.of(MODEL, cluster, workload, dtype="float64", dp=num_ranks, context="ring")


def uneven_groups() -> GroupedBatch:
    """By byte_scale: the longest on three ranks, and of the packs of the others more on one rank than on others."""
    return ByteScale(tokens=RANK_TOKENS)(LENGTHS, NUM_RANKS, COSTS)


def trained(groups: GroupedBatch, pool: Pool | None = None) -> JobResult:
    """A few steps of these groups on as many processes."""
    plan = plan_of(groups.num_ranks)
    own = plan_of_rank(plan, groups)
    training = TrainingConfig(
        MODEL, own.layers_per_stage, max(groups.lengths), source=RANDOM, records_gradients=True,
        layout=TensorLayout.of(own), data_axes=(), groups=groups,
    )  # fmt: skip
    job = Job.of(grouped_program(plan, groups), ITERATIONS, training=training, dtype=plan.dtype)
    with opened_pool(pool, groups.num_ranks) as workers:
        return workers.run(job)


def gradient_difference(pool: Pool | None = None) -> float:
    """Between the gradients of the first step, and of one process that has one sequence at a time: the largest."""
    groups = uneven_groups()
    alone = tuple(SequenceGroup((0,), (number,)) for number in range(len(LENGTHS)))
    ours, theirs = trained(groups, pool), trained(GroupedBatch(LENGTHS, 1, alone))
    first, other = ours.gradients[0], theirs.gradients[0]
    return max(float((first[name] - other[name]).abs().max()) for name in other)
