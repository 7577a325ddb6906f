"""Gathers, scattered sums and sums of every transport, member by member, beside the same on the stacked tensors."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore

from meshwright.executor.team.collective import (
    combine,
    combining,
    gather,
    gathering,
    scatter_sum,
    scattered_sum,
    start_gather,
    swapping,
    wait_all,
)
from meshwright.executor.team.gloo_transport import LARGEST_DIRECT_BYTES, GlooTransport
from meshwright.executor.team.host_memory import SLOT_BYTES, HostNeighbours
from meshwright.executor.team.host_transport import HostTransport
from meshwright.executor.team.transport import Transport

TIMEOUT = datetime.timedelta(seconds=60)
SIZES = (2, 3, 4)
LARGEST = max(LARGEST_DIRECT_BYTES, SLOT_BYTES)  # what goes at once


@pytest.fixture(scope="module", params=["messages", "memory"])
def worlds(request: pytest.FixtureRequest) -> Iterator[dict[int, list[Transport]]]:
    """Teams of two, three and four members, all in this process: by messages of gloo, and in memory that they share."""
    made, left = {}, []
    for size in SIZES:
        store = PrefixStore(str(size), HashStore())

        def join(rank: int, size: int = size, store: Any = store) -> Transport:
            group = dist.ProcessGroupGloo(store, rank, size, TIMEOUT)
            if request.param == "messages":
                return GlooTransport(group)
            neighbours = HostNeighbours(store, rank, size, TIMEOUT.total_seconds())
            left.append(neighbours)
            assert neighbours.are_together(range(size))
            return HostTransport(neighbours.memory(range(size)), group)

        with ThreadPoolExecutor(size) as threads:
            made[size] = list(threads.map(join, range(size)))
    yield made
    for one in left:
        one.close()


def each(
    teams: list[Transport], run: Callable[[Transport, Tensor], Tensor], tensors: list[Tensor]
) -> list[Tensor]:
    """What every member has, all at once."""
    with ThreadPoolExecutor(len(teams)) as threads:
        return list(threads.map(run, teams, tensors))


def tensors(size: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(size)]


def gathered(team: Transport, part: Tensor) -> Tensor:
    whole, works = start_gather(part, team)
    wait_all(works)
    return whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("size", SIZES)
def test_a_gather_has_every_part_in_its_place(
    worlds: dict[int, list[Transport]], size: int, dtype: torch.dtype
) -> None:
    parts = tensors(size, 3, 5, dtype=dtype)
    for found in each(worlds[size], gathered, parts):
        assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("size", SIZES)
def test_a_gather_in_place_keeps_the_own_part(worlds: dict[int, list[Transport]], size: int) -> None:
    parts, wholes = tensors(size, 7), [torch.full((7 * size,), torch.nan).double() for _ in range(size)]

    def run(team: Transport, whole: Tensor) -> Tensor:
        own = whole.chunk(size)[team.rank()]
        own.copy_(parts[team.rank()])
        wait_all(gather(whole, team))
        return whole

    for found in each(worlds[size], run, wholes):
        assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("size", SIZES)
def test_a_scattered_sum_is_the_own_part_and_leaves_the_whole(
    worlds: dict[int, list[Transport]], size: int
) -> None:
    wholes = tensors(size, 2 * size, 3)
    before = [whole.clone() for whole in wholes]
    found = each(worlds[size], lambda team, whole: scatter_sum(whole, team), wholes)
    for part, expected in zip(found, torch.stack(before).sum(0).chunk(size), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-14, atol=1e-14)
    for whole, was, part in zip(wholes, before, found, strict=True):
        assert torch.equal(whole, was)
        assert part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


@pytest.mark.parametrize("is_maximum", [False, True])
@pytest.mark.parametrize("num_elements", [1, 1000, LARGEST // 8 + 1])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_or_maximum_is_the_same_bits_on_all(
    worlds: dict[int, list[Transport]], size: int, num_elements: int, is_maximum: bool
) -> None:
    given = tensors(size, num_elements)
    stacked = torch.stack(given)
    expected = stacked.amax(0) if is_maximum else stacked.sum(0)
    found = each(worlds[size], lambda team, t: combine(t, team, is_maximum=is_maximum), given)
    for one, tensor in zip(found, given, strict=True):
        assert one is tensor
        assert torch.equal(one, found[0])
        torch.testing.assert_close(one, expected, rtol=1e-14, atol=1e-14)


def test_what_is_not_contiguous_is_summed_too(worlds: dict[int, list[Transport]]) -> None:
    given = [one.t() for one in tensors(2, 4, 6)]
    expected = given[0] + given[1]
    for one in each(worlds[2], lambda team, tensor: combine(tensor, team), given):
        assert torch.equal(one, expected)


def test_nothing_is_gathered_and_scattered_at_once(worlds: dict[int, list[Transport]]) -> None:
    for found in each(worlds[2], gathered, tensors(2, 0, 4)):
        assert found.shape == (0, 4)
    for found in each(worlds[2], lambda team, t: scatter_sum(t, team), tensors(2, 0, 4)):
        assert found.shape == (0, 4)


def test_gathers_under_way_do_not_meet_a_scattered_sum(worlds: dict[int, list[Transport]]) -> None:
    parts, wholes = tensors(2, 5), tensors(2, 4)
    sums = (wholes[0] + wholes[1]).chunk(2)

    def run(team: Transport, part: Tensor) -> Tensor:
        first, works = start_gather(part, team)
        second, more = start_gather(-part, team)
        own = scatter_sum(wholes[team.rank()], team)
        wait_all([*more, *works])
        return torch.cat([first, second, own])

    for rank, found in enumerate(each(worlds[2], run, parts)):
        assert torch.equal(found, torch.cat([*parts, *(-part for part in parts), sums[rank]]))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("size", SIZES)
def test_any_dimension_is_gathered_and_scattered(
    worlds: dict[int, list[Transport]], size: int, dim: int
) -> None:
    parts = tensors(size, 3, 5, 2)
    for found in each(worlds[size], lambda team, part: gathering(part, team, dim)(), parts):
        assert found.is_contiguous() and torch.equal(found, torch.cat(parts, dim))
    wholes = tensors(size, 2 * size, size, 3 * size)
    expected = torch.stack(wholes).sum(0).chunk(size, dim)
    for found, part in zip(
        each(worlds[size], lambda team, whole: scattered_sum(whole, team, dim), wholes),
        expected,
        strict=True,
    ):
        assert found.is_contiguous()
        torch.testing.assert_close(found, part, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("split_dim", "join_dim"), [(0, 0), (1, 2), (2, 1), (-1, 0)])
@pytest.mark.parametrize("size", SIZES)
def test_equal_parts_change_the_dimension_that_is_split(
    worlds: dict[int, list[Transport]], size: int, split_dim: int, join_dim: int
) -> None:
    given = tensors(size, size, 2 * size, 3 * size)
    sent = [one.chunk(size, split_dim) for one in given]
    found = each(worlds[size], lambda team, t: swapping(t, team, split_dim, join_dim)(), given)
    for member, one in enumerate(found):
        assert torch.equal(one, torch.cat([parts[member] for parts in sent], join_dim))
    back = each(worlds[size], lambda team, t: swapping(t, team, join_dim, split_dim)(), found)
    if split_dim != join_dim:
        assert all(torch.equal(one, tensor) for one, tensor in zip(back, given, strict=True))


@pytest.mark.parametrize("num_elements", [1000, LARGEST // 8 + 1])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_elsewhere_leaves_what_was_given(
    worlds: dict[int, list[Transport]], size: int, num_elements: int
) -> None:
    given = tensors(size, num_elements)
    before = [one.clone() for one in given]
    found = each(worlds[size], lambda team, t: combining(t, team, in_place=False)(), given)
    for one, tensor, was in zip(found, given, before, strict=True):
        assert torch.equal(tensor, was) and torch.equal(one, found[0])
        torch.testing.assert_close(one, torch.stack(before).sum(0), rtol=1e-14, atol=1e-14)
