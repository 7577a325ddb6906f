"""Claims that need no processes hold; the ratio on Frontier moves with batch and overlap as the card says."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.specs.error import UnknownNameError
from meshwright.systems.memory.low_bandwidth_partitioning import card as low


def test_claims_that_need_no_processes_hold() -> None:
    card = system("low_bandwidth_partitioning")
    assert "2501.04266" in card.paper and card.is_simulated and card.is_executed
    own = [claim for claim in card.claims if ":" not in claim.by]
    failed = [c.claim for c in own if not c.judge(getattr(low, c.by)(**c.arguments)).passed]
    assert not failed and sum(claim.is_evidence for claim in own) == 4


@pytest.mark.parametrize(
    ("count", "is_overlapped", "wanted"), [(1, False, 1.45), (50, False, 2.04), (5, True, 1.47)]
)
def test_the_ratio_is_that_of_the_card(count: int, is_overlapped: bool, wanted: float) -> None:
    seconds = [low.step_s(name, 384, count, is_overlapped) for name in ("ZeRO++", "topology")]
    assert seconds[0] / seconds[1] == pytest.approx(wanted, abs=0.01)


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
