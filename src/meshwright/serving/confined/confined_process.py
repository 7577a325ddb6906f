"""A process that answers lines of JSON within bounds. One that takes too long is killed, and another starts in its place."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.specs.error import SpecError

START_S = 60.0  # in which a process starts on a machine that is busy
READ_BYTES = 1 << 16
MOST_ANSWER_BYTES_PER_CHARACTER = 12  # of JSON: two escapes of six bytes


@dataclass(frozen=True)
class AnswerBounds:
    """What one answer may take.

    Args:
        seconds: of the wall clock.
        characters: of the answer.
        memory_bytes: of the process's addresses.
        wait_s: how long callers wait for each other.
    """

    seconds: float = 2.0
    characters: int = 4 << 20
    memory_bytes: int = 1 << 30
    wait_s: float = 30.0


class ConfinedProcess:
    """Runs a module whose `main` is `answering.answer_lines`. Threads wait for each other."""

    def __init__(self, module: str, first: Mapping[str, Any], bounds: AnswerBounds, said: str) -> None:
        """Starts it.

        Args:
            module: by name.
            first: what it is told when it starts.
            said: how errors about that begin.

        Raises SpecError where it does not answer, or answers that something is wrong with `first`.
        """
        self.bounds = bounds
        self._module, self._first, self._said = module, first, said
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self._start()

    def ask(self, values: Mapping[str, Any], said: str) -> str:
        """The answer's text. Raises SpecError, which begins as `said`: it says why not, or a bound was broken."""
        try:
            line = json.dumps(values).encode() + b"\n"
        except RecursionError:
            raise SpecError(f"{said}: it is nested too deep") from None
        if not self._lock.acquire(timeout=self.bounds.wait_s):
            raise SpecError(
                f"{said}: others have been at it for {self.bounds.wait_s:g} s", next="try it again later"
            )
        try:
            if self._process is None:
                self._start()
            return self._answer(line, self.bounds.seconds, said)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=environment, start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
        )  # fmt: skip
        bounds = {"most_characters": self.bounds.characters, "most_bytes": self.bounds.memory_bytes}
        first = json.dumps({**self._first, **bounds}).encode() + b"\n"
        try:
            self._answer(b"", START_S, f"the process of {self._module} does not start")
            self._answer(first, self.bounds.seconds, self._said)
        except SpecError:
            self._end()
            raise

    def _answer(self, line: bytes, seconds: float, said: str) -> str:
        """The text of the answer to a line; where there is none, the process ends. Raises SpecError."""
        try:
            answer = json.loads(self._exchanged(line, time.monotonic() + seconds))
        except TimeoutError:
            self._end()
            raise SpecError(f"{said}: it takes longer than {seconds:g} s") from None
        except (OSError, ValueError):
            self._end()
            raise SpecError(f"{said}: its process ended, as one does that needs too much memory") from None
        if "error" in answer:
            raise SpecError(f"{said}: {answer['error']}")
        return str(answer["text"])

    def _exchanged(self, line: bytes, until_s: float) -> bytes:
        """Write a line and read one. Raises TimeoutError, and OSError where the process is gone."""
        assert (
            self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        )
        into, outof = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(into, False)
        ready = select.poll()  # a server has more open files than select takes
        ready.register(outof, select.POLLIN)
        if line:
            ready.register(into, select.POLLOUT)
        unsent = memoryview(line)
        answer, most = bytearray(), READ_BYTES + self.bounds.characters * MOST_ANSWER_BYTES_PER_CHARACTER
        while not answer.endswith(b"\n"):
            events = dict(ready.poll(max(0.0, until_s - time.monotonic()) * 1e3))
            if not events:
                raise TimeoutError
            if into in events:
                unsent = unsent[os.write(into, unsent[:READ_BYTES]) :]
                if not unsent:
                    ready.unregister(into)
            if outof in events:
                piece = os.read(outof, READ_BYTES)
                answer += piece
                if not piece or len(answer) > most:
                    raise OSError("no whole answer")
        return bytes(answer)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()
