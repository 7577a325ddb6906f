"""Process groups of a job: one world, one group for each team and stream, each with its transport; made in one order on all
ranks.

gloo keeps messages apart by tag, so pairs use the world's group. NCCL has no tags and runs what is posted on one
communicator in order, so there every directed stream between two ranks has a group of its own. It also connects the members
of a group when they first exchange something, and lets their hosts stand still until all are there; in a ring of sends that
would be for ever, so groups are connected as they are made, by all ranks in one order.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from meshwright.executor.rank.handler import Row
from meshwright.executor.team.gloo_transport import GlooTransport
from meshwright.executor.team.host_memory import HostNeighbours
from meshwright.executor.team.host_transport import HostTransport
from meshwright.executor.team.transport import TorchTransport, Transport

CONNECTING = torch.device("cuda")  # the current device, where NCCL's first exchanges are
Team = tuple[tuple[int, ...], str]  # ranks, and what tells groups of the same ranks apart


class ProcessGroups:
    """A context: the world of a job; everything is destroyed when it is left.

    ``rendezvous``: a file that all ranks see, or a store where they have met already.
    """

    def __init__(
        self, rank: int, num_ranks: int, rendezvous: Path | Store, backend: str, timeout_s: float
    ) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self._rendezvous, self._backend = rendezvous, backend
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._transports: dict[Team, Transport] = {}
        self._neighbours: HostNeighbours | None = None
        self._world: Any = None

    def __enter__(self) -> ProcessGroups:
        store = self._rendezvous
        if isinstance(store, Path):
            store = dist.FileStore(str(store), self.num_ranks)  # type: ignore[attr-defined]
        dist.init_process_group(
            self._backend, store=store, rank=self.rank, world_size=self.num_ranks, timeout=self._timeout
        )
        self._world = dist.group.WORLD
        if self._backend == "gloo":
            self._neighbours = HostNeighbours(store, self.rank, self.num_ranks, self._timeout.total_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the peers may be gone: leaving would wait for them, and the process ends anyway.
        if kind is None:
            dist.barrier()
            dist.destroy_process_group()
            if self._neighbours is not None:
                self._neighbours.close()

    def make(self, teams: Sequence[Team]) -> None:
        """Make the groups of all teams; every rank of the world calls it with the same teams."""
        for team in sorted(set(teams)):
            group = dist.new_group(list(team[0]), timeout=self._timeout)
            if self.rank in team[0]:
                self._transports[team] = self._transport(team[0], group)
        if self._backend == "nccl":
            for team in sorted(set(teams)):
                if self.rank in team[0]:
                    self._connect(team)

    def _transport(self, ranks: tuple[int, ...], group: dist.ProcessGroup) -> Transport:
        """By which the members of one group exchange tensors."""
        if self._backend != "gloo":
            return TorchTransport(group)
        if self._neighbours is not None and self._neighbours.are_together(ranks):
            return HostTransport(self._neighbours.memory(ranks), group)
        return GlooTransport(group)

    def _connect(self, team: Team) -> None:
        """Exchange one number with the members, in the direction for which the group is."""
        group, (ranks, label), one = self._transports[team].group, team, torch.zeros(1, device=CONNECTING)
        ends = label.split(">")
        if sorted(ends) != sorted(map(str, ranks)) or len(ends) != 2:
            group.allreduce([one]).wait()
        elif ends[0] == str(self.rank):
            group.send([one], ranks.index(int(ends[1])), 0).wait()
        else:
            group.recv([one], ranks.index(int(ends[0])), 0).wait()

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def pair(self, row: Row) -> tuple[Any, int]:
        """Group of a SEND or RECEIVE, and the peer's rank within it."""
        if not self._transports or self._backend != "nccl":
            return self._world, row.peer
        team = self.team(row)
        return self._transports[team].group, team[0].index(row.peer)

    def labelled(self, ranks: tuple[int, ...], label: str) -> Transport:
        """Of these ranks, and nobody's stream."""
        return self._transports[ranks, label]

    def among(self, ranks: tuple[int, ...]) -> Transport:
        """One of these ranks, the same on all of them, for what they exchange while no row does."""
        return self._transports[min(team for team in self._transports if team[0] == ranks)]

    def collective(self, row: Row) -> Any:
        """torch's group of a COLLECTIVE."""
        return self.transport(row).group

    def transport(self, row: Row) -> Transport:
        """Of a COLLECTIVE."""
        return self._transports[row.members, row.stream]

    def team(self, row: Row) -> Team:
        """The team that `pair` looks up: both ends of a direction, source first in its name."""
        source, target = (self.rank, row.peer) if row.kind.name == "SEND" else (row.peer, self.rank)
        return tuple(sorted((source, target))), f"{source}>{target}"
