"""A vision model on four processes whose experts are divided by any r, and by another in each step, is one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.systems.moe.tutel import study
from meshwright.systems.moe.tutel.ops import ExpertSharing, VisionShape
from meshwright.systems.moe.tutel.vision_rows import vision_steps

SMALL = VisionShape(images=3)


@pytest.mark.parametrize("experts", [1, 2])
def test_every_r_is_one_process_and_sends_what_the_closed_form_says(experts: int, gloo_pool: Pool) -> None:
    shape = VisionShape(experts=experts, images=3)
    alone = study.alone(shape, 1)
    for shared in study.degrees_of(shape):
        found = study.on_processes(shape, (shared,), gloo_pool)
        assert study.difference(found, alone) < 1e-10
        expected = {name: each for name, each in study.expected_bytes(shape, shared).items() if each}
        assert {
            name: each for name, each in found.sent_bytes.items() if "COUNT" not in name and each
        } == expected


@pytest.mark.parametrize("experts", [1, 2])
def test_another_r_in_each_step_is_one_process_and_learns(experts: int, gloo_pool: Pool) -> None:
    shape = VisionShape(experts=experts)
    assert (
        set(study.swept(shape))
        == set(study.degrees_of(shape))
        == ({0, 1, 2, 4} if experts == 1 else {0, 1, 2})
    )
    found = study.on_processes(shape, study.swept(shape), gloo_pool)
    assert study.difference(found, study.alone(shape, study.STEPS)) < 1e-10
    assert found.losses[-1] < found.losses[0]


def test_switching_sends_nothing(gloo_pool: Pool) -> None:
    assert study.switching_bytes(2, gloo_pool) == 0.0


def test_experts_get_different_patches() -> None:
    """Else a wrong division could not be told."""
    dense = study.dense_of(SMALL, study.first_dense(SMALL))
    x_NE = study.embedded(study.images_of(SMALL, 0, 0)[0], dense)
    assert len(set(study.gates_of(x_NE, dense[2])[1].tolist())) == 2


def test_who_gathers_and_who_computes() -> None:
    """Four ranks, two experts in two parts each: r = 1 gathers both parts on both, r = 2 neither, r = 0 all on all."""
    one, two, none = (ExpertSharing(SMALL, shared) for shared in (1, 2, 0))
    assert [list(one.gatherers(rank)) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert (one.targets(0, 1), one.targets(3, 0)) == ([2], [1])
    assert (two.num_gathered, two.targets(0, 1)) == (1, [2, 3])
    assert (none.num_gathered, none.targets(3, 0)) == (4, [3])


def test_the_program_is_legal() -> None:
    verify(vision_steps(4, 2))
