"""Groups of NCCL are connected as they are made, by all ranks in one order: a ring of sends cannot stand still for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.executor.rank import process_group
from meshwright.executor.rank.process_group import ProcessGroups, Team

NUM_RANKS = 4
RING: list[Team] = [
    (tuple(sorted((rank, (rank + 1) % NUM_RANKS))), f"{rank}>{(rank + 1) % NUM_RANKS}")
    for rank in range(NUM_RANKS)
]
SUMS: list[Team] = [((0, 1, 2, 3), "dp"), ((0, 2), "tp"), ((1, 3), "tp")]


class FakeGroup:
    """Notes what is exchanged with whom, by its place in the group."""

    def __init__(self, ranks: list[int], log: list[tuple[str, tuple[int, ...], int]]) -> None:
        self.ranks, self.log = tuple(ranks), log

    def _note(self, what: str, place: int) -> Any:
        self.log.append((what, self.ranks, place))
        return SimpleNamespace(wait=lambda: None)

    def send(self, tensors: list[torch.Tensor], place: int, tag: int) -> Any:
        return self._note("send", self.ranks[place])

    def recv(self, tensors: list[torch.Tensor], place: int, tag: int) -> Any:
        return self._note("recv", self.ranks[place])

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return self._note("sum", -1)


def connected(rank: int, backend: str, patch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...], int]]:
    """What a rank exchanges when the groups are made."""
    log: list[tuple[str, tuple[int, ...], int]] = []
    patch.setattr(process_group.dist, "new_group", lambda ranks, timeout: FakeGroup(ranks, log))
    patch.setattr(process_group, "CONNECTING", torch.device("cpu"))
    store: Any = None
    ProcessGroups(rank, NUM_RANKS, store, backend, 60.0).make([*RING, *SUMS])
    return log


def test_all_ends_meet_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [connected(rank, "nccl", monkeypatch) for rank in range(NUM_RANKS)]
    assert sum(len(log) for log in logs) == sum(len(ranks) for ranks, _ in (*RING, *SUMS))
    places = [0] * NUM_RANKS
    while True:  # whoever stands first goes on once all members stand there
        fronts = [log[place] if place < len(log) else None for log, place in zip(logs, places, strict=True)]
        if not any(fronts):
            break
        ready = next(
            ranks
            for front in fronts
            if front is not None
            for ranks in [front[1]]
            if all(fronts[other] is not None and fronts[other][1] == ranks for other in ranks)
        )
        kinds = sorted(fronts[rank][0] for rank in ready)
        assert kinds == ["recv", "send"] or set(kinds) == {"sum"}
        places = [place + (rank in ready) for rank, place in enumerate(places)]


def test_gloo_needs_no_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connected(0, "gloo", monkeypatch) == []
