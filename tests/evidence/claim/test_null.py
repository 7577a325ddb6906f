"""A prediction is evidence where it is at least a tenth closer than what knows nothing of the paper."""

from __future__ import annotations

import math

import pytest
from tests.evidence.claim.test_claim import ENTRY

from meshwright.evidence import claims_of
from meshwright.evidence.claim.null import NullValue, is_closer, strongest
from meshwright.evidence.claim.reproduce import null_of
from meshwright.specs import SpecError


@pytest.mark.parametrize(
    ("ours", "null", "paper", "closer"),
    [
        (2.0, 1.0, 2.0, True),
        (2 * 1.1**0.89, 2.2, 2.0, True),
        (2 * 1.1**0.91, 2.2, 2.0, False),
        (2 / 1.1**0.89, 2.2, 2.0, True),  # below is as far as above
        (2.0, 2.0, 2.0, False),  # nothing is closer than what is right
        (0.5, 0.0, 1.0, True),  # no logarithm of a gain of nothing: differences
        (0.05, 0.0, 1.0, False),
        (-0.1, 0.0, 1.0, False),
        (0.1, 1.0, 0.0, True),
        (math.nan, 1.0, 2.0, False),
    ],
)
def test_closer_is_by_a_tenth_of_the_logarithm(ours: float, null: float, paper: float, closer: bool) -> None:
    assert is_closer(ours, null, paper) is closer


def test_of_several_nulls_the_one_closest_to_the_paper_counts() -> None:
    nulls = [NullValue("no effect", 1.0), NullValue("perfect scaling", 4.0)]
    assert strongest(nulls, 3.0) == nulls[1] and strongest(nulls, 1.5) == nulls[0]
    assert strongest([], 1.0) is None


def test_a_null_is_a_number_or_a_function_of_the_card() -> None:
    module = "meshwright.systems.pipeline.gpipe"
    cases = (({"num_partitions": 4, "num_microbatches": 8}, 0.3),)
    entry = {**ENTRY, "claim": "bubble", "cases": cases}
    (claim,) = claims_of(
        ({**entry, "null": {"no effect": 0.0, "mean of inputs": "mechanism:bubble_share"}},), "here"
    )
    assert null_of(claim, module) == ("mean of inputs", pytest.approx(3 / 11))
    (claim,) = claims_of(({**entry, "null": {"no effect": "no_such_function"}},), "here")
    with pytest.raises(SpecError, match="no_such_function"):
        null_of(claim, module)


def test_a_result_says_its_null_and_whether_it_is_closer() -> None:
    result = claims_of((ENTRY,), "here")[0].judge(2.1, NullValue("no effect", 1.0)).to_dict()
    assert (result["null"], result["null_value"], result["closer_than_null"]) == ("no effect", 1.0, True)
    without = claims_of((ENTRY,), "here")[0].judge(2.1).to_dict()
    assert without["null_value"] is None and without["closer_than_null"] is None
