"""Tests of costs/measured/measured_costs.py, calibration.py and interpolation.py: predictions from known rates come back."""

import math
from dataclasses import replace

import pytest

from meshwright.costs.measured.calibration import fit, pass_operators
from meshwright.costs.measured.interpolation import by_shape, by_size
from meshwright.costs.measured.measured_costs import MeasuredCosts
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.profile import PassSample, Profile, Sample
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator

RATE = 1e11  # multiply-adds per second of the made-up device
BYTES_PER_S = 1e10
LATENCY_S = 1e-4


def samples(shapes, seconds):
    return tuple(Sample(shape, seconds(shape), 0.01) for shape in shapes)


def profile(passes=()) -> Profile:
    squares = [(side, side, side) for side in (64, 256, 1024)]
    product = samples(squares, lambda shape: math.prod(shape) / RATE)
    message = samples([(4,), (10**5,), (10**7,)], lambda shape: LATENCY_S + shape[0] / BYTES_PER_S)
    return Profile(
        device="made up",
        num_processes=2,
        tables={
            "matmul": product,
            "matmul_input_gradient": product,
            "matmul_weight_gradient": product,
            "elementwise": samples([(64, 64), (1024, 1024)], lambda s: 12 * math.prod(s) / BYTES_PER_S),
            "send_receive": message,
            "all_reduce": message,
        },
        constants={"compute_slowdown": 2.0},
        passes=tuple(passes),
    )


def matmul(*shape: int, phase: str = "forward") -> Operator:
    return Operator("matmul", 2.0 * math.prod(shape), 1.0, shape, phase=phase)


@pytest.mark.parametrize("shape", [(100, 300, 200), (64, 1024, 512), (64, 64, 64)])
def test_constant_rate_is_found_at_every_shape(shape):
    estimate = MeasuredCosts(profile()).operator(matmul(*shape))
    assert estimate.seconds == pytest.approx(math.prod(shape) / RATE)


def test_basis_says_how_far_from_the_samples():
    costs = MeasuredCosts(profile())
    assert costs.operator(matmul(256, 256, 256)).basis == "measured here"
    assert costs.operator(matmul(128, 300, 256)).basis == "interpolated"
    assert costs.operator(matmul(128, 300, 65536)).basis == "extrapolated"
    assert costs.operator(Operator("norm", 1.0, 4e6, (1000, 1000))).basis == "never seen"


def test_rate_between_two_samples_lies_between_theirs():
    rows = (Sample((64, 64, 64), 64**3 / 1e9), Sample((1024, 1024, 1024), 1024**3 / 4e9))
    estimate = by_shape(rows, (256, 256, 256), lambda shape: float(math.prod(shape)))
    assert 256**3 / 4e9 < estimate.seconds < 256**3 / 1e9


def test_work_costs_its_operators_with_counts():
    operators = (matmul(100, 100, 100), Operator("matmul", 2e6, 1.0, (100, 100, 100), 3, "weight_gradient"))
    cost = MeasuredCosts(profile()).cost(Work("F", operators=operators))
    assert cost.seconds == pytest.approx(4 * 1e6 / RATE)
    assert cost.uncertainty > 0 and cost.prediction().contains(cost.seconds)


def test_elementwise_is_priced_by_bytes():
    operator = Operator("elementwise", 1.0, 2e6, (10, 10))
    assert MeasuredCosts(profile()).operator(operator).seconds == pytest.approx(2e6 / BYTES_PER_S)


def test_a_message_costs_latency_and_bytes_and_nothing_within_a_device():
    costs = MeasuredCosts(profile())
    cost = costs.exchange_cost(Exchange(("pp",), (0, 1)), 5e6, (0, 1))
    assert cost.seconds == pytest.approx(LATENCY_S + 5e6 / BYTES_PER_S)
    assert cost.compute_share == pytest.approx(
        1.0
    )  # slowdown of two: beside a compute, which takes 1, the sum is 2
    assert costs.exchange_cost(Exchange(("pp",), (1, 1)), 5e6, (1, 1)).seconds == 0


def test_a_larger_group_than_measured_scales_as_a_ring():
    costs = MeasuredCosts(profile())
    ring = Exchange(("dp",), algorithm="ring")
    two, four = (costs.exchange_cost(ring, 1e7, tuple(range(n))) for n in (2, 4))
    latency = LATENCY_S + 4 / BYTES_PER_S
    assert four.seconds == pytest.approx(3 * latency + (two.seconds - latency) * (3 / 4) / (1 / 2))
    assert four.basis == "extrapolated"


