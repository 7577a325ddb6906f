"""Gathers, scattered sums, sums and swaps of a team's tensors along any dimension, whatever its transport: for instructions,
and for measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.team.transport import Transport


def gather(whole: Tensor, team: Transport) -> list[Any]:
    """Start filling `whole`, equal parts of the members along the first dimension, of which the own one is there.

    Returns what has to be waited for.
    """
    return team.gather(whole) if whole.numel() else []


def start_gather(part: Tensor, team: Transport) -> tuple[Tensor, list[Any]]:
    """Memory for all members' parts with the own one in it, and what has to be waited for until all are."""
    size = team.size()
    whole = part.new_empty((size * part.shape[0], *part.shape[1:]))
    whole.chunk(size)[team.rank()].copy_(part)
    return whole, gather(whole, team)


def gathering(part: Tensor, team: Transport, dim: int = 0) -> Callable[[], Tensor]:
    """Start gathering the members' equal parts along `dim`; what is returned waits for them and gives the whole."""
    whole, works = start_gather(part.movedim(dim, 0).contiguous(), team)

    def result() -> Tensor:
        wait_all(works)
        return whole.movedim(0, dim).contiguous()

    return result


def scattered_sum(whole: Tensor, team: Transport, dim: int = 0) -> Tensor:
    """This member's equal part along `dim` of the sum over the members, in memory of its own."""
    part = scatter_sum(whole.movedim(dim, 0).contiguous(), team)
    return part.movedim(0, dim).contiguous()


def swapping(tensor: Tensor, team: Transport, split_dim: int, join_dim: int) -> Callable[[], Tensor]:
    """Start exchanging equal parts along `split_dim`, of which member n gets the n-th of every member.

    What is returned waits for them, and joins them along `join_dim` in the order of the members.
    """
    front = tensor.movedim(split_dim, 0).contiguous()
    received = torch.empty_like(front)
    works = team.swap(front, received) if front.numel() else []

    def result() -> Tensor:
        wait_all(works)
        return torch.cat([part.movedim(0, split_dim) for part in received.chunk(team.size())], join_dim)

    return result


def scatter_sum(whole: Tensor, team: Transport) -> Tensor:
    """This member's part of the sum along the first dimension, in memory of its own."""
    return team.scatter_sum(whole) if whole.numel() else whole.chunk(team.size())[team.rank()].clone()


def combine(tensor: Tensor, team: Transport, *, is_maximum: bool = False) -> Tensor:
    """The sum, or the element-wise maximum, over the members, in place."""
    return combining(tensor, team, is_maximum=is_maximum)()


def combining(
    tensor: Tensor, team: Transport, *, is_maximum: bool = False, in_place: bool = True
) -> Callable[[], Tensor]:
    """Start summing, or finding the element-wise maximum, over the members; what is returned waits for it.

    ``in_place``: the result is in the memory of `tensor`; else `tensor` stays what it is.
    """
    if not tensor.numel():
        return lambda: tensor
    return team.combining(tensor, is_maximum=is_maximum, in_place=in_place)


def wait_all(works: list[Any]) -> None:
    """Wait for what `gather` started."""
    for work in works:
        work.wait()
