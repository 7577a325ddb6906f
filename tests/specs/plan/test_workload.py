"""Workloads: means, steps, refusals."""

import pytest

from meshwright.specs import SpecError, Workload


def test_full_sequences():
    workload = Workload(8, 1024, num_tokens=100_000)
    assert workload.tokens_per_step == 8192 and workload.num_steps == 13
    assert Workload(8, 1024).num_steps is None


def test_a_distribution_of_lengths():
    workload = Workload(4, 100, lengths=((100, 0.5), (20, 0.5)))
    assert workload.mean_length == 60 and workload.tokens_per_step == 400  # packed, so that rows are full


def test_attention_sees_as_many_keys_as_the_documents_of_a_token_have():
    assert Workload(4, 128).attended_length == 128 and Workload(4, 128).document_length == 0
    for length, whole in ((32, 32), (128, 0), (500, 0)):  # what is longer than a row is cut
        assert Workload(4, 128, ((length, 1.0),)).document_length == whole
    # half of the tokens in documents of 256 cut by rows: the mean of the pieces, (L - S / 3) S^2, is in the other formula
    mixed = Workload(4, 4096, ((64, 0.8), (256, 0.2)))
    mean = (
        sum(share * length**2 * (1 - length / 3 / 4096) for length, share in mixed.lengths)
        / mixed.mean_length
    )
    assert mixed.attended_length == pytest.approx(mean, rel=0.01)
    assert mixed.document_length == 4096 // -(-4096 // mixed.attended_length)


@pytest.mark.parametrize(
    "arguments",
    [(0, 1), (1, 0), (1.5, 1), (1, 8, ((0, 1.0),)), (1, 8, ((8, 0.5),)), (1, 8, ((8, -1.0),)), (1, 8, (), 0)],
)
def test_nonsense_is_refused(arguments):
    with pytest.raises(SpecError) as caught:
        Workload(*arguments)
    assert caught.value.allowed
