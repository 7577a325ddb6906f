"""Runs a page's commands in one folder: meshwright in this process, servers and curl in processes of their own."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from meshwright.cli import main

OURS, SERVES, FETCHES = "meshwright", "serve", "curl"
PAGES_PORT = (
    8000  # where servers of pages listen; here it is a free one, so that pages may run beside each other
)
READY = "serving on"
START_S, END_S = 240, 60
COMMAND = re.compile(r"^\S(?:.*\\\n)*.*\n?", re.MULTILINE)


class Ended(NamedTuple):
    """A command that has ended: its exit code and what it said."""

    code: int
    stdout: str
    stderr: str


def commands(content: str) -> list[str]:
    """The commands of a block `sh`, without lines of remarks; a line that ends with a backslash goes on."""
    return [line for line in COMMAND.findall(content) if not line.startswith("#")]


class Shell:
    """What runs in a folder until it is left; of servers one at a time, as a reader ends one before the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_server()

    def run(self, line: str) -> Ended:
        """A command to its end; `meshwright serve` until it answers. Raises ValueError for what pages do not run."""
        program, *arguments = shlex.split(self.here(line.replace("\\\n", " ")), comments=True)
        if program == OURS and arguments[:1] == [SERVES]:
            return self._serve(arguments)
        if program == OURS:
            return _ours(arguments)
        if program == FETCHES:
            return self._fetched([program, "--fail-with-body", "--silent", "--show-error", *arguments])
        raise ValueError(
            f"a page runs {OURS} and {FETCHES}, not {program}; say above the block why it is not run"
        )

    def here(self, text: str) -> str:
        """With the port where servers listen here."""
        return text.replace(f":{PAGES_PORT}", f":{self._port}")

    def _there(self, text: str) -> str:
        return text.replace(f":{self._port}", f":{PAGES_PORT}")

    def _serve(self, arguments: list[str]) -> Ended:
        self._end_server()
        said = self._folder / "server.log"
        with said.open("wb") as stderr:
            command = [sys.executable, "-m", OURS, *arguments, "--port", str(self._port)]
            self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        until_s = time.monotonic() + START_S
        while READY not in said.read_text(encoding="utf-8"):
            if self._server.poll() is not None or time.monotonic() > until_s:
                return Ended(self._server.returncode or 1, "", said.read_text(encoding="utf-8"))
            time.sleep(0.05)
        return Ended(0, "", "")

    def _end_server(self) -> None:
        if self._server is None:
            return
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(END_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _fetched(self, command: list[str]) -> Ended:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        return Ended(done.returncode, self._there(done.stdout), done.stderr)


def _ours(arguments: list[str]) -> Ended:
    out, beside = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(beside):
        try:
            main(arguments)
            code: object = 0
        except SystemExit as left:
            code = left.code
    return Ended(code if isinstance(code, int) else int(code is not None), out.getvalue(), beside.getvalue())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
