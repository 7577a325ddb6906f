"""Model FLOP/s and MFU: one definition, against products counted by hand, and the same number from every verb."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.running import rough_profile

from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.plan.utilisation import StepFlops, Utilisation

SEQUENCE, HIDDEN, LAYERS, VOCABULARY, BATCH = 16, 32, 2, 100, 8
MODEL = ModelSpec.gpt(
    LAYERS, HIDDEN, 4, vocabulary_size=VOCABULARY, max_sequence_length=SEQUENCE, name="gpt", source="tests"
)


def _by_hand() -> float:
    """Of one token: 12 h^2 parameters a block and the head, thrice 2; scores and sums over (S + 1) / 2 keys, thrice 2."""
    products = LAYERS * 12 * HIDDEN**2 + HIDDEN * VOCABULARY
    return 6.0 * products + 6.0 * LAYERS * 2 * HIDDEN * (SEQUENCE + 1) / 2


def _plan(cluster: str, **choices: Any) -> Plan:
    return Plan.of(MODEL, Cluster(cluster), Workload(BATCH, SEQUENCE), **choices)


def test_flops_are_the_models_shared_by_its_devices() -> None:
    plan = _plan("2xH100", dp=2, dtype="bfloat16")
    flops = StepFlops.of(plan, Cluster("2xH100"))
    assert flops.per_device == pytest.approx(_by_hand() * BATCH * SEQUENCE / 2)
    assert flops.peak_flops_per_s == 989.4e12
    assert flops.used(1e-6) == Utilisation(flops.per_device * 1e6, flops.per_device * 1e6 / 989.4e12)
    assert (
        StepFlops.of(plan.changed(recompute="full"), Cluster("2xH100")) == flops
    )  # done again is not needed


def test_a_peak_is_known_or_there_is_no_mfu() -> None:
    plan = _plan("2xH100", dp=2, dtype="bfloat16")
    here = Cluster.detect(2)
    assert StepFlops.of(plan, None).used(1.0).mfu is None
    assert StepFlops.of(plan, here).peak_flops_per_s is None
    assert StepFlops.of(plan, here, rough_profile()).peak_flops_per_s == pytest.approx(2 * 512**3 / 5e-3)
    assert StepFlops.of(_plan("2xV100", dp=2, dtype="bfloat16"), Cluster("2xV100")).used(1.0).mfu is None
    assert StepFlops(5.0).used(0.0) == Utilisation(0.0, None)


@pytest.mark.parametrize(
    "said", [None, 3, {}, {"per_device": "x"}, {"per_device": 4.0, "peak_flops_per_s": "x"}]
)
def test_a_trace_of_another_hand_says_nothing_or_what_it_can(said: Any) -> None:
    found = StepFlops.from_dict(said)
    assert found is None or found == StepFlops(4.0)
    for flops in (StepFlops(4.0), StepFlops(4.0, 8.0)):
        assert StepFlops.from_dict(flops.to_dict()) == flops
