"""A profile in which processes differ makes a cluster of different devices, and each is priced by its own factor."""

from __future__ import annotations

import pytest

from meshwright.costs.measured.calibrated_cluster import calibrated, device_factors
from meshwright.costs.measured.measured_costs import MeasuredCosts
from meshwright.ir.table import Work
from meshwright.specs.cluster.profile import Profile, Sample
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator

FACTORS = (0.5, 1.5)
TABLES = {"matmul": (Sample((64, 64, 64), 1e-5), Sample((256, 64, 64), 4e-5))}
WORK = Work("F", operators=(Operator("matmul", 2.0 * 64**3, 3.0 * 64 * 64 * 4, (64, 64, 64)),))


def profile(factors: tuple[float, ...] = FACTORS) -> Profile:
    return Profile("a processor", num_processes=2, tables=TABLES, process_factors=factors)


def test_slower_processes_are_slower_devices() -> None:
    plain = Cluster("2xcpu")
    found = calibrated(plain, profile())
    rates = [device.peak_flops_per_s("float32") for device in found.devices]
    assert rates == pytest.approx([plain.devices[0].peak_flops_per_s("float32") / f for f in FACTORS])
    assert not found.is_homogeneous and "0.50, 1.50" in found.assumptions[-1]


def test_each_device_is_priced_by_its_own_factor() -> None:
    on = calibrated(Cluster("2xcpu"), profile())
    costs = MeasuredCosts(profile(), device_factors(on, profile()))
    mean = costs.cost(WORK).seconds
    assert [costs.cost(WORK, device).seconds / mean for device in on.devices] == pytest.approx(FACTORS)


@pytest.mark.parametrize(("count", "factors"), [(2, ()), (4, FACTORS)])
def test_other_counts_and_even_profiles_change_nothing(count: int, factors: tuple[float, ...]) -> None:
    plain = Cluster(f"{count}xcpu")
    assert calibrated(plain, profile(factors)) is plain
    assert device_factors(plain, profile(factors)) == {}


def test_a_calibrated_cluster_is_not_calibrated_twice() -> None:
    once = calibrated(Cluster("2xcpu"), profile())
    assert calibrated(once, profile()) is once


def test_factors_survive_their_file_and_are_one_a_process() -> None:
    assert Profile.from_json(profile().to_json()) == profile()
    with pytest.raises(SpecError, match="process_factors"):
        profile((1.0, 1.0, 1.0))
