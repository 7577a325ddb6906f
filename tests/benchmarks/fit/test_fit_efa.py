"""The network of EFA: its packaged curve, held against the published rows that it was not fitted on."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.fit import fit_efa
from meshwright.costs.collective.profile import packaged_profile

PROFILE = packaged_profile()
NODE = PROFILE.chips[fit_efa.CHIP].curve
TESTED = [row for row in fit_efa.rows() if row.place % 2]


@pytest.mark.parametrize("operation", fit_efa.GB_PER_S)
def test_held_out_rows_are_near_by_efas_constants_and_far_by_those_of_infiniband(operation: str) -> None:
    efa, other = (
        statistics.median(
            abs(fit_efa.seconds(NODE, PROFILE.networks[name].curve, row) / row.seconds - 1)
            for row in TESTED
            if row.operation == operation
        )
        for name in (fit_efa.FABRIC, "infiniband")
    )
    assert efa <= 0.15
    assert efa < other


def test_a_row_says_the_seconds_of_the_whole_tensor() -> None:
    """32 MiB gathered on two nodes at the published 140.06 GB/s take 240 us."""
    first = fit_efa.rows()[0]
    assert (first.operation, first.num_nodes, first.num_bytes) == ("all_gather", 2, 32 * 2**20)
    assert first.seconds == pytest.approx(239.6e-6, rel=1e-3)


def test_the_packaged_curve_is_that_of_these_rows() -> None:
    found = fit_efa.fitted_network(NODE)
    assert found.curve.hop_s == pytest.approx(PROFILE.networks[fit_efa.FABRIC].curve.hop_s, rel=1e-3)
    assert found.spread == pytest.approx(PROFILE.networks[fit_efa.FABRIC].spread, rel=1e-3)
