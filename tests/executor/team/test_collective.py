"""Gathers, scattered sums and sums on gloo, member by member, beside the same on the stacked tensors."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.team.collective import (
    LARGEST_DIRECT_BYTES,
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

TIMEOUT = datetime.timedelta(seconds=60)
SIZES = (2, 3, 4)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, list[Any]]]:
    """Gloo groups of two, three and four members, all in this process."""
    made = {}
    for size in SIZES:
        store = dist.HashStore()
        with ThreadPoolExecutor(size) as threads:
            join = [
                threads.submit(dist.ProcessGroupGloo, dist.PrefixStore(str(size), store), rank, size, TIMEOUT)
                for rank in range(size)
            ]
            made[size] = [one.result() for one in join]
    yield made


def each(groups: list[Any], run: Callable[[Any, Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """What every member has, all at once."""
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(run, groups, tensors))


def tensors(size: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(size)]


def gathered(group: Any, part: Tensor) -> Tensor:
    whole, works = start_gather(part, group, "gloo")
    wait_all(works)
    return whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("size", SIZES)
def test_a_gather_has_every_part_in_its_place(
    worlds: dict[int, list[Any]], size: int, dtype: torch.dtype
) -> None:
    parts = tensors(size, 3, 5, dtype=dtype)
    for found in each(worlds[size], gathered, parts):
        assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("size", SIZES)
def test_a_gather_in_place_keeps_the_own_part(worlds: dict[int, list[Any]], size: int) -> None:
    parts, wholes = tensors(size, 7), [torch.full((7 * size,), torch.nan).double() for _ in range(size)]

    def run(group: Any, whole: Tensor) -> Tensor:
        own = whole.chunk(size)[group.rank()]
        own.copy_(parts[group.rank()])
        wait_all(gather(whole, group, "gloo"))
        return whole

    for found in each(worlds[size], run, wholes):
        assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("size", SIZES)
def test_a_scattered_sum_is_the_own_part_and_leaves_the_whole(
    worlds: dict[int, list[Any]], size: int
) -> None:
    wholes = tensors(size, 2 * size, 3)
    before = [whole.clone() for whole in wholes]
    found = each(worlds[size], lambda group, whole: scatter_sum(whole, group, "gloo"), wholes)
    for part, expected in zip(found, torch.stack(before).sum(0).chunk(size), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-14, atol=1e-14)
    for whole, was, part in zip(wholes, before, found, strict=True):
        assert torch.equal(whole, was)
        assert part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


@pytest.mark.parametrize("is_maximum", [False, True])
@pytest.mark.parametrize("num_elements", [1, 1000, LARGEST_DIRECT_BYTES // 8 + 1])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_or_maximum_is_the_same_bits_on_all(
    worlds: dict[int, list[Any]], size: int, num_elements: int, is_maximum: bool
) -> None:
    given = tensors(size, num_elements)
    stacked = torch.stack(given)
    expected = stacked.amax(0) if is_maximum else stacked.sum(0)
    found = each(worlds[size], lambda g, t: combine(t, g, "gloo", is_maximum=is_maximum), given)
    for one, tensor in zip(found, given, strict=True):
        assert one is tensor
        assert torch.equal(one, found[0])
        torch.testing.assert_close(one, expected, rtol=1e-14, atol=1e-14)


def test_what_is_not_contiguous_is_summed_too(worlds: dict[int, list[Any]]) -> None:
    given = [one.t() for one in tensors(2, 4, 6)]
    expected = given[0] + given[1]
    for one in each(worlds[2], lambda group, tensor: combine(tensor, group, "gloo"), given):
        assert torch.equal(one, expected)


def test_nothing_is_gathered_and_scattered_at_once(worlds: dict[int, list[Any]]) -> None:
    for found in each(worlds[2], gathered, tensors(2, 0, 4)):
        assert found.shape == (0, 4)
    for found in each(worlds[2], lambda g, t: scatter_sum(t, g, "gloo"), tensors(2, 0, 4)):
        assert found.shape == (0, 4)


def test_gathers_under_way_do_not_meet_a_scattered_sum(worlds: dict[int, list[Any]]) -> None:
    parts, wholes = tensors(2, 5), tensors(2, 4)
    sums = (wholes[0] + wholes[1]).chunk(2)

    def run(group: Any, part: Tensor) -> Tensor:
        first, works = start_gather(part, group, "gloo")
        second, more = start_gather(-part, group, "gloo")
        own = scatter_sum(wholes[group.rank()], group, "gloo")
        wait_all([*more, *works])
        return torch.cat([first, second, own])

    for rank, found in enumerate(each(worlds[2], run, parts)):
        assert torch.equal(found, torch.cat([*parts, *(-part for part in parts), sums[rank]]))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("size", SIZES)
def test_any_dimension_is_gathered_and_scattered(worlds: dict[int, list[Any]], size: int, dim: int) -> None:
    parts = tensors(size, 3, 5, 2)
    for found in each(worlds[size], lambda group, part: gathering(part, group, "gloo", dim)(), parts):
        assert found.is_contiguous() and torch.equal(found, torch.cat(parts, dim))
    wholes = tensors(size, 2 * size, size, 3 * size)
    expected = torch.stack(wholes).sum(0).chunk(size, dim)
    for found, part in zip(
        each(worlds[size], lambda group, whole: scattered_sum(whole, group, "gloo", dim), wholes),
        expected,
        strict=True,
    ):
        assert found.is_contiguous()
        torch.testing.assert_close(found, part, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("split_dim", "join_dim"), [(0, 0), (1, 2), (2, 1), (-1, 0)])
@pytest.mark.parametrize("size", SIZES)
def test_equal_parts_change_the_dimension_that_is_split(
    worlds: dict[int, list[Any]], size: int, split_dim: int, join_dim: int
) -> None:
    given = tensors(size, size, 2 * size, 3 * size)
    sent = [one.chunk(size, split_dim) for one in given]
    found = each(worlds[size], lambda group, t: swapping(t, group, "gloo", split_dim, join_dim)(), given)
    for member, one in enumerate(found):
        assert torch.equal(one, torch.cat([parts[member] for parts in sent], join_dim))
    back = each(worlds[size], lambda group, t: swapping(t, group, "gloo", join_dim, split_dim)(), found)
    if split_dim != join_dim:
        assert all(torch.equal(one, tensor) for one, tensor in zip(back, given, strict=True))


@pytest.mark.parametrize("num_elements", [1000, LARGEST_DIRECT_BYTES // 8 + 1])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_elsewhere_leaves_what_was_given(
    worlds: dict[int, list[Any]], size: int, num_elements: int
) -> None:
    given = tensors(size, num_elements)
    before = [one.clone() for one in given]
    found = each(worlds[size], lambda g, t: combining(t, g, "gloo", in_place=False)(), given)
    for one, tensor, was in zip(found, given, before, strict=True):
        assert torch.equal(tensor, was) and torch.equal(one, found[0])
        torch.testing.assert_close(one, torch.stack(before).sum(0), rtol=1e-14, atol=1e-14)
