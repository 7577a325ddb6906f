"""A split vocabulary executed on gloo: loss, dX and dW are those of one process, in every kind of order."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tests.gloo_pool import gloo_pool

from meshwright.executor.job.pool import Pool
from meshwright.systems.pipeline.vocabulary_parallel.study import MODEL, SplitCase, differences, program, run

__all__ = ["gloo_pool"]
TOLERANCE = 1e-12
TIED = replace(MODEL, has_tied_embeddings=True)
FEW_WORDS = replace(MODEL, vocabulary_size=5)  # on four processes the last has padding only


@pytest.mark.parametrize("algorithm", ["one_barrier", "two_barriers"])
@pytest.mark.parametrize(
    "layout",
    [
        SplitCase("one_barrier"),
        SplitCase("one_barrier", "v_half"),
        SplitCase("one_barrier", "1f1b", 4, "recompute", FEW_WORDS),
        SplitCase("one_barrier", "zb_h1", 3, "recompute", TIED),
        SplitCase("one_barrier", "interleaved_1f1b", 2, "split"),
        SplitCase("one_barrier", num_replicas=2),
    ],
    ids=lambda layout: f"{layout.schedule}-{layout.num_devices}-{layout.variant}",
)
def test_equals_one_process(layout: SplitCase, algorithm: str, gloo_pool: Pool) -> None:
    found = differences(replace(layout, algorithm=algorithm), gloo_pool)  # type: ignore[arg-type]
    assert max(found.values()) < TOLERANCE, found


def test_tables_come_back_whole(gloo_pool: Pool) -> None:
    parameters = run(SplitCase("one_barrier"), gloo_pool).parameters
    assert parameters["head.weight"].shape == parameters["embedding.weight"].shape == (37, 16)
    assert all(parameters[name].abs().amin(1).all() for name in ("head.weight", "embedding.weight"))


def test_what_ran_is_the_program(gloo_pool: Pool) -> None:
    layout = SplitCase("two_barriers")
    trace = run(layout, gloo_pool).trace
    assert trace is not None and trace.program.digest() == program(layout).expand("dp").digest()