def test_a_profile_without_the_table_is_an_error_that_says_what_to_do():
    costs = MeasuredCosts(Profile("bare"))
    with pytest.raises(SpecError, match="calibrate"):
        costs.exchange_cost(Exchange(("pp",), (0, 1)), 1.0, (0, 1))
    with pytest.raises(SpecError, match="calibrate"):
        costs.operator(matmul(1, 1, 1))


@pytest.mark.parametrize("algorithm", ["all_to_all", "all_to_all.top2"])
def test_what_parts_and_routed_tokens_take_is_measured(algorithm):
    """Ulysses and experts, by samples of their own where the profile has them."""
    known = profile()
    swapped = samples([(4,), (10**6,), (10**7,)], lambda shape: 3 * (LATENCY_S + shape[0] / BYTES_PER_S))
    costs = MeasuredCosts(replace(known, tables={**known.tables, "all_to_all": swapped}))
    cost = costs.exchange_cost(Exchange(("cp",), algorithm=algorithm), 1e6, (0, 1))
    assert cost.seconds == pytest.approx(3 * (LATENCY_S + 1e6 / BYTES_PER_S))
    assert cost.basis == "measured here" and cost.uncertainty < 0.5


def test_what_was_not_measured_takes_what_moves_as_many_bytes():
    """Of b bytes an all-gather and an all-to-all both send (n - 1) / n b in n - 1 messages."""
    known = profile()
    gathered = samples([(4,), (10**7,)], lambda shape: LATENCY_S + shape[0] / BYTES_PER_S)
    costs = MeasuredCosts(replace(known, tables={**known.tables, "all_gather": gathered}))
    both = [
        costs.exchange_cost(Exchange(("cp",), algorithm=name), 1e6, (0, 1))
        for name in ("all_gather", "all_to_all")
    ]
    assert both[0].seconds == both[1].seconds
    assert both[0].uncertainty < both[1].uncertainty == 0.5 and both[1].basis == "extrapolated"
    with pytest.raises(SpecError, match="samples of all_to_all"):
        MeasuredCosts(known).exchange_cost(Exchange(("cp",), algorithm="all_to_all"), 1e6, (0, 1))


def test_noise_in_a_small_sample_does_not_rise_above_larger_ones():
    rows = (Sample((4,), 1.0), Sample((1000,), 0.1), Sample((2000,), 0.2))
    assert by_size(rows, 4, lambda shape: float(shape[0])).seconds == pytest.approx(0.1)
    assert by_size(rows, 1500, lambda shape: float(shape[0])).seconds == pytest.approx(0.15)


def test_beyond_the_last_sample_the_marginal_rate_goes_on():
    rows = (Sample((1000,), 1.1), Sample((2000,), 2.1))
    estimate = by_size(rows, 10_000, lambda shape: float(shape[0]))
    assert estimate.seconds == pytest.approx(10.1)
    assert estimate.basis == "extrapolated"


def test_fit_finds_factor_and_overhead():
    rows = [
        (total, number, 1.2 * total + 1e-3 * number) for total, number in [(1.0, 10), (2.0, 40), (0.5, 20)]
    ]
    found = fit(rows)
    assert (found.factor, found.overhead_s) == (pytest.approx(1.2), pytest.approx(1e-3))
    assert found.spread == pytest.approx(0, abs=1e-9)


def test_fit_never_gives_a_negative_overhead():
    rows = [(1.0, 10, 1.0), (2.0, 40, 1.5), (0.5, 20, 0.4)]
    assert fit(rows).overhead_s == 0.0
    assert 0.7 < fit(rows).factor < 1.1


def test_calibrated_pass_of_another_shape_is_predicted():
    """Stages that take 1.3 times their operators and 20 us an operator: a stage never seen is predicted exactly."""
    bare = MeasuredCosts(profile())

    def truth(sample: PassSample) -> float:
        operators = pass_operators(sample, "float32")
        count = sum(operator.count for operator in operators)
        return 1.3 * sum(bare.operator(op).seconds * op.count for op in operators) + 2e-5 * count

    def stage(hidden: int, blocks: int, length: int) -> PassSample:
        model = ModelSpec.decoder(blocks, hidden, 4)
        return PassSample("B", model.to_dict(), blocks, False, True, 1, length, 1.0)

    seen = [stage(64, 2, 128), stage(128, 3, 64), stage(256, 1, 256)]
    passes = [PassSample(*_fields(sample)[:7], truth(sample)) for sample in seen]
    costs = MeasuredCosts(profile(passes))
    other = stage(192, 5, 96)
    cost = costs.cost(Work("B", operators=pass_operators(other, "float32")))
    assert cost.seconds == pytest.approx(truth(other))


def _fields(sample: PassSample):
    return [getattr(sample, name) for name in PassSample.__dataclass_fields__]
