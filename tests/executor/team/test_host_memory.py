"""Memory that processes of one host share: who shares it, what of it outlives them, and what is said of the dead."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import FileStore, HashStore

from meshwright.executor.team import host_memory
from meshwright.executor.team.collective import combine
from meshwright.executor.team.host_memory import MOST_MEMBERS, HostMemory, HostNeighbours
from meshwright.executor.team.host_transport import HostTransport
from meshwright.specs.error import ExecutionError

PROMPT_S = 10.0  # on a machine with other jobs
MEMBER = """
import sys, time, torch
from torch._C._distributed_c10d import FileStore
from meshwright.executor.team.collective import combine
from meshwright.executor.team.host_memory import HostNeighbours
from meshwright.executor.team.host_transport import HostTransport

neighbours = HostNeighbours(FileStore(sys.argv[1], 2), 1, 2, 60.0)
team = HostTransport(neighbours.memory((0, 1)), None)
print(combine(torch.tensor([2.0]), team).item(), flush=True)
time.sleep(60.0)
"""


def met(num_ranks: int, timeout_s: float = 60.0) -> list[HostNeighbours]:
    """Processes of one job, as threads."""
    store = HashStore()
    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(lambda r: HostNeighbours(store, r, num_ranks, timeout_s), range(num_ranks)))


def memories(all_of: Sequence[HostNeighbours], teams: Sequence[tuple[int, ...]]) -> list[list[HostMemory]]:
    """Of every rank its memories, made in the order of the teams."""

    def make(rank: int) -> list[HostMemory]:
        return [all_of[rank].memory(team) for team in teams if rank in team]

    with ThreadPoolExecutor(len(all_of)) as threads:
        return list(threads.map(make, range(len(all_of))))


def file_names() -> list[str]:
    """What this process has open, and what has a name in the memory's file system."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}").split(":[")[0])
        except OSError:  # the list's own
            continue
    return sorted([*opened, *os.listdir("/dev/shm")])


def test_teams_that_overlap_do_not_meet_each_other() -> None:
    neighbours, teams = met(4), [(0, 1), (0, 1, 2, 3), (0, 2), (1, 3), (0, 1), (2, 3)]
    found = memories(neighbours, teams)

    def sums(rank: int) -> list[float]:
        own = torch.tensor([float(10**rank)])
        return [combine(own.clone(), HostTransport(one, None)).item() for one in found[rank]]

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(sums, range(4)))
    for rank, totals in enumerate(made):
        assert totals == [sum(10.0**other for other in team) for team in teams if rank in team]
    for one in neighbours:
        one.close()


def test_only_processes_of_one_host_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = iter(["here", "there", ""])
    monkeypatch.setattr(host_memory, "own_host", lambda: next(hosts))
    two_hosts = met(2)
    assert [one.are_together((0, 1)) for one in two_hosts] == [False, False]
    monkeypatch.setattr(host_memory, "own_host", lambda: "")  # a system without such memory
    assert not met(2)[0].are_together((0, 1))
    monkeypatch.undo()
    many = met(1)[0]
    many._hosts *= MOST_MEMBERS + 1  # noqa: SLF001
    assert not many.are_together((0,)) and many.are_together(range(MOST_MEMBERS))
    assert not many.are_together(range(MOST_MEMBERS + 1))
    for one in (*two_hosts, many):
        one.close()


def test_nothing_is_left_of_it() -> None:
    gc.collect()
    before = file_names()
    neighbours = met(2)
    both = memories(neighbours, [(0, 1)])
    assert file_names() != before
    for one in neighbours:
        one.close()
    del neighbours, both, one
    gc.collect()
    assert file_names() == before


def test_who_waits_is_told_of_a_member_that_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    try:
        neighbours = HostNeighbours(FileStore(str(tmp_path / "store"), 2), 0, 2, 60.0)
        named = os.listdir("/dev/shm")
        team = HostTransport(neighbours.memory((0, 1)), None)
        assert combine(torch.tensor([1.0]), team).item() == 3.0
        assert other.stdout is not None and other.stdout.readline() == "3.0\n"
        begin_s = time.monotonic()
        other.send_signal(signal.SIGKILL)
        with pytest.raises(ExecutionError, match="member 1 on this host has ended"):
            combine(torch.tensor([1.0]), team)
        assert time.monotonic() - begin_s < PROMPT_S
        assert os.listdir("/dev/shm") == named
        neighbours.close()
    finally:
        other.kill()
        other.communicate()


def test_who_waits_too_long_is_told() -> None:
    neighbours = met(2, timeout_s=0.2)
    one, _ = memories(neighbours, [(0, 1)])
    with pytest.raises(ExecutionError, match="member 1 on this host says nothing"):
        combine(torch.tensor([1.0]), HostTransport(one[0], None))
    for each in neighbours:
        each.close()
