"""The benchmark of CPU serving: rates are tokens over their own time, ratios are ours over theirs, round by round."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import serve_cpu

POINT = serve_cpu.Point.read("2x100+11")


def engine(name: str, *seconds: tuple[float, float], token: int = 1) -> SimpleNamespace:
    """One that answered rounds of so many seconds for the first token, and for all."""
    rounds = [
        {"prefill_s": first, "all_s": whole, "tokens": [[token] * 10, [1] * 10], "host_us": 80.0}
        for first, whole in seconds
    ]
    return SimpleNamespace(name=name, rounds=rounds)


def test_decode_is_what_the_other_tokens_take() -> None:
    assert serve_cpu.rates(POINT, {"prefill_s": 0.5, "all_s": 1.5}) == pytest.approx(
        {"prefill": 400.0, "decode": 20.0}
    )


def test_ratios_are_of_rounds_and_above_one_where_ours_is_faster() -> None:
    ours = engine("ours", (1.0, 2.0), (2.0, 4.0), (4.0, 8.0))
    peer = engine("genai", (2.0, 6.0), (4.0, 8.0), (4.0, 6.0), token=2)
    line = serve_cpu.line("int8", POINT, ours, peer)
    assert line["prefill_ratio"] == [1.5, 2.0, 2.0] and line["decode_ratio"] == [1.25, 2.0, 3.0]
    assert line["equal_tokens"] == "30 of 60" and "host_us" not in line
    own = serve_cpu.line("int8", POINT, ours, ours)
    assert own["host_us"] == [80.0] * 3 and "decode_ratio" not in own


def test_an_engine_that_does_not_start_is_told_and_left_out(tmp_path) -> None:
    options = SimpleNamespace(python=[], blocks="same", threads=1)
    process = serve_cpu.EngineProcess("ctranslate2", "int5", options, tmp_path)
    assert "ctranslate2" in process.error.lower()
