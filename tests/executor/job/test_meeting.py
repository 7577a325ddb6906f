"""Processes that meet: where they were given different jobs all of them say so, whoever ends first."""

from __future__ import annotations

import datetime
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from meshwright.executor.job.launch import Launch
from meshwright.executor.job.meeting import meet, prefix_of, same_job
from meshwright.specs.error import ExecutionError

END_S = 60.0


def launch(process: int) -> Launch:
    return Launch(process, 2, process, "127.0.0.1", 29500, "slurm")


class Connection:
    """What one process sees of the store of process 0, which is gone when that has ended. Process 1 reads late: not before
    process 0 waits for it, or has ended."""

    def __init__(self, process: int, store: Any, waits: threading.Event, has_ended: threading.Event) -> None:
        self.process, self.store, self.waits, self.has_ended = process, store, waits, has_ended

    def set(self, name: str, value: str) -> None:
        self.store.set(name, value)

    def wait(self, names: list[str], timeout: datetime.timedelta) -> None:
        if all(name.endswith("has_read") for name in names):
            self.waits.set()
        self.store.wait(names, timeout)

    def get(self, name: str) -> bytes:
        assert self.process == 0 or self.waits.wait(END_S)
        if self.has_ended.is_set():
            raise RuntimeError("Connection reset by peer")
        found: bytes = self.store.get(name)
        return found


def test_all_read_what_differs_before_the_store_goes() -> None:
    store, waits, has_ended = dist.HashStore(), threading.Event(), threading.Event()
    said: dict[int, BaseException] = {}

    def meet(process: int) -> None:
        try:
            same_job(Connection(process, store, waits, has_ended), launch(process), f"job of {process}")
        except (ExecutionError, RuntimeError) as error:
            said[process] = error
        if process == 0:
            has_ended.set()
            waits.set()

    threads = [threading.Thread(target=meet, args=(process,)) for process in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_S)
    for process in (0, 1):
        with pytest.raises(ExecutionError, match="process 1 has another job"):
            raise said[process]


def free_launch(**fields: Any) -> Launch:
    """One process that keeps the store, at a port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return Launch(0, 1, 0, port=port, by="slurm", **{"address": "127.0.0.1", **fields})


def listens_at(port: int) -> list[str]:
    """Addresses, as the kernel writes them, at which somebody of this machine listens on a port."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [
        words[1].partition(":")[0]
        for words in lines
        if words[3] == "0A" and words[1].endswith(f":{port:04X}")
    ]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel does not say who listens")
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_the_store_listens_where_it_was_told_to(address: str) -> None:
    one = free_launch(address=address)
    store = meet(one)
    store.set("key", "value")
    (where,) = listens_at(one.port)
    assert where in ("0100007F", "00000000000000000000000001000000"), "loopback, of either family"
    assert meet(one, is_second=True).get("key") == b"value"


def test_an_address_of_another_host_is_refused_before_anything_waits() -> None:
    with pytest.raises(ExecutionError, match="cannot meet the others at 192.0.2.1"):
        meet(free_launch(address="192.0.2.1"))


def test_jobs_of_other_tokens_share_no_key() -> None:
    one = free_launch(token="one")
    store = meet(one)
    store.set("failure", "one")
    for other in (replace(one, token="two"), replace(one, token=""), replace(one, attempt=1)):
        assert not meet(other, is_second=True).check(["failure"])
    assert (
        meet(one, is_second=True).check(["failure"])
        and "one" not in repr(one)
        and "one" not in prefix_of(one)
    )
