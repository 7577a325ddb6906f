"""Works of a split vocabulary: no FLOP more or less than unsplit, but padding, and the same on all devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.lowering.vocabulary.split import Algorithm
from meshwright.lowering.vocabulary.work import vocabulary_works
from meshwright.stage.stage_pass import works
from meshwright.systems.pipeline.vocabulary_parallel.mechanism import plan

ALGORITHMS: tuple[Algorithm, ...] = ("one_barrier", "two_barriers", "interlaced")
PASSES = ("F", "B", "LOOKUP", "S", "T", "SCATTER")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_flops_are_those_of_the_unsplit_stages(algorithm: Algorithm) -> None:
    made, _ = plan("ends", 256)
    unsplit = works(made, made.stages(), [1] * 8)
    made = made.changed(vocabulary=algorithm)
    split = works(made, made.stages(), [1] * 8) | vocabulary_works(made, algorithm, 8)
    wanted = sum(unsplit[name, stage].flops for name in ("F", "B") for stage in range(8))
    # every device looks up, and scatters, all tokens
    assert sum(split[name, stage].flops for name in PASSES for stage in range(8)) == pytest.approx(
        wanted, rel=1e-3
    )


def test_s_has_two_products_of_three_with_one_barrier_and_one_with_two() -> None:
    made, _ = plan("ends", 256)
    rows = 256_000 // 8
    product = 2 * 2_048 * 3_072 * rows
    for algorithm, in_s in (("one_barrier", 2), ("two_barriers", 1), ("interlaced", 1)):
        split = vocabulary_works(made, algorithm, 8)  # type: ignore[arg-type]
        for name, count in (("S", in_s), ("T", 3 - in_s)):
            products = [o.flops * o.count for o in split[name, 3].operators if o.kind == "matmul"]
            assert sum(products) == count * product


def test_t_scales_what_s_made_of_its_own_rows_but_where_s_waited_for_the_sums() -> None:
    """Bytes of the loss and of scaling, for each logit of a device: forward 4, backward 8, in 16 bits."""
    made, _ = plan("ends", 256)
    logits = 2_048 * 256_000 // 8
    for algorithm, wanted in (("one_barrier", (12, 8)), ("two_barriers", (4, 16)), ("interlaced", (4, 8))):
        split = vocabulary_works(made, algorithm, 8)  # type: ignore[arg-type]
        touched = [
            sum(o.total_bytes for o in split[name, 3].operators if o.kind != "matmul") / logits
            for name in "ST"
        ]
        assert touched == list(wanted)


def test_rows_are_padded_to_whole_numbers() -> None:
    made, _ = plan("ends", 32)
    odd = replace(made, model=replace(made.model, vocabulary_size=31_993))
    assert vocabulary_works(odd, "one_barrier", 8)["S", 0] == vocabulary_works(made, "one_barrier", 8)["S", 0]


def test_positions_and_the_last_norm_stay_with_their_stages() -> None:
    made = plan("one_barrier", 32)[0]
    split = works(made, made.stages(), [1] * 8)
    hidden = 2_048 * 3_072 * 2
    touched = {
        name: [(split[name, stage].bytes - split[name, 1].bytes) / hidden for stage in range(8)]
        for name in "FB"
    }
    # a sum of two; a norm reads and writes; backward their gradients, and what these are made of
    assert touched == {"F": [3, 0, 0, 0, 0, 0, 0, 2], "B": [1, 0, 0, 0, 0, 0, 0, 5]}
    assert {each.kind for each in vocabulary_works(made, "one_barrier", 8)["LOOKUP", 3].operators} == {
        "embedding"
    }
