"""Slowed links: a bucket pays out its rate on a virtual clock, and training over a slowed link gives the same bits."""

from __future__ import annotations

import pytest
import torch
from tests.training_case import Case, program_of, training_of

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.team.slowed_link import SlowedLinks, TokenBucket
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.specs.error import SpecError

RATE, BURST = 1e6, 1000.0


class VirtualClock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def links(clock: VirtualClock, *peers: int) -> SlowedLinks:
    """Rank 0 with a slowed link to each of `peers`."""
    limits = {peer: LinkLimit(0, peer, RATE, BURST) for peer in peers}
    return SlowedLinks(0, limits, clock, clock.sleep)


@pytest.mark.parametrize("message_bytes", [1, 700, 1000, 64_000])
def test_a_long_transfer_leaves_at_the_rate_whatever_the_messages(message_bytes: int) -> None:
    bucket, now, sent = TokenBucket(RATE, BURST), 0.0, 0
    while sent < 1_000_000:
        now = bucket.release_s(message_bytes, now)
        sent += message_bytes
    assert now == pytest.approx((sent - BURST) / RATE, rel=1e-9)


def test_a_pause_fills_the_bucket_up_to_its_burst_and_no_further() -> None:
    bucket = TokenBucket(RATE, BURST)
    assert bucket.release_s(1000, 0.0) == 0.0  # the burst
    assert bucket.release_s(500, 0.0) == pytest.approx(500 / RATE)
    assert bucket.release_s(1000, 100.0) == 100.0  # full again, not 100 s worth
    assert bucket.release_s(1000, 100.0) == pytest.approx(100.0 + 1000 / RATE)


def test_what_asks_first_leaves_first() -> None:
    bucket = TokenBucket(RATE, 0.0)
    assert [bucket.release_s(1000, 0.0) for _ in range(3)] == pytest.approx([0.001, 0.002, 0.003])


def test_bytes_in_flight_never_exceed_burst_and_rate() -> None:
    bucket, log = TokenBucket(RATE, BURST), []
    for number in range(200):
        asked = number * 0.0004
        log.append((bucket.release_s(300 + 7 * (number % 13), asked), 300 + 7 * (number % 13)))
    for first, (begin, _) in enumerate(log):
        for last in range(first, len(log)):
            paid = sum(num for _, num in log[first + 1 : last + 1])
            assert paid <= BURST + RATE * (log[last][0] - begin) + 1e-6


def test_only_what_crosses_the_link_waits() -> None:
    clock = VirtualClock()
    slowed = links(clock, 1)
    assert slowed.message(2, 10**9) == 0.0
    slowed.pass_ring((0, 2, 1), 10**9, passes=2)  # sends to rank 2
    slowed.pass_ring((0,), 10**9, passes=2)
    assert clock.now_s == 0.0
    slowed.pass_ring((0, 1, 2), 3000, passes=2)  # sends 2 x 2/3 of it to rank 1
    assert clock.now_s == pytest.approx((4000 - BURST) / RATE)


def test_uneven_exchange_waits_for_its_slowest_link() -> None:
    clock = VirtualClock()
    links(clock, 1, 2).pass_to_each((0, 1, 2), (10**9, 2000, 5000))
    assert clock.now_s == pytest.approx((5000 - BURST) / RATE)


def test_what_is_sent_is_counted_whether_a_link_is_slowed_or_not() -> None:
    clock = VirtualClock()
    for one in (links(clock, 1), SlowedLinks()):
        one.message(1, 100, "SEND_F")
        one.message(2, 50, "SEND_F")
        one.pass_ring((0, 1, 2), 3000, passes=2, label="REDUCE_GRAD")
        one.pass_ring((0,), 3000, passes=2, label="ALONE")
        one.pass_to_each((0, 1, 2), (500, 20, 1), "DISPATCH")
        assert one.sent_bytes == {"SEND_F": 150, "REDUCE_GRAD": pytest.approx(4000), "DISPATCH": 21}


def test_both_ends_have_a_bucket_by_the_places_of_their_ranks() -> None:
    slowing = Slowing.parse(links=["3-1=1MB/s"])
    clock_free = [SlowedLinks.of(slowing, rank, (1, 2, 3)) for rank in range(3)]
    assert clock_free[0].message(2, 1 << 20) > 0.0 and clock_free[2].message(0, 1 << 20) > 0.0
    assert clock_free[0].message(1, 1 << 20) == clock_free[1].message(0, 1 << 20) == 0.0


@pytest.mark.parametrize(
    "case",
    [Case("1f1b", 2, 4, "split"), Case("gpipe", 1, 2, num_replicas=2)],
    ids=["messages", "collectives"],
)
def test_training_over_slowed_links_gives_the_same_bits(case: Case, gloo_pool: Pool) -> None:
    slowing = Slowing.parse(links=["0-1=1MB/s"], processes=["1=3"])
    plain = run_training(program_of(case), training_of(case), 2, pool=gloo_pool)
    slowed = run_training(program_of(case), training_of(case), 2, pool=gloo_pool, slowing=slowing)
    assert slowed.losses == plain.losses
    assert slowed.parameters.keys() == plain.parameters.keys()
    for name, parameter in plain.parameters.items():
        assert torch.equal(slowed.parameters[name], parameter)


def test_an_exchange_takes_at_least_what_its_link_needs(gloo_pool: Pool) -> None:
    """A lower bound that no noise can break: the bytes beyond the burst at the rate of the bucket."""
    case, rate = Case("gpipe", 1, 2, num_replicas=2), 1e5
    slowing = Slowing((LinkLimit(0, 1, rate, burst_bytes=0.0),))
    result = run_training(program_of(case), training_of(case), 1, pool=gloo_pool, slowing=slowing)
    trace = result.trace
    assert trace is not None
    num_bytes = 4 * sum(parameter.numel() for parameter in result.parameters.values())
    names = [trace.program.tables.effects[e].name for e in trace.program.columns.effect]
    reduced = sum(
        float(trace.end_s[0, row] - trace.start_s[0, row])
        for row, name in enumerate(names)
        if name == "REDUCE_GRAD" and trace.program.list_of_row[row] == 0
    )
    assert reduced >= 0.99 * num_bytes / rate


def test_a_process_that_there_is_not_is_refused(gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)
    with pytest.raises(SpecError, match="process 3 is slowed"):
        run_training(
            program_of(case), training_of(case), 1, pool=gloo_pool, slowing=Slowing.parse(processes=["3=2"])
        )
