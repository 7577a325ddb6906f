"""ReplicaProcess: a server in a process of its own, on a Unix socket, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.specs.error import ExecutionError, MeshwrightError, SpecError

MOST_LINE_BYTES = 1 << 20
USERS_MISTAKE = 2  # the exit code of an error that another input mends


@dataclass(frozen=True)
class ReplicaPlace:
    """Where a replica runs.

    Args:
        environment: variables beside those of this process.
        cores: that it may run on; (): all.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplicaStart:
    """How replicas are started.

    Args:
        module: run with -m; its main is `replica_entry.answer_front`.
        told: to each, in JSON, beside its `path` (of its socket) and its `number`.
        places: of each replica.
    """

    module: str
    told: Mapping[str, Any]
    places: tuple[ReplicaPlace, ...]


@dataclass
class ReplicaProcess:
    """One process. Attributes: for how many tokens it has room, known when it is ready; and what it said at its end."""

    process: asyncio.subprocess.Process
    num_tokens: int = 0
    figures: dict[str, int] = field(default_factory=dict)

    @classmethod
    async def start(cls, how: ReplicaStart, number: int, path: Path) -> ReplicaProcess:
        """It is not ready yet."""
        place = how.places[number]
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of the one before
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, **place.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", how.module, env=environment, limit=MOST_LINE_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is for the front alone
        )  # fmt: skip
        assert process.stdin is not None
        if place.cores and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, place.cores)
        told = {**how.told, "path": str(path), "number": number}
        process.stdin.write(
            json.dumps(told).encode() + b"\n"
        )  # and stdin stays open: it ends with this process
        return cls(process)

    async def ready(self) -> None:
        """Until it serves. Raises what it says that is wrong, and ExecutionError where it ends without a word."""
        said = await self._line()
        if "num_tokens" not in said:
            raise _error(said, await self.process.wait())
        self.num_tokens = int(said["num_tokens"])

    async def ended(self) -> int:
        """Until it has ended, however; its exit code, below 0 a signal's."""
        while said := await self._line():
            self.figures = dict(said.get("ended", {}))
        return await self.process.wait()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def _line(self) -> dict[str, Any]:
        """The next thing that it says; nothing: it has ended."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        return dict(json.loads(line)) if line else {}


def _error(said: Mapping[str, Any], code: int) -> MeshwrightError:
    if "error" not in said:
        return ExecutionError(f"a replica ended with code {code} before it served", next="its log says why")
    kind = SpecError if said.get("exit_code") == USERS_MISTAKE else ExecutionError
    return kind(str(said["error"]))
