"""Fits of step constants: known ones come back, priors hold what rows do not say, one wild row moves little."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from fit.fit_steps import (
    FAMILIES,
    NAMES,
    PRIORS,
    Linearised,
    fitted,
    linearised,
    logarithms,
    source_weights,
    start,
)
from tests.benchmarks.step_sample import TRUE, made_steps, noise, step_row

from meshwright.costs.step.step_costs import StepConstants

DEGREES = ({"tp": 2, "dp": 4}, {"pp": 2, "dp": 4, "zero": 1}, {"dp": 8, "zero": 1})
SIZES = ({"seq": 1024}, {"seq": 8192}, {"hidden": 4096, "heads": 32, "ffn": 14336}, {"vocab": 128000})
STRONG = 3e3  # weight of a row that is worth more than any prior


def sums(constants: StepConstants) -> tuple[float, ...]:
    """Steps of a made-up chip: sums over constants, one for each mixture."""
    c = constants
    return (
        c.matmul + 0.1 * c.attention + c.step_s,
        0.3 * c.matmul + c.attention,
        c.matmul + c.stream + 2000 * c.gap_s,
        c.stream + 0.3 * c.matmul + c.network_exchange,
        c.matmul * c.float8 + 2 * c.node_exchange,
    )


def made_up(families: list[str], true: dict[str, StepConstants]) -> Linearised:
    predictors = [lambda c, i=i: sums(c)[i] for _ in families for i in range(5)]
    names = [family for family in families for _ in range(5)]
    measured = [seconds for family in families for seconds in sums(true[family])]
    return linearised(predictors, measured, names, start())


# ------------------------------------------------------------------------------------------ constants


def test_known_constants_come_back_from_steps_of_the_model_itself() -> None:
    """Two per cent of noise, starting where nothing is known; constants that no row exercises keep their centre."""
    rows = [
        step_row(
            f"ours-{number}",
            recompute=recompute,
            micro_batch_seqs=1,
            extras="Megatron-LM",
            **{**degree, **size},
        )
        for number, (degree, size, recompute) in enumerate(
            (degree, size, recompute) for degree in DEGREES for size in SIZES for recompute in ("none",)
        )
    ]
    steps = made_steps(rows, noise)
    measured, weights = [step.row.measured_s for step in steps], np.full(len(steps), STRONG)
    constants = start()
    for _ in range(2):
        data = linearised([s.predict for s in steps], measured, ["h100"] * len(steps), constants)
        constants = fitted(data, weights)
    found = constants["h100"]
    assert found.matmul == pytest.approx(TRUE.matmul, rel=0.08)
    assert found.step_s == pytest.approx(TRUE.step_s, rel=0.15)
    errors = [step.predict(found) / step.row.measured_s - 1 for step in steps]
    assert np.abs(errors).max() < 0.04 and abs(np.mean(errors)) < 0.01
    before = [step.predict(start()["h100"]) / step.row.measured_s - 1 for step in steps]
    assert np.abs(errors).max() < 0.4 * np.abs(before).max()
    assert found.expert_s == pytest.approx(PRIORS["expert_s"].centre, rel=1e-3)


def test_each_family_finds_its_own_constants_and_one_without_rows_their_mean() -> None:
    true = {
        "a100": replace(start()["a100"], matmul=1.0, attention=1.3),
        "h100": replace(start()["h100"], matmul=1.4, attention=1.3, stream=1.5),
    }
    data = made_up(["a100", "h100"], true)
    found = fitted(data, np.full(10, STRONG))
    for family, expected in true.items():
        assert found[family].matmul == pytest.approx(expected.matmul, rel=0.03)
        assert found[family].attention == pytest.approx(expected.attention, rel=0.03)
    lows, highs = (pick(found["a100"].node_exchange, found["h100"].node_exchange) for pick in (min, max))
    assert lows <= found["b200"].node_exchange * 1.001 and found["b200"].node_exchange <= highs * 1.001
    for name in ("matmul", "attention"):
        assert getattr(found["b200"], name) == pytest.approx(PRIORS[name].of_family["b200"], rel=1e-3)


def test_without_weights_everything_stays_where_it_is_expected() -> None:
    data = made_up(["h100"], start())
    found = fitted(replace(data, measured_s=data.measured_s * 2), np.zeros(5))
    for family, expected in start().items():
        assert vars(found[family]) == pytest.approx(vars(expected), rel=1e-3)


@pytest.mark.parametrize("factor", [0.05, 0.5, 2.0, 20.0])
def test_constants_stay_physical_whatever_is_measured(factor: float) -> None:
    data = made_up(["h100"], start())
    found = fitted(replace(data, measured_s=data.measured_s * factor), np.full(5, STRONG))
    for constants in found.values():
        for name, prior in PRIORS.items():
            assert prior.low * 0.999 <= getattr(constants, name) <= prior.high * 1.001
    assert (found["h100"].matmul > start()["h100"].matmul) == (factor > 1)


def test_one_wild_row_moves_constants_little() -> None:
    data = made_up(["h100"], start())
    wild = replace(data, measured_s=data.measured_s * np.array([1.0, 1.0, 8.0, 1.0, 1.0]))
    clean, found = (fitted(each, np.ones(5))["h100"] for each in (data, wild))
    for name in ("matmul", "attention", "float8"):
        assert getattr(found, name) == pytest.approx(getattr(clean, name), rel=0.15)
    others = np.delete(wild.predicted(logarithms(fitted(wild, np.ones(5)))) / wild.measured_s, 2)
    assert np.abs(np.log(others)).max() < 0.3 * np.log(8.0)


def test_a_row_without_weight_says_nothing() -> None:
    data = made_up(["h100"], start())
    weights = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    other = replace(data, measured_s=data.measured_s * np.array([1, 1, 9, 1, 1]))
    for family, expected in fitted(data, weights).items():
        assert vars(fitted(other, weights)[family]) == pytest.approx(vars(expected), rel=1e-9)


# ------------------------------------------------------------------------------------------ linearised steps


def test_linearised_steps_are_exact_in_one_constant_and_never_negative() -> None:
    true = {"h100": start()["h100"]}
    data = made_up(["h100"], true)
    assert data.base_s == pytest.approx(np.array(sums(true["h100"])))
    for name in NAMES:
        moved = {"h100": replace(true["h100"], **{name: 1.7 * getattr(true["h100"], name)})}
        assert data.predicted(logarithms(moved)) == pytest.approx(np.array(sums(moved["h100"])), rel=1e-6)
    none = {"h100": np.full(len(NAMES), -30.0)}
    assert (data.predicted(none) > 0).all()


def test_rows_are_taken_whole() -> None:
    data = made_up(["a100", "h100"], start())
    some = data.take([7, 2])
    assert some.families == ("h100", "a100") and some.measured_s.tolist() == data.measured_s[[7, 2]].tolist()
    logs = logarithms(start())
    assert some.predicted(logs).tolist() == data.predicted(logs)[[7, 2]].tolist()


def test_a_prior_for_every_constant_with_its_centres_inside_its_ends() -> None:
    assert set(PRIORS) == set(NAMES) == {each.name for each in fields(StepConstants)}
    for prior in PRIORS.values():
        for centre in (prior.centre, *prior.of_family.values()):
            assert 0 < prior.low < centre < prior.high
        assert prior.spread > 0 and prior.own_spread > 0 and set(prior.of_family) <= set(FAMILIES)
    assert set(start()) == set(FAMILIES)


def test_a_source_weighs_as_the_root_of_its_rows() -> None:
    weights = source_weights(["a"] * 16 + ["b"])
    assert weights[:16].sum() == pytest.approx(4.0) and weights[16] == 1.0
