"""Claims that need no processes hold; the ratio on Frontier moves with batch and overlap as the card says."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.specs.error import UnknownNameError
from meshwright.systems.memory.low_bandwidth_partitioning import card as low


def test_claims_stand_as_the_page_tells_them() -> None:
    card = system("low_bandwidth_partitioning")
    assert "2501.04266" in card.paper and card.is_simulated and card.is_executed
    own = [claim for claim in card.claims if ":" not in claim.by]
    found = [claim.judge(getattr(low, claim.by)(**claim.arguments)) for claim in own]
    predicted = [one for one in found if one.claim.kind == "predicted"]
    assert all(one.passed for one in found if one not in predicted)
    assert len(predicted) == 22 and max(one.claim.tolerance for one in predicted) <= 0.25
    assert sum(one.passed for one in predicted) == 9
    assert {one.claim.paper_value for one in predicted} == {1.71, 2.398, 1.405, 2, 0.94}


@pytest.mark.parametrize(
    ("count", "overlap", "wanted"), [(1, "nothing", 1.11), (50, "nothing", 1.33), (1, "one layer", 0.87)]
)
def test_the_ratio_is_that_of_the_card(count: int, overlap: str, wanted: float) -> None:
    assert low.rate_ratio("topology", "ZeRO++", 384, count, overlap) == pytest.approx(wanted, abs=0.01)


def test_links_are_three_classes() -> None:
    cluster = low.frontier(16)
    rates = [cluster.bandwidth_bytes_per_s(0, other) for other in (1, 2, 8)]
    assert rates == [200e9, 50e9, 12.5e9]


def test_batches_keep_their_tokens() -> None:
    assert low.num_microbatches(384) == 5 and low.num_microbatches(10**6) == 1


def test_unknown_partitionings_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        low.step_s("ZeRO-2", 16)
    with pytest.raises(UnknownNameError):
        low.held_gb("ZeRO-2", 1, 8)
