"""The study of a token ring: what it says of four processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.sequence.token_ring import study


def test_processes_are_one_and_send_what_the_closed_form_says(gloo_pool: Pool) -> None:
    assert study.parameter_difference(4, gloo_pool) < 1e-10
    assert study.forward_units(gloo_pool) == 3 + 3 * (1 + 1 / 32)
