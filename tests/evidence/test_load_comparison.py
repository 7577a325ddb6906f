"""A plan of a load beside its measurement: ratios, and what they mean."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.evidence.load_comparison import LATENCIES, SHARES, LoadComparison
from meshwright.specs.error import SpecError

NEVER = float("inf")


def told(scale: float = 1.0, rate: float = 1.0, **more: Any) -> dict[str, Any]:
    """Figures of a plan, or of a server that takes so many times as long and gives so many times as much."""
    latencies = {name: {share: scale * (1 + n) for n, share in enumerate(SHARES)} for name in LATENCIES}
    rates = {"output_tokens_per_s": 100 * rate, "input_tokens_per_s": 500 * rate, "goodput_per_s": 2 * rate}
    return {**latencies, **rates, "num_requests": 20, "num_finished": 20, **more}


PLAN = told(plan={"name": "2 x tp4", "replicas": 2}, usd_per_million_tokens=3.0)


def test_ratios_are_measured_over_predicted() -> None:
    found = LoadComparison.of(PLAN, told(1.25, 0.98))
    assert found.figure("tpot_s p90").ratio == found.step_factor == pytest.approx(1.25)
    assert found.has_kept_up and found.meaning[-1].startswith("the load was kept up with")
    assert "1.25 x as long as 2 x tp4 says" in found.meaning[0]
    assert LoadComparison.of(PLAN, told(1.02)).meaning[0].endswith("as predicted")


def test_a_server_that_falls_behind_needs_more_replicas_and_more_money() -> None:
    found = LoadComparison.of(PLAN, told(2.0, 0.6))
    assert not found.has_kept_up
    assert "60% of the tokens" in found.meaning[1] and "2 replicas would have to be 4" in found.meaning[1]
    assert "$5.00 in place of $3.00" in found.meaning[2]


def test_a_first_token_that_is_later_than_steps_explain_is_told() -> None:
    measured = {**told(1.2), "ttft_s": {"p50": 1.9, "p90": 2.0, "p99": 3.0}}
    assert "first token takes 1.90 x" in LoadComparison.of(PLAN, measured).meaning[1]
    assert "first token" not in " ".join(LoadComparison.of(PLAN, told(1.2)).meaning)


def test_failed_requests_are_told_and_decide_percentiles() -> None:
    measured = told(num_finished=15)
    measured["ttft_s"] = {"p50": 1.0, "p90": NEVER, "p99": None}
    found = LoadComparison.of(PLAN, measured)
    assert found.figure("ttft_s p90").ratio is None and found.figure("ttft_s p99").measured is None
    assert found.meaning[0].startswith("5 requests failed")
    assert {"figures", "meaning", "step_factor"} <= found.to_dict().keys()


def test_other_loads_are_refused() -> None:
    with pytest.raises(SpecError, match="20 requests, the measurement of 19"):
        LoadComparison.of(PLAN, told(num_requests=19))
