"""Chats as text, by a template in a process of its own: one that loops, grows or breaks harms nobody and is told by name."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.serving.text.template_source import TemplateSource
from meshwright.specs.error import SpecError

WORKER_MODULE = "meshwright.serving.text.template_worker"
START_S = 60.0  # in which a process starts on a machine that is busy
READ_BYTES = 1 << 16
MOST_ANSWER_BYTES_PER_CHARACTER = 12  # of JSON: two escapes of six bytes

# For a folder without a template: a model that was never taught one.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class TemplateBounds:
    """What one text may take.

    Args:
        seconds: of the wall clock.
        characters: of the text.
        memory_bytes: of the process's addresses.
    """

    seconds: float = 2.0
    characters: int = 4 << 20
    memory_bytes: int = 1 << 30


class ChatWriter:
    """Writes chats. Threads wait for each other."""

    def __init__(self, source: TemplateSource, bounds: TemplateBounds | None = None) -> None:
        """Starts the process. Raises SpecError where `source` is no template."""
        self.source, self.bounds = source, bounds or TemplateBounds()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self._start()

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        adds_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as text.

        Args:
            messages, tools: as the template reads them.
            adds_prompt: does it end with the words that ask for an answer?
            values: more for the template; what is said here and in the tokenizer's settings wins.

        Raises SpecError where the template refuses them, or is beyond a bound.
        """
        told = {
            **(values or {}), "documents": None, **self.source.words,
            "messages": messages, "tools": tools or None, "add_generation_prompt": adds_prompt,
        }  # fmt: skip
        with self._lock:
            if self._process is None:
                self._start()
            return self._asked(told, self.bounds.seconds, "the chat template cannot write these messages")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER_MODULE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=environment, start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
        )  # fmt: skip
        bounds = {"most_characters": self.bounds.characters, "most_bytes": self.bounds.memory_bytes}
        said = f"{self.source.place} is no chat template"
        self._answer(b"", START_S, "the process that writes chats does not start")
        self._asked({"text": self.source.text, **bounds}, self.bounds.seconds, said)

    def _asked(self, values: Mapping[str, Any], seconds: float, said: str) -> str:
        """The answer's text. Raises SpecError, which begins as `said`."""
        try:
            line = json.dumps(values).encode() + b"\n"
        except RecursionError:
            raise _wrong(f"{said}: they are nested too deep") from None
        return self._answer(line, seconds, said)

    def _answer(self, line: bytes, seconds: float, said: str) -> str:
        """The text of the answer to a line; where there is none, the process ends. Raises SpecError."""
        try:
            answer = json.loads(self._exchanged(line, time.monotonic() + seconds))
        except TimeoutError:
            self._end()
            raise _wrong(f"{said}: it takes longer than {seconds:g} s") from None
        except (OSError, ValueError):
            self._end()
            raise _wrong(f"{said}: its process ended, as one does that needs too much memory") from None
        if "error" in answer:
            raise _wrong(f"{said}: {answer['error']}")
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


def _wrong(why: str) -> SpecError:
    return SpecError(why, allowed="conversations of the kind that the template is for")
