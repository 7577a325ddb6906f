"""A rank of a launched training as a script: `meshwright`, with a slow link between its host and the other.

LINK_PORT: where the link answers; HOST: 0 or 1, the host of this rank; HEARD: a file, one JSON line for every iteration as
rank 0 has heard of it.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))  # a host runs it in a folder of its own

import torch.distributed as dist
from tests.executor.job.slow_link import ask_for_port

from meshwright.cli import main
from meshwright.executor.job import launched_run
from meshwright.executor.job.gather import Iteration
from meshwright.executor.job.group_reports import GroupReports
from meshwright.executor.job.launch import Launch
from meshwright.executor.job.meeting import meet
from meshwright.executor.team import host_memory

# What gloo publishes under keys with this: the host's name and an address, each behind its length. The address begins
# with a sockaddr_in: family, port, number of the host.
ADDRESSES = "/cpu/"
LENGTH, FAMILY, PLACE = struct.Struct("<Q"), struct.Struct("=H"), struct.Struct("!H4s")
# Two ranks compare their own address with what they read of the other's; the one with the higher address connects.
# 0.0.0.0 is lower than the loopback's own, and leads there.
CONNECTS_TO, WAITS_FOR = "0.0.0.0", "127.0.0.2"


def redirected(published: bytes, link: int, connects: bool) -> bytes:
    """An address of the other host as this one shall see it."""
    (length,) = LENGTH.unpack_from(published)
    begin = 2 * LENGTH.size + length
    (family,) = FAMILY.unpack_from(published, begin)
    assert family == socket.AF_INET, f"gloo has published an address of family {family}"
    changed, place = bytearray(published), begin + FAMILY.size
    port, _ = PLACE.unpack_from(published, place)
    seen = (ask_for_port(link, 1, port), CONNECTS_TO) if connects else (port, WAITS_FOR)
    PLACE.pack_into(changed, place, seen[0], socket.inet_aton(seen[1]))
    return bytes(changed)


class LinkStore(dist.Store):  # type: ignore[misc,name-defined]
    """The job's store, in which ranks of the other host are found behind the link."""

    def __init__(self, store: Any, host: str, link: int) -> None:
        super().__init__()
        self.store, self.host, self.link = store, host, link

    def set(self, key: str, value: str | bytes) -> None:
        """Addresses together with the host on which they are."""
        if ADDRESSES in key:
            self.store.set(f"host of {key}", self.host)
        self.store.set(key, value if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Addresses of the other host changed."""
        value: bytes = self.store.get(key)
        if ADDRESSES not in key or self.store.get(f"host of {key}").decode() == self.host:
            return value
        return redirected(value, self.link, connects=self.host == "0")

    def add(self, key: str, number: int) -> int:
        """As of the job's store; so are all below."""
        total: int = self.store.add(key, number)
        return total

    def check(self, keys: list[str]) -> bool:
        """Are all there?"""
        found: bool = self.store.check(keys)
        return found

    def wait(self, keys: list[str], *timeout: datetime.timedelta) -> None:
        """Until all are there."""
        self.store.wait(keys, *timeout)

    def delete_key(self, key: str) -> bool:
        """Was it there?"""
        found: bool = self.store.delete_key(key)
        return found

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Of waits."""
        self.store.set_timeout(timeout)


def meet_over_link(launch: Launch) -> LinkStore:
    """`meet`, with what gloo publishes changed."""
    return LinkStore(meet(launch), os.environ["HOST"], int(os.environ["LINK_PORT"]))


class TellingReports(GroupReports):
    """Writes down what rank 0 hears."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        tell = self.progress

        def note(one: Iteration) -> None:
            with Path(os.environ["HEARD"]).open("a") as file:
                file.write(json.dumps(dataclasses.asdict(one)) + "\n")
            if tell is not None:
                tell(one)

        self.progress = note


if __name__ == "__main__":
    vars(host_memory).update(own_host=lambda: f"host {os.environ['HOST']}")  # they share no memory
    vars(launched_run).update(meet=meet_over_link, GroupReports=TellingReports)
    main(sys.argv[1:])
