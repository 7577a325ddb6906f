"""The study of FSMoE: parts beside experts are one process, and their all-to-alls run beside computes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.moe.fs_moe import study


def test_parts_are_one_process(gloo_pool: Pool) -> None:
    assert study.parameter_difference(2, gloo_pool) < 1e-10


def test_all_to_alls_of_a_part_run_beside_computes_of_another(gloo_pool: Pool) -> None:
    shares = []
    for parts in (1, 2):
        trace = study.trained(study.MODEL, 2, parts, gloo_pool, 2).trace
        assert trace is not None
        shares.append(study.overlapped_share(trace))
    assert shares[1] > shares[0]
