"""The ranking follows what a profile says of links and processes: simulated, from made-up rates, the same every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from meshwright.costs.measured.calibrated_cluster import calibrated, device_factors
from meshwright.costs.measured.measured_costs import MeasuredCosts
from meshwright.costs.pricing import Pricing
from meshwright.planner import Plans, every_plan
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.cluster.profile import Profile, Sample

PRODUCTS_PER_S, MEMORY_BYTES_PER_S, LATENCY_S = 5e10, 1e10, 1e-4  # of the made-up machine
FAST_LINK, SLOW_LINK = 2e10, 5e7  # bytes/s
MODEL = ModelSpec.decoder(6, 256, 4, max_sequence_length=128)
WORKLOAD = Workload(8, 128)
# The layout is in question, not the schedule: of two processes the best of twelve schedules may beat data parallelism.
SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b", "zb_h1")


def samples(
    shapes: Sequence[tuple[int, ...]], seconds: Callable[[tuple[int, ...]], float]
) -> tuple[Sample, ...]:
    return tuple(Sample(shape, seconds(shape)) for shape in shapes)


def profile(link_bytes_per_s: float = FAST_LINK, factors: tuple[float, ...] = ()) -> Profile:
    product = samples([(n, n, n) for n in (64, 256, 1024)], lambda shape: math.prod(shape) / PRODUCTS_PER_S)
    message = samples([(4,), (10**5,), (10**8,)], lambda shape: LATENCY_S + shape[0] / link_bytes_per_s)
    arrays = samples([(64, 64), (1024, 1024)], lambda shape: 12 * math.prod(shape) / MEMORY_BYTES_PER_S)
    products = ("matmul", "matmul_input_gradient", "matmul_weight_gradient")
    tables = {**dict.fromkeys(products, product), "elementwise": arrays}
    return Profile(
        "made up",
        num_processes=2,
        tables={**tables, **dict.fromkeys(("send_receive", "all_reduce"), message)},
        process_factors=factors,
    )


def ranking(found: Profile) -> Plans:
    cluster = calibrated(Cluster("2xcpu"), found)
    costs = MeasuredCosts(found, device_factors(cluster, found))
    return every_plan(
        MODEL,
        cluster,
        WORKLOAD,
        pricing=Pricing(costs, ()),
        schedules={name: registered()[name] for name in SCHEDULES},
        fix={"recompute": "none"},
        microbatch_sizes=(2, 4),
    )


def test_even_and_fast_is_data_parallel_and_a_slow_link_a_pipeline() -> None:
    even, slowed = ranking(profile()), ranking(profile(SLOW_LINK))
    assert even[0].plan.dp == 2
    assert slowed[0].plan.pp == 2
    there = next(c for c in slowed if c.plan == even[0].plan)
    assert there.step.value > 1.2 * slowed[0].step.value


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_process_gets_fewer_blocks(slow: int) -> None:
    factors = (4 / 3, 2 / 3) if slow == 0 else (2 / 3, 4 / 3)
    even, slowed = ranking(profile()), ranking(profile(factors=factors))
    plan = slowed[0].plan
    blocks = [sum(plan.layers_per_stage[device :: plan.pp]) for device in range(2)]
    assert plan.pp == 2 and blocks[slow] < blocks[1 - slow]
    there = next(c for c in slowed if c.plan.layers_per_stage == (6,) and c.plan.dp == 2)
    assert even[0].plan.dp == 2 and there.step.value > 1.2 * slowed[0].step.value
    split = [c.plan.layers_per_stage for c in slowed if c.plan.num_stages == 2]
    assert (3, 3) in split and len(set(split)) > 1


def test_the_order_is_the_same_every_time() -> None:
    first, second = (ranking(profile(SLOW_LINK, (2 / 3, 4 / 3))) for _ in range(2))
    assert [c.plan for c in first] == [c.plan for c in second]
