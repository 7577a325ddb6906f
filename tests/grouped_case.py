"""A small training step whose sequences are in groups of ranks; drawn groups; for tests of their programs and training."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.specs.cluster.source import Cluster
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from tests.planned_case import MODELS

LONGEST = 24  # tokens of a drawn sequence
# The groups of four ranks: (ranks, sequences) in their order.
MIXED = GroupedBatch(
    (9, 4, 6, 3), 4, (SequenceGroup((2, 0), (0,)), SequenceGroup((1,), (1, 3)), SequenceGroup((3,), (2,)))
)
WHOLE = GroupedBatch((16, 5), 4, (SequenceGroup((0, 1, 2, 3), (1, 0)),))
THREE = GroupedBatch((14, 3, 2, 1, 5), 4, (SequenceGroup((3, 0, 1), (0,)), SequenceGroup((2,), (4, 1, 2, 3))))
UNEVEN = GroupedBatch(
    (3, 11, 2, 7, 4, 9, 1), 4,
    (
        SequenceGroup((0,), (0,)), SequenceGroup((1, 0), (1,)), SequenceGroup((0,), (2, 6)),
        SequenceGroup((3, 2, 1, 0), (3,)), SequenceGroup((2,), (4,)), SequenceGroup((1, 3), (5,)),
    ),
)  # fmt: skip
IDLE = GroupedBatch((6, 3), 4, (SequenceGroup((0, 2), (0,)), SequenceGroup((0,), (1,))))
CASES = {"2, 1, 1": MIXED, "4": WHOLE, "3, 1": THREE, "uneven": UNEVEN, "idle": IDLE}


def grouped_plan(model: str = "llama", num_ranks: int = 4, **choices: Any) -> Plan:
    """A plan for so many ranks; what it says of its batch is left to the groups."""
    tp = choices.get("tp", 1)
    given = {"dtype": "float64", "dp": num_ranks, **choices}
    return Plan.of(MODELS[model], Cluster.detect(num_ranks * tp), Workload(num_ranks, 8), **given)


@st.composite
def drawn_batches(draw: st.DrawFn, num_ranks: int = 4, most: int = 6) -> GroupedBatch:
    """Uneven sequences in any groups: any set of ranks in any order, each as often as it happens."""
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=most))
    left = draw(st.permutations(range(len(lengths))))
    groups = []
    while left:
        ranks = draw(st.permutations(range(num_ranks)))[: draw(st.integers(1, num_ranks))]
        taken = draw(st.integers(1, len(left)))
        groups.append(SequenceGroup(tuple(ranks), tuple(left[:taken])))
        left = left[taken:]
    return GroupedBatch(tuple(lengths), num_ranks, tuple(groups))
