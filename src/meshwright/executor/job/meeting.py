"""Where processes of several hosts meet: one key-value store, and a watch on every host for failures and standstill."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from meshwright.executor.job.launch import Launch
from meshwright.executor.rank.watchdog import SharedPositions, Watchdog
from meshwright.specs.error import ExecutionError

JOIN = datetime.timedelta(seconds=300)  # hosts of a cluster start minutes apart
ALL_READ = datetime.timedelta(seconds=30)  # processes that are all there read a few words
LOOK_S = 0.5  # between two looks of the watch
HEARD_S = 2.0  # who failed waits this long, so that the others read why before the store goes with it
LEAST_BACKLOG = 128  # processes that connect at once
FAILURE, NONE = "failure", b""
_log = logging.getLogger(__name__)


def meet(launch: Launch, is_second: bool = False) -> Any:
    """The store of the job, seen by all its processes. ``is_second``: another connection of a process that has one.

    Raises:
        ExecutionError: nobody listens there, or not all come in time.
    """
    is_master = launch.process == 0 and not launch.starter_listens and not is_second
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            launch.address, launch.port, launch.num_processes, is_master, timeout=JOIN, wait_for_workers=False,
            master_listen_fd=_listening(launch) if is_master else None,
        )  # fmt: skip
    except (RuntimeError, ValueError, OSError) as error:
        raise ExecutionError(
            f"process {launch.process} cannot meet the others at {launch.address}:{launch.port}: {error}",
            allowed="an address of process 0's host that every host reaches, and a free port there",
            next="set MASTER_ADDR and MASTER_PORT",
        ) from error
    return dist.PrefixStore(prefix_of(launch), store)  # type: ignore[attr-defined]


def prefix_of(launch: Launch) -> str:
    """What all keys of a job begin with. Who does not know its token reads and writes other keys: it is no lock (torch's
    store asks nobody who they are, and lists its keys), and keeps jobs apart that meet at one port by mistake."""
    secret = hashlib.blake2b(launch.token.encode(), digest_size=16).hexdigest() if launch.token else ""
    return "-".join(filter(None, ("meshwright", str(launch.attempt), secret)))


def _listening(launch: Launch) -> int:
    """A socket that listens at the address of the job and nowhere else: torch's own listens on all interfaces. The store
    closes it. Raises OSError where the address is not this host's, or the port is taken."""
    found = socket.getaddrinfo(launch.address, launch.port, type=socket.SOCK_STREAM)
    family, _, _, _, place = found[0]
    host = str(place[0])
    if launch.address not in (host, "localhost") and ipaddress.ip_address(host).is_loopback:
        # many systems know themselves by a name of loopback, by which other hosts reach another interface
        _log.warning(
            "%s is loopback here: the store listens on all interfaces; MASTER_ADDR as a number says on which",
            launch.address,
        )
        host = "" if family == socket.AF_INET else "::"
    listening = socket.create_server(
        (host, launch.port), family=family, backlog=max(LEAST_BACKLOG, launch.num_processes)
    )
    return listening.detach()


def same_job(store: Any, launch: Launch, digest: str) -> None:
    """Wait until all processes are here, and see that they were given the same.

    Raises:
        ExecutionError: one does not come, or has another plan or other options than process 0.
    """
    names = [f"job/{process}" for process in range(launch.num_processes)]
    store.set(names[launch.process], digest)
    try:
        store.wait(names, JOIN)
    except RuntimeError as error:
        missing = [str(process) for process, name in enumerate(names) if not store.check([name])]
        raise ExecutionError(
            f"process {', '.join(missing)} has not come within {JOIN.total_seconds():.0f} s",
            next="look at the output of that process: it tells why",
        ) from error
    found = [store.get(name).decode() for name in names]
    store.set(f"{names[launch.process]}/has_read", "")
    others = [str(process) for process, one in enumerate(found) if one != found[0]]
    if others:
        if launch.process == 0:  # the store goes with us where it is ours: all read first
            with contextlib.suppress(RuntimeError):
                store.wait([f"{name}/has_read" for name in names], ALL_READ)
        raise ExecutionError(
            f"process {', '.join(others)} has another job than process 0",
            allowed="the same command, plan, data and version of meshwright on all hosts",
        )


class Watch:
    """A thread that ends this process when another has failed, or when it stands still itself. A context."""

    def __init__(
        self,
        launch: Launch,
        shared: SharedPositions,
        timeout_s: float,
        where: Callable[[], str],
    ) -> None:
        self._store, self._launch, self._where = (
            meet(launch, is_second=True),
            launch,
            where,
        )  # a connection of its own
        self._watchdog = Watchdog(shared, timeout_s)
        self._timeout_s = timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """The job is over here; what others do is theirs."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def fail(self, text: str) -> str:
        """Tell all that this process has failed. Returns what the first that failed said."""
        self._ended.set()
        try:
            first: bytes = self._store.compare_set(FAILURE, NONE.decode(), text)
        except RuntimeError as error:
            _log.debug("nobody can be told: %s", error)
            return text
        time.sleep(HEARD_S)
        return first.decode() or text

    def leave(self, text: str) -> None:
        """Tell all that this process has failed, and end it: its host thread cannot do it."""
        self._leave(self.fail(text))

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                if self._store.check([FAILURE]):
                    self._leave(self._store.get(FAILURE).decode())
            except RuntimeError:
                if not self._ended.wait(LOOK_S):
                    self._leave("process 0, where all meet, is gone; its own output says why")
            if self._watchdog.is_expired() and not self._ended.is_set():
                self.leave(f"no row was reached for {self._timeout_s:g} s: {self._where()}")

    def _leave(self, text: str) -> None:
        """The host thread may wait for a peer in the middle of an exchange: only the end of the process ends that."""
        if self._launch.process == 0:
            _log.error("%s", text)
            time.sleep(HEARD_S)
        logging.shutdown()
        os._exit(1)
