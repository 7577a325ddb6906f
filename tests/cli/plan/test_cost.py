"""Money, energy and failures in `plan`: null where unknown, the same numbers in the table and in --json."""

from __future__ import annotations

import pytest
from tests.cli.running import Runner

JOB = (
    "plan",
    "gpt2",
    "4xH100",
    "--global-batch",
    16,
    "--seq",
    1024,
    "--fix",
    "microbatch_size=4",
    "--top",
    2,
)
FAILING = ("--tokens", "100B", "--mtbf", "1000h", "--checkpoint", "60s", "--restart", "10min")


def test_json_has_what_is_known_and_null_for_the_rest(run: Runner) -> None:
    plan = run(*JOB, "--json").data["plans"][0]
    seconds = plan["step_time_s"] * 1e9 / (16 * 1024)
    assert plan["usd_per_billion_tokens"] is None and plan["goodput"] is None
    assert plan["kwh_per_billion_tokens"] == pytest.approx(4 * 700 * seconds / 3.6e6)
    assert plan["time_to_tokens_s"] is None


def test_prices_power_and_failures_are_counted(run: Runner) -> None:
    ran = run(*JOB, "--json", "--price", 2.5, "--power", "0.5kW", *FAILING)
    plan, seconds = ran.data["plans"][0], ran.data["plans"][0]["step_time_s"] * 1e9 / (16 * 1024)
    assert plan["usd_per_billion_tokens"] == pytest.approx(4 * 2.5 * seconds / 3600)
    assert plan["kwh_per_billion_tokens"] == pytest.approx(4 * 500 * seconds / 3.6e6)
    assert 0 < plan["goodput"] < 1
    assert plan["time_to_tokens_without_failures_s"] == pytest.approx(100 * seconds, rel=1e-6)
    assert plan["time_to_tokens_s"] == pytest.approx(100 * seconds / plan["goodput"], rel=1e-6)
    assert plan["checkpoint_interval_s"] == pytest.approx(
        plan["checkpoint_every_steps"] * plan["step_time_s"]
    )
    assumed = " ".join(ran.data["assumptions"])
    assert "2.5 USD" in assumed and "500 W" in assumed and "failures come independently" in assumed


def test_the_table_has_columns_only_for_what_was_asked(run: Runner) -> None:
    plain, full = run(*JOB), run(*JOB, "--price", 2.5, *FAILING)
    for words in (
        "USD/B tokens",
        "kWh/B tokens",
        "goodput",
        "save every",
        "100 G tokens",
        "without failures",
    ):
        assert words in full.stdout and words not in plain.stdout, words
    assert "goodput" not in run(*JOB, "--price", 2.5).stdout


def test_cost_and_energy_rank_as_time_does_and_memory_does_not(run: Runner) -> None:
    def steps(*more: object) -> list[float]:
        return [each["step_time_s"] for each in run(*JOB, "--json", *more).data["plans"]]

    assert steps("--objective", "cost", "--price", 2) == steps() == steps("--objective", "energy")
    small = run(*JOB, "--json", "--objective", "memory").data["plans"]
    peaks = [each["peak_memory_bytes"] for each in small]
    assert peaks == sorted(peaks) and peaks[0] < run(*JOB, "--json").data["plans"][0]["peak_memory_bytes"]
