"""Workloads: means, steps, refusals."""

import pytest

from meshwright.specs import SpecError, Workload


def test_full_sequences():
    workload = Workload(8, 1024, num_tokens=100_000)
    assert workload.tokens_per_step == 8192 and workload.num_steps == 13
    assert Workload(8, 1024).num_steps is None


def test_a_distribution_of_lengths():
    workload = Workload(4, 100, lengths=((100, 0.5), (20, 0.5)))
    assert workload.mean_length == 60 and workload.tokens_per_step == 240


@pytest.mark.parametrize(
    "arguments",
    [(0, 1), (1, 0), (1.5, 1), (1, 8, ((9, 1.0),)), (1, 8, ((8, 0.5),)), (1, 8, ((8, -1.0),)), (1, 8, (), 0)],
)
def test_nonsense_is_refused(arguments):
    with pytest.raises(SpecError) as caught:
        Workload(*arguments)
    assert caught.value.allowed
