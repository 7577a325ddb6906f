"""Sums by messages: what they are, in which order they are added, and how often a message is waited for."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.serving.parallel.message_sum import MessageSum
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.specs.error import SpecError

LONG = datetime.timedelta(seconds=60)


def on_threads(size: int, work: Callable[[int, dist.ProcessGroupGloo], Tensor | MessageSum]) -> list:  # type: ignore[type-arg]
    """What members of one group, a thread each, come to."""
    store = dist.HashStore()

    def member(rank: int) -> object:
        return work(rank, dist.ProcessGroupGloo(store, rank, size, LONG))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


def terms(size: int, num: int, seed: int = 0) -> Tensor:
    """Of sizes so different that the order of adding shows in float32."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.randint(-6, 6, (size, 1), generator=generator)
    return torch.randn(size, num, generator=generator) * scales


@pytest.mark.parametrize("way", ["star", "ring"])
@pytest.mark.parametrize(("size", "num"), [(2, 7), (3, 2), (4, 1000)])
def test_all_ranks_have_the_same_bits_of_the_sum(way: str, size: int, num: int) -> None:
    given = terms(size, num)
    runs = [
        on_threads(size, lambda rank, group: MessageSum(group, way)(given[rank].clone())) for _ in range(2)
    ]
    for found in runs[0] + runs[1]:
        assert torch.equal(found, runs[0][0])
        torch.testing.assert_close(
            found.double(), given.double().sum(0), rtol=1e-5, atol=given.abs().max().item() * 1e-6
        )


def test_a_star_adds_in_the_order_of_ranks() -> None:
    """((t0 + t1) + t2) + t3, bit by bit, whoever sends first."""
    given = terms(4, 500, seed=3)
    expected = ((given[0] + given[1]) + given[2]) + given[3]
    assert not torch.equal(expected, given[3] + given[2] + given[1] + given[0]), "the order shows"
    for found in on_threads(4, lambda rank, group: MessageSum(group, "star")(given[rank].clone())):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("way", "rounds"), [("star", 1), ("ring", 6)])
def test_a_star_waits_for_two_messages_and_a_ring_for_all_of_its_steps(way: str, rounds: int) -> None:
    """Of four: up and down, one after the other, is 2 latencies; around and once more is 2 x 3."""
    waited: list[float] = []
    sums = []

    def work(rank: int, group: dist.ProcessGroupGloo) -> MessageSum:
        made = MessageSum(group, way, 0.25, waited.append)
        made(torch.ones(8))
        sums.append(made)
        return made

    on_threads(4, work)
    assert [each.num_rounds for each in sums] == [rounds] * 4
    assert waited == [0.25] * 4 * rounds


def test_a_rate_is_measured_where_the_large_message_comes_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine may do: the rate is then that of all of its time, not of next to nothing."""
    monkeypatch.setattr(MessageSum, "_probe_s", lambda self, num_bytes: 0.03 if num_bytes == 1 else 0.02)

    def work(rank: int, group: dist.ProcessGroupGloo) -> MessageSum:
        return MessageSum(group, "quickest")

    for found in on_threads(3, work):
        assert [found.way_of(num_bytes) for num_bytes in (64, 10**12)] == ["star", "ring"]


def test_the_quickest_is_chosen_alike_by_what_messages_take() -> None:
    """A latency of 30 ms between three: small terms as a star; at any rate a term of a terabyte around the ring."""

    def work(rank: int, group: dist.ProcessGroupGloo) -> Tensor:
        made = MessageSum(group, "quickest", 0.03)
        assert [made.way_of(num_bytes) for num_bytes in (64, 10**12)] == ["star", "ring"]
        return made(torch.full((5,), float(rank)))

    assert all(torch.equal(found, torch.full((5,), 3.0)) for found in on_threads(3, work))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"sums": "stair"}, "stair"),
        ({"sums": "star", "device": "cuda"}, "star on cuda"),
        ({"link_latency_s": 0.1}, "with sums=backend"),
        ({"sums": "star", "link_latency_s": -0.1}, "-0.1"),
    ],
)
def test_what_cannot_be_is_refused(choice: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        RunnerOptions(**choice)  # type: ignore[arg-type]
