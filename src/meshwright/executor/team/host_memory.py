"""HostMemory: memory that the members of a team on one host share, and the signals by which they take turns in it.

The memory is an anonymous file (memfd) that travels over a socket, so no name of it is anywhere: when the last member has
ended, however it has ended, it is gone. Signals are bytes on sockets between every two members: who waits sleeps in the
kernel, and of a member that has died the others read the end of the socket.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.specs.error import ExecutionError

# Of a slot, what a member writes at once: what is in a core's second-level cache when the others read it.
SLOT_BYTES = 1 << 20
NUM_TURNS = 2  # slots of a member
# Everyone reads what all others have written. With more of them than this the backend's rings read less.
MOST_MEMBERS = 8
HELLO = struct.Struct("=i")  # the rank of who connects
TIMEVAL = struct.Struct("@2l")  # of SO_RCVTIMEO
CREDENTIALS = struct.Struct("=3i")  # of SO_PEERCRED: process, user, group
SIGNAL = b"\0"


class HostMemory:
    """Two slots for each of ``size`` members. All members take the same turns: in a turn each writes its slot (`write`), says
    so (`post`), waits for all (`wait`) and reads theirs (`read`, `view`).

    Two slots are enough: who posts a turn has read all of the turn before, and nobody writes a slot again before all have
    posted the turn between.
    """

    def __init__(self, memory: mmap.mmap, links: dict[int, socket.socket], number: int) -> None:
        self.number, self.size = number, len(links) + 1
        self._memory, self._links, self._turn = memory, links, 0
        self._address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()

    @staticmethod
    def num_bytes(size: int) -> int:
        """Of the memory of so many members."""
        return size * NUM_TURNS * SLOT_BYTES

    def write(self, offset: int, source: int, num_bytes: int) -> None:
        """Into the own slot, from an address."""
        ctypes.memmove(self._address + self._place(self.number) + offset, source, num_bytes)

    def read(self, member: int, offset: int, target: int, num_bytes: int) -> None:
        """Out of a member's slot, to an address."""
        ctypes.memmove(target, self._address + self._place(member) + offset, num_bytes)

    def view(self, member: int, offset: int, dtype: torch.dtype, count: int) -> Tensor:
        """So many numbers in a member's slot, until the next turn."""
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._place(member) + offset)

    def _place(self, member: int) -> int:
        return (NUM_TURNS * member + self._turn) * SLOT_BYTES

    def begin(self) -> None:
        """The next turn."""
        self._turn = (self._turn + 1) % NUM_TURNS

    def post(self) -> None:
        """Say that the own slot is written."""
        for member, link in self._links.items():
            try:
                link.send(SIGNAL)
            except ConnectionError as error:
                raise ExecutionError(f"member {member} on this host has ended") from error

    def wait(self) -> None:
        """Return when all slots are written.

        Raises:
            ExecutionError: a member has ended, or says nothing for too long.
        """
        for member, link in self._links.items():
            try:
                said = link.recv(1)
            except BlockingIOError as error:
                raise ExecutionError(f"member {member} on this host says nothing for too long") from error
            except ConnectionError:  # it had not read all that it was told
                said = b""
            if not said:
                raise ExecutionError(f"member {member} on this host has ended")

    def close(self) -> None:
        """Leave the others."""
        for link in self._links.values():
            link.close()


class HostNeighbours:
    """The processes of a job that share memory with this one, as they tell each other in the job's `store`.

    ``are_together`` is the same on all ranks. Connections wait for at most `timeout_s`, and so do signals.
    """

    def __init__(self, store: Any, rank: int, num_ranks: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._arrived: dict[int, deque[socket.socket]] = {other: deque() for other in range(num_ranks)}
        self._memories: list[HostMemory] = []
        host, self._listener, address = own_host(), None, ""
        if host:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind("")  # an abstract address that the kernel chooses: it goes with the socket
            self._listener.listen()
            self._listener.settimeout(timeout_s)
            address = self._listener.getsockname().hex()
        store.set(f"host/{rank}", json.dumps([host or f"rank {rank}", address]))
        found = [json.loads(store.get(f"host/{other}")) for other in range(num_ranks)]
        self._hosts, self._addresses = [one[0] for one in found], [bytes.fromhex(one[1]) for one in found]

    def are_together(self, ranks: Sequence[int]) -> bool:
        """Are these several processes of one host, and few enough?"""
        return 1 < len(ranks) <= MOST_MEMBERS and len({self._hosts[rank] for rank in ranks}) == 1

    def memory(self, ranks: Sequence[int]) -> HostMemory:
        """New memory of these ranks, of which this is one.

        All ask for theirs in one order: the n-th connection of two ranks is of the n-th memory that both share.

        Raises:
            ExecutionError: one of them does not come.
        """
        number, links = ranks.index(self._rank), {}
        try:
            for member, rank in enumerate(ranks):
                if rank != self._rank:
                    links[member] = self._connect(rank) if member < number else self._accept(rank)
            memory = _sent(links, len(ranks)) if number == 0 else _received(links[0])
        except OSError as error:
            raise ExecutionError(f"processes of this host do not find each other: {error}") from error
        self._memories.append(HostMemory(memory, links, number))
        return self._memories[-1]

    def _connect(self, rank: int) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        self._limit(link)
        link.connect(self._addresses[rank])
        link.send(HELLO.pack(self._rank))
        return link

    def _accept(self, rank: int) -> socket.socket:
        """Others may have come before."""
        assert self._listener is not None, "ranks are together only where they listen"
        while not self._arrived[rank]:
            link, _ = self._listener.accept()
            self._limit(link)
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(credentials)[1] != os.getuid():
                link.close()  # anybody on this host may connect to an abstract address
                continue
            (other,) = HELLO.unpack(link.recv(HELLO.size, socket.MSG_WAITALL))
            self._arrived[other].append(link)
        return self._arrived[rank].popleft()

    def _limit(self, link: socket.socket) -> None:
        """Let it wait so long and no longer."""
        link.setblocking(True)
        seconds, rest = divmod(self._timeout_s, 1.0)
        limit = TIMEVAL.pack(int(seconds), int(1e6 * rest))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def close(self) -> None:
        """Leave the others."""
        for memory in self._memories:
            memory.close()
        if self._listener is not None:
            self._listener.close()


def own_host() -> str:
    """The same text for all processes that can share memory with this one; empty where none can."""
    try:
        os.close(os.memfd_create("meshwright"))  # Linux, and not where a container forbids it
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.stat("/proc/self/ns/net").st_ino  # abstract addresses are of a network, as hosts are
    except (AttributeError, OSError):
        return ""
    return f"{boot} {network} {os.getuid()}"


def _sent(links: dict[int, socket.socket], size: int) -> mmap.mmap:
    """New memory, which all members get."""
    file = os.memfd_create("meshwright")
    try:
        os.ftruncate(file, HostMemory.num_bytes(size))
        for link in links.values():
            socket.send_fds(link, [SIGNAL], [file])
        return mmap.mmap(file, HostMemory.num_bytes(size))
    finally:
        os.close(file)


def _received(link: socket.socket) -> mmap.mmap:
    """The memory that the first member has made."""
    _, files, _, _ = socket.recv_fds(link, len(SIGNAL), 1)
    if not files:
        raise OSError("the first of them has ended")
    try:
        return mmap.mmap(files[0], 0)
    finally:
        os.close(files[0])
