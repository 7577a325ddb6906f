"""Steps whose sequences are in groups of ranks, predicted: by the works of their own lengths, on GPUs and on processes."""

from __future__ import annotations

import pytest

from meshwright.ir.table import Kind
from meshwright.lowering.grouped_program import grouped_program
from meshwright.lowering.lower import lower
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.order import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.stage.operator.attention import OF_ATTENTION

MODEL = ModelSpec.decoder(4, 4096, 32, num_kv_heads=32, vocabulary_size=32000, max_sequence_length=1 << 17)
LONG, SHORT = 65536, 4096


def predicted(groups: GroupedBatch, **choices: object) -> Predicted:
    cluster = Cluster("8x a100-80gb")
    plan = Plan.of(MODEL, cluster, Workload(8, LONG), dp=8, dtype="bfloat16", **choices)
    return predict(plan, cluster, groups=groups)


def test_a_long_sequence_over_all_ranks_is_faster_than_on_one_and_short_ones_are_not() -> None:
    alone = GroupedBatch((LONG,), 8, (SequenceGroup((0,), (0,)),))
    shared = GroupedBatch((LONG,), 8, (SequenceGroup(tuple(range(8)), (0,)),))
    ratio = predicted(alone).step.value / predicted(shared).step.value
    assert 4 < ratio < 8
    short = (SHORT // 8,) * 8
    each = GroupedBatch(short, 8, tuple(SequenceGroup((rank,), (rank,)) for rank in range(8)))
    together = GroupedBatch(short, 8, (SequenceGroup(tuple(range(8)), tuple(range(8))),))
    assert predicted(each).step.value < predicted(together).step.value


def test_it_is_a_prediction_as_any_other() -> None:
    found = predicted(
        GroupedBatch((SHORT, LONG), 8, (SequenceGroup((0,), (0,)), SequenceGroup((1, 2, 3, 5), (1,))))
    )
    assert found.level == "segments"
    assert 0 < found.step.low < found.step.value < found.step.high
    assert found.tokens_per_s == pytest.approx((SHORT + LONG) / found.step.value)
    assert found.bound_bytes > 0
    assert found.trace().num_iterations == found.iterations


def test_flops_of_packed_sequences_are_those_of_each_of_them() -> None:
    """Of two sequences that one rank has as of two microbatches; of one that four ranks share four times a quarter, and what
    merging pieces takes beside it."""
    cluster = Cluster.detect(4)
    plan = Plan.of(MODEL, cluster, Workload(4, 4096), dp=4, dtype="bfloat16")
    rank = tuple(range(4))

    def flops(groups: GroupedBatch, name: str) -> float:
        program = grouped_program(plan, groups)
        works, c = program.tables.works, program.columns
        named = [e for e, effect in enumerate(program.tables.effects) if effect.name == name]
        numbers = c.work[[e in named for e in c.effect.tolist()]]
        products = {
            n: [op for op in works[n].operators if op.label not in OF_ATTENTION]
            for n in set(numbers.tolist())
        }
        return sum(total_flops(products[n]) for n in numbers.tolist())

    for name in ("F", "ATTEND", "ATTEND_BACKWARD"):
        packed = flops(GroupedBatch((2048, 1024), 4, (SequenceGroup((0,), (0, 1)),)), name)
        apart = flops(
            GroupedBatch((2048, 1024), 4, (SequenceGroup((0,), (0,)), SequenceGroup((1,), (1,)))), name
        )
        if name != "F":  # a rank without a sequence has a token of padding
            assert packed == pytest.approx(apart, rel=1e-6)
        whole = flops(GroupedBatch((4096,), 4, (SequenceGroup(rank, (0,)),)), name)
        alone = flops(GroupedBatch((4096,), 4, (SequenceGroup((2,), (0,)),)), name)
        assert whole == pytest.approx(alone, rel=1e-3)


def test_equal_groups_take_what_the_same_plan_takes() -> None:
    """Every rank one sequence: the program of dp, but for attention's own segment."""
    groups = GroupedBatch((1024,) * 4, 4, tuple(SequenceGroup((rank,), (rank,)) for rank in range(4)))
    plan = Plan.of(MODEL, Cluster.detect(4), Workload(4, 1024), dp=4)
    ours, theirs = grouped_program(plan, groups), lower(plan, registered()["1f1b"])

    def work(program: object) -> float:
        c, works = program.columns, program.tables.works  # type: ignore[attr-defined]
        own = c.work[(program.list_of_row == 0) & (program.kinds == Kind.COMPUTE)]  # type: ignore[attr-defined]
        return sum(works[n].flops for n in own.tolist() if n >= 0)

    assert work(ours) == pytest.approx(work(theirs), rel=1e-9)


def test_model_flops_are_of_every_sequence_by_its_own_length() -> None:
    found = predicted(
        GroupedBatch((SHORT, LONG), 8, (SequenceGroup((0,), (0,)), SequenceGroup((1, 2), (1,))))
    )
    needed = SHORT * MODEL.train_flops_per_token(SHORT) + LONG * MODEL.train_flops_per_token(LONG)
    assert found.flops.per_device == pytest.approx(needed / 8)
