"""Keyed draws: a function of the key, alike in any microbatch, fair, with the right gradient."""

from __future__ import annotations

import pytest
import torch

from meshwright.executor.ops.randomness import SampleKeys, dropout, keep_mask, keyed_generator, random_key
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.error import ExecutionError
from meshwright.specs.sequence.sequence_part import SequencePart


def test_keys_depend_on_every_part_and_its_type() -> None:
    parts: list[tuple[int | str, ...]] = [(1, 2, 3), (1, 2, 4), (12, 3), (1, 23), ("1", 2, 3)]
    keys = [random_key(*each) for each in parts]
    assert len(set(keys)) == len(keys)
    assert random_key(1, 2, 3) == 2974798800653005037  # a resumed job draws what it would have drawn


def test_sample_keys_differ_by_everything() -> None:
    base = SampleKeys(0, 0, (0, 1)).of(0, "mlp")
    others = [
        SampleKeys(1, 0, (0, 1)).of(0, "mlp"), SampleKeys(0, 1, (0, 1)).of(0, "mlp"),
        SampleKeys(0, 0, (2, 3)).of(0, "mlp"), SampleKeys(0, 0, (0, 1)).of(1, "mlp"),
        SampleKeys(0, 0, (0, 1)).of(0, "attention"),
    ]  # fmt: skip
    assert len({key for keys in [base, *others] for key in keys}) == 12
    assert SampleKeys(0, 0, (1,)).of(0, "mlp") == base[1:]


def test_generators_repeat() -> None:
    draws = [torch.rand(4, generator=keyed_generator(key)) for key in (2**64 - 1, 2**64 - 1, 5)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_dropout_keeps_the_share_scales_and_has_its_own_gradient() -> None:
    x = torch.full((2, 50, 100), 3.0, dtype=torch.float64, requires_grad=True)
    keys = SampleKeys(0, 0, (0, 1)).of(0)
    y = dropout(x, 0.25, keys)
    kept = y != 0
    assert torch.equal(y[kept], torch.full_like(y[kept], 4.0))
    # 10,000 draws: five standard deviations are 0.022
    assert abs(float(kept.double().mean()) - 0.75) < 0.022
    assert not torch.equal(kept[0], kept[1])
    y.sum().backward()
    assert torch.equal(x.grad, kept.double() * (1 / 0.75))
    assert torch.equal(kept, keep_mask(x.float(), 0.25, keys))


def test_samples_draw_the_same_in_any_microbatch() -> None:
    x = torch.randn(3, 5, 7)
    keys = SampleKeys(0, 0, (8, 9, 10)).of(2)
    together = dropout(x, 0.5, keys)
    assert torch.equal(together[1:2], dropout(x[1:2], 0.5, keys[1:2]))


@pytest.mark.parametrize("num_parts", [1, 2])
def test_ranks_that_divide_a_sequence_draw_what_the_whole_one_draws(num_parts: int) -> None:
    """By context parallelism, and then by tensor parallelism's own parts of these tokens."""
    x, keys = torch.randn(2, 12, 7), SampleKeys(0, 0, (8, 9)).of(2)
    whole = keep_mask(x, 0.5, keys)
    for rank in range(3):
        tokens = SequencePart(12, 3, rank, "zigzag")
        for number in range(num_parts):
            places = token_places(tokens).chunk(num_parts)[number]
            found = keep_mask(x[:, places], 0.5, keys, (number, num_parts), tokens)
            assert torch.equal(found, whole[:, places])


def test_wrong_arguments_are_refused() -> None:
    x = torch.randn(2, 3, 4)
    assert dropout(x, 0.0, (1, 2)) is x
    with pytest.raises(ExecutionError, match="1 keys for 2 samples"):
        dropout(x, 0.5, (1,))
    with pytest.raises(ExecutionError, match="probability is 1.0"):
        dropout(x, 1.0, (1, 2))
