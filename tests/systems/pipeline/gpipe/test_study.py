"""The executed claims of GPipe on a small scale: memory falls with recompute by what the sizes of values say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.stage.saved.saved import boundary_bytes_per_token, saved_bytes_per_token
from meshwright.systems.pipeline.gpipe import study as gpipe


def test_the_claims_sizes_are_those_of_the_studied_decoder() -> None:
    last = gpipe.plan(8, "none").stages()[-1]
    saved, boundary = saved_bytes_per_token(gpipe.MODEL, last), boundary_bytes_per_token(gpipe.MODEL)
    assert (saved, boundary) == (41004, 512)
    assert 8 * saved / (8 * boundary + saved) == pytest.approx(7.2734, abs=1e-4)


@pytest.mark.slow
def test_recompute_lowers_the_measured_peak() -> None:
    assert gpipe.memory_ratio(4) > 2
