"""What is executed of byte_scale: three ranks for one sequence, packed short ones beside it, one process's gradients."""

from __future__ import annotations

from meshwright.executor.job.pool import Pool
from meshwright.systems.sequence.byte_scale import study


def test_a_sequence_of_three_ranks_and_packs_beside_it_have_one_process_gradients(gloo_pool: Pool) -> None:
    groups = study.uneven_groups()
    assert sorted({group.degree for group in groups.groups}) == [1, 3]
    assert any(len(group.sequences) > 1 for group in groups.groups if group.degree == 1)
    assert len({len(own) for own in groups.of_rank}) > 1  # ranks have unequal numbers of microbatches
    assert study.gradient_difference(gloo_pool) < 1e-10
