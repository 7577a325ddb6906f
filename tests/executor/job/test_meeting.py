"""Processes that meet: where they were given different jobs all of them say so, whoever ends first."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest
import torch.distributed as dist

from meshwright.executor.job.launch import Launch
from meshwright.executor.job.meeting import same_job
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
