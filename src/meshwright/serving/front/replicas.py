"""Replicas: so many processes that serve the same model. Who dies is started again; meanwhile nobody is sent there."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import httpx2 as httpx

from meshwright.serving.front.replica_process import ReplicaProcess, ReplicaStart
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import BLOCK_TOKENS
from meshwright.serving.routing.router import Router
from meshwright.specs.error import MeshwrightError

POLL_S = 1.0  # between looks whether a replica takes requests
POLL_TIMEOUT_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = (
    0.2,
    30.0,
)  # before a replica is started again; each time it fails to start the double
CONNECT_S = 5.0
URL = "http://replica"  # behind its socket nobody asks for a name
LOG = logging.getLogger(__name__)
State = Literal["starting", "ready", "failed", "draining"]


class Change(NamedTuple):
    """A request that gave every replica an adapter, or took it away; who is started later is asked it, too."""

    adapter: str
    drops: bool
    path: str
    content: bytes
    headers: list[tuple[bytes, bytes]]


class ReplicaState(NamedTuple):
    """A replica as the front sees it: `load` is what it said last of itself."""

    status: State
    num_open: int
    num_starts: int
    load: dict[str, Any]


class _Replica:
    """One place, and the process that fills it."""

    def __init__(self, number: int, path: Path, read_s: float) -> None:
        self.number, self.path = number, path
        self.status: State = "starting"
        self.num_starts = 0
        self.load: dict[str, Any] = {}
        self.process: ReplicaProcess | None = None
        timeout = httpx.Timeout(read_s, connect=CONNECT_S, pool=None)
        # A connection for each request: closing it is what ends the request.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(uds=str(path), limits=limits)
        self.client = httpx.AsyncClient(transport=transport, base_url=URL, timeout=timeout, trust_env=False)


class Replicas:
    """An asynchronous context: all are ready inside of it, and have ended behind it.

    Args:
        how: they are started.
        router: its name.
        read_s: the longest that one may say nothing while it serves a request.
        end_s: in which they may end when they are told; then they are killed.
    """

    def __init__(self, how: ReplicaStart, router: str, read_s: float, end_s: float) -> None:
        self._how, self._router_name, self._read_s, self._end_s = how, router, read_s, end_s
        self.router = Router(router, len(how.places), 1)  # its name is checked before anything starts
        self._changes: dict[str, list[Change]] = {}  # by adapter, in order
        self.figures: Counter[str] = Counter()  # what they said when they ended, summed
        self.num_tokens = 0  # that one has room for; known when all are ready
        self._replicas: list[_Replica] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def __aenter__(self) -> Replicas:
        """Start all. Raises what the first one says that cannot serve."""
        self._folder = tempfile.TemporaryDirectory(prefix="meshwright-")  # nobody else may look into it
        self._replicas = [
            _Replica(number, Path(self._folder.name) / f"{number}.sock", self._read_s)
            for number in range(len(self._how.places))
        ]
        try:
            await self._start_all()
        except BaseException:
            await self._end()
            raise
        self.num_tokens = min(each.process.num_tokens for each in self._replicas if each.process)
        num_blocks = max(1, self.num_tokens // BLOCK_TOKENS)
        self.router = Router(self._router_name, len(self._replicas), num_blocks)
        self._keepers = [asyncio.create_task(self._keep(each)) for each in self._replicas]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def give(self, request: Request, without: Collection[int] = ()) -> int | None:
        """The replica for a request, among those that are ready; None: there is none. `router.ended` follows."""
        ready = self.ready(without)
        return self.router.give(request, ready) if ready else None

    def ready(self, without: Collection[int] = ()) -> list[int]:
        """Those that take requests."""
        return [
            each.number for each in self._replicas if each.status == "ready" and each.number not in without
        ]

    def any_ready(self) -> int | None:
        """The ready replica with the least to do."""
        return min(self.ready(), key=lambda number: self.router.replicas[number].num_open, default=None)

    def changed(self, change: Change) -> None:
        """All that are ready have made a change: what it takes back is forgotten, but for what they begin with."""
        before = self._changes.pop(change.adapter, [])
        if not change.drops or not before:
            self._changes[change.adapter] = [*before, change]
        elif before[0].drops:
            self._changes[change.adapter] = before[:1]

    def client(self, number: int) -> httpx.AsyncClient:
        """Speaks with one."""
        return self._replicas[number].client

    def states(self) -> list[ReplicaState]:
        """Of all."""
        return [
            ReplicaState(each.status, self.router.replicas[each.number].num_open, each.num_starts, each.load)
            for each in self._replicas
        ]

    async def drain(self, seconds: float) -> None:
        """They take nothing more, finish what runs, and end."""
        self._is_ending = True
        for each in self._replicas:
            each.status = "draining"
            if each.process is not None:
                each.process.tell(signal.SIGTERM)
        await asyncio.wait(self._keepers, timeout=seconds)

    # -- each for itself

    async def _start_all(self) -> None:
        """At once; the first that fails ends it."""
        starting = [asyncio.create_task(self._start(each)) for each in self._replicas]
        try:
            done, _ = await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def _start(self, replica: _Replica) -> None:
        replica.status, replica.num_starts = "starting", replica.num_starts + 1
        replica.process = await ReplicaProcess.start(self._how, replica.number, replica.path)
        await replica.process.ready()
        await self._change(replica)
        replica.status = "draining" if self._is_ending else "ready"

    async def _change(self, replica: _Replica) -> None:
        """As the others were changed; what comes meanwhile, too. Raises OSError."""
        made: dict[int, Change] = {}
        while left := [each for of in self._changes.values() for each in of if id(each) not in made]:
            change = made[id(left[0])] = left[0]
            try:
                answer = await replica.client.post(
                    change.path, content=change.content, headers=change.headers
                )
            except httpx.HTTPError as error:
                raise OSError(f"it was lost while it was changed: {error}") from error
            if not answer.is_success:
                LOG.warning("replica %d refuses a change that others made: %s", replica.number, answer.text)

    async def _keep(self, replica: _Replica) -> None:
        """See that there is one in this place."""
        pause_s = FIRST_PAUSE_S
        while replica.process is not None:
            looking = asyncio.create_task(self._look(replica, replica.process))
            code = await replica.process.ended()
            looking.cancel()
            self.figures.update(replica.process.figures)
            if self._is_ending:
                return
            replica.status, replica.load = "starting", {}
            self.router.forget(replica.number)
            LOG.error("replica %d ended with code %d, and is started again", replica.number, code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            try:
                await self._start(replica)
            except (MeshwrightError, OSError) as error:
                replica.status = "failed"
                LOG.error("replica %d does not start: %s", replica.number, error)
            else:
                pause_s = FIRST_PAUSE_S

    async def _look(self, replica: _Replica, process: ReplicaProcess) -> None:
        """Does it take requests? One whose engine has failed for good is ended, so that another takes its place."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                answer = await replica.client.get("/ready", timeout=POLL_TIMEOUT_S)
                replica.load = dict(json.loads(answer.content))
            except (httpx.HTTPError, ValueError, TypeError):
                replica.status = "failed"
                continue
            if self._is_ending:
                return
            replica.status = "ready" if answer.is_success else "failed"
            if replica.load.get("status") == "failed":
                LOG.error("the engine of replica %d has failed for good", replica.number)
                process.tell(signal.SIGTERM)

    async def _end(self) -> None:
        """Tell all, wait, and kill who does not listen."""
        self._is_ending = True
        processes = [each.process for each in self._replicas if each.process is not None]
        for process in processes:
            process.tell(signal.SIGTERM)
        waiting = [asyncio.create_task(each.process.wait()) for each in processes]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._end_s)
            for process in processes if late else ():
                process.tell(signal.SIGKILL)
            await asyncio.wait([*waiting, *self._keepers], timeout=self._end_s)
        for each in self._keepers:
            each.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for replica in self._replicas:
            if replica.process is not None:
                replica.process.tell(signal.SIGKILL)  # one that was just being started
            await replica.client.aclose()
        self._folder.cleanup()
