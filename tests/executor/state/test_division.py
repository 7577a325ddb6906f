"""Values, gradients and state divided among different devices: equal to one process, and each holds and sends its share."""

from __future__ import annotations

import pytest
from tests.planned_case import Planned, assert_equal_to_one_process

import meshwright.catalog  # noqa: F401  (knows the shardings of systems)
from meshwright.executor.job.pool import Pool
from meshwright.lowering.lower import lower
from meshwright.schedules import registered

pytestmark = pytest.mark.timeout(240)
REFERENCE = "low_bandwidth_partitioning(values={}, gradients={})"
# devices of four that share values and gradients; all share state
NESTED = [(2, 2), (1, 2), (2, 4)]


def case(values: int, gradients: int, **choices: object) -> Planned:
    return Planned(
        choices={"dp": 4, "sharding": REFERENCE.format(values, gradients), "microbatch_size": 1, **choices}
    )


@pytest.mark.parametrize(("values", "gradients"), NESTED)
def test_every_division_equals_one_process(gloo_pool: Pool, values: int, gradients: int) -> None:
    one = case(values, gradients)
    assert_equal_to_one_process(one, one.run(gloo_pool, 3), 3)


def test_copies_of_the_state_are_summed_too(gloo_pool: Pool) -> None:
    one = case(1, 2, sharding="low_bandwidth_partitioning(values=1, gradients=1)", sharding_degree=2)
    assert_equal_to_one_process(one, one.run(gloo_pool, 2), 2)


@pytest.mark.parametrize(("values", "gradients"), NESTED)
def test_a_device_holds_its_share_of_each(values: int, gradients: int) -> None:
    """Bytes of values, gradients and state of a group, whole over the devices that share it: the closed form."""
    plan = case(values, gradients).plan()
    program = lower(plan, registered()["1f1b"], in_segments=True)
    held = {row.kind: row.by_index[0] for row in program.tables.value_bytes if not row.per_token}
    whole = held["gathered_parameter"]
    assert held["parameter"] == whole / values
    assert held["weight_gradient"] == whole / gradients
    assert held["optimizer_state"] == 2 * whole / 4  # two moments
