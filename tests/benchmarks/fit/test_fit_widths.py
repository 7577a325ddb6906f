"""Fitted widths hold what they should of sources that they have not seen, and are wide only where errors are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fit.fit_widths import EXPECTED, LEAST_END, SHARE, Errors, errors_of, main, width_of, with_widths
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benchmarks.step_sample import SOURCES, noise, step_row, three_sources
from tests.evidence.training_sample import write_table

from meshwright.costs.step.profile import MANY_DEVICES, StepFit, StepProfile, Width, packaged_step_profile
from meshwright.evidence.tables.job import job_of
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_trait import UNCERTAIN

PRODUCTS, MESSAGES = UNCERTAIN.index("products"), UNCERTAIN.index("messages")


def made(num_sources: int, rows_each: int, spread: float, seed: int, own: float = 0.01) -> Errors:
    """Sources whose messages are off by a draw each, all rows of one alike but for a little of their own."""
    random = np.random.default_rng(seed)
    messages = random.uniform(0.1, 0.5, (num_sources, rows_each))
    shares = np.zeros((num_sources, rows_each, len(UNCERTAIN)))
    shares[..., MESSAGES], shares[..., PRODUCTS] = messages, 1.0 - messages
    logs = messages * random.normal(0, spread, (num_sources, 1)) + random.normal(0, own, messages.shape)
    names = tuple(f"s{source}" for source in range(num_sources) for _ in range(rows_each))
    return Errors(logs.ravel(), shares.reshape(-1, len(UNCERTAIN)), names, (8,) * len(names))


def covered(width: Width, errors: Errors) -> float:
    """The share of rows inside."""
    ends = [width.ends(dict(zip(UNCERTAIN, row, strict=True))) for row in errors.shares]
    return float(
        np.mean([low <= np.exp(log) <= high for (low, high), log in zip(ends, errors.logs, strict=True)])
    )


def test_sources_that_were_not_fitted_are_inside_as_often_as_asked() -> None:
    shares = [covered(width_of(made(15, 4, 0.4, seed)), made(200, 4, 0.4, seed + 100)) for seed in range(12)]
    assert SHARE - 0.04 <= float(np.mean(shares)) <= SHARE + 0.10, (
        "sources are few: rather too wide than too narrow"
    )


def test_spreads_are_learned_where_errors_are() -> None:
    wide, narrow = width_of(made(40, 4, 0.8, 1)), width_of(made(40, 4, 0.05, 1))
    assert wide.spreads["messages"] > 1.5 * EXPECTED.spreads["messages"] > 2 * narrow.spreads["messages"]
    for width in (wide, narrow):
        assert width.spreads["float8"] == pytest.approx(EXPECTED.spreads["float8"]), "nothing was seen of it"


def test_a_source_weighs_as_one_row_however_many_it_has() -> None:
    few, many = made(6, 1, 0.4, 3), made(6, 1, 0.4, 3)
    repeated = Errors(
        np.concatenate([many.logs, np.repeat(many.logs[:1], 500)]),
        np.vstack([many.shares, np.repeat(many.shares[:1], 500, axis=0)]),
        (*many.sources, *("s0",) * 500), (8,) * 506,
    )  # fmt: skip
    assert width_of(repeated).spreads == pytest.approx(width_of(few).spreads, rel=1e-4)
    assert (width_of(repeated).low, width_of(repeated).high) == pytest.approx(
        (width_of(few).low, width_of(few).high), rel=1e-4
    )


def test_errors_of_one_sign_make_an_interval_of_that_side() -> None:
    slow = made(15, 4, 0.2, 5)
    slow = Errors(np.abs(slow.logs), slow.shares, slow.sources, slow.devices)
    found = width_of(slow)
    assert found.high > 2 * LEAST_END and found.low == -LEAST_END


@settings(max_examples=25)
@given(st.lists(st.floats(-1.0, 3.0), min_size=2, max_size=30))
def test_any_errors_have_a_width(logs: list[float]) -> None:
    shares = np.tile(np.eye(len(UNCERTAIN))[PRODUCTS], (len(logs), 1))
    found = width_of(
        Errors(np.array(logs), shares, tuple(str(i) for i in range(len(logs))), (8,) * len(logs))
    )
    assert found.low < 0 < found.high and all(spread > 0 for spread in found.spreads.values())


def test_the_width_of_a_source_does_not_look_at_it() -> None:
    errors = made(6, 3, 0.3, 7)
    own = np.array([source == "s2" for source in errors.sources])
    other = Errors(
        np.where(own, errors.logs + 2.0, errors.logs), errors.shares, errors.sources, errors.devices
    )
    profile = StepProfile(StepFit({}, EXPECTED), {"s1": StepFit({}, EXPECTED)}, {})
    before, after = with_widths(profile, errors), with_widths(profile, other)
    assert set(before.widths) == {"s0", "s2", "s3", "s4", "s5"} and set(before.left_out) == {"s1"}
    assert before.blind_to("s2") == after.blind_to("s2") and before.fit != after.fit
    assert before.blind_to("s1") != after.blind_to("s1") and before.blind_to("nobody") == before.fit


def test_rows_of_many_devices_say_nothing_without_them() -> None:
    errors = made(4, 2, 0.3, 9)
    large = Errors(errors.logs, errors.shares, errors.sources, (8, 4096) * 4)
    assert len(large.without(MANY_DEVICES).logs) == 4 and len(large.without("s1").logs) == 6


def test_errors_are_of_predictions_without_the_source() -> None:
    rows = [*three_sources(), step_row("d-1", gpu="abacus")]
    asked = []

    def blind_to(source: str) -> StepFit:
        asked.append(source)
        return packaged_step_profile().fit

    found = errors_of(rows, blind_to)
    assert found.sources == tuple(row.source for row in rows[:-1]) == tuple(asked)
    assert set(found.sources) == set(SOURCES) and found.shares.shape == (9, len(UNCERTAIN))
    assert found.shares[:, : UNCERTAIN.index("float8")].sum(axis=1) == pytest.approx(1.0)


def test_the_command_changes_widths_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, table = tmp_path / "steps.json", tmp_path / "made.csv"
    before = packaged_step_profile().to_dict()
    profile.write_text(json.dumps(before), encoding="utf-8")
    rows = [{**row.values, "step_time_s": str(noise(row))} for row in three_sources()]
    assert main([str(profile), str(write_table(table, rows))]) == 0
    after = json.loads(profile.read_text(encoding="utf-8"))
    assert "9 rows, 3 sources" in capsys.readouterr().err
    assert set(after["widths"]) == set(SOURCES)
    assert after["fit"]["constants"] == before["fit"]["constants"] and after["seen"] == before["seen"]
    assert after["fit"]["width"] != before["fit"]["width"]
    fit, job = StepProfile.from_dict(after).blind_to("a"), job_of(three_sources()[0])
    step = predict(job.plan, job.cluster, fit=fit).step
    assert step.low < step.value < step.high
