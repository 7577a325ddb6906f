"""Claims are literals with checked fields; a result passes within its tolerance and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.evidence import claims_of
from meshwright.specs import SpecError

ENTRY: dict[str, Any] = {
    "claim": "speed-up at n={n}",
    "kind": "predicted",
    "unit": "x",
    "tolerance": 0.1,
    "reason": "because",
    "how": "simulated",
    "by": "speed_up",
    "cases": (({"n": 2}, 2.0), ({"n": 4}, 3.5)),
}


def test_every_case_is_a_claim() -> None:
    found = claims_of((ENTRY,), "here")
    assert [claim.claim for claim in found] == ["speed-up at n=2", "speed-up at n=4"]
    assert [claim.paper_value for claim in found] == [2.0, 3.5]
    assert found[1].arguments == {"n": 4} and found[1].is_evidence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "guessed"}, "guessed"),
        ({"kind": "fitted on "}, "fitted on"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"tolerance": "small"}, "tolerance"),
        ({"reason": ""}, "reason"),
        ({"cases": ()}, "cases"),
        ({"cases": (({"n": 2}, float("nan")),)}, "nan"),
        ({"cases": ((2.0,),)}, "case"),
        ({"cases": (({}, 2.0),)}, "argument"),
        ({"colour": "red"}, "colour"),
        ({"null": {"a guess": 1.0}}, "a guess"),
    ],
)
def test_a_wrong_claim_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        claims_of(({**ENTRY, **change},), "systems/pipeline/x.py")
    assert said in str(error.value)


def test_something_else_than_a_tuple_is_refused() -> None:
    with pytest.raises(SpecError, match="tuple"):
        claims_of({"claim": 1}, "here")


@pytest.mark.parametrize(
    ("ours", "passed"),
    [(2.0, True), (2.19, True), (2.21, False), (1.79, False), (None, False), (float("nan"), False)],
)
def test_the_tolerance_decides(ours: float | None, passed: bool) -> None:
    result = claims_of((ENTRY,), "here")[0].judge(ours)
    assert result.passed is passed
    assert result.ratio == (None if ours is None else pytest.approx(ours / 2, nan_ok=True))


def test_around_zero_the_tolerance_is_absolute() -> None:
    claim = claims_of(({**ENTRY, "cases": (({"n": 1}, 0.0),)},), "here")[0]
    assert claim.judge(0.05).passed and not claim.judge(0.2).passed
    assert claim.judge(0.05).ratio is None


def test_a_result_has_the_fields_that_others_script_against() -> None:
    row = claims_of((ENTRY,), "here")[0].judge(2.0).to_dict()
    names = (
        "claim kind paper_value our_value ratio unit tolerance reason source passed how not_run failed "
        "null null_value closer_than_null"
    ).split()
    assert sorted(row) == sorted(names)
