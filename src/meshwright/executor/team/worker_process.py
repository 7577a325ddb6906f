"""One worker process as the parent sees it, and the thread that reads what it reports."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

WORKER_MODULE = "meshwright.worker"  # the top floor, where names become code
STOP_S = 5.0  # a process that does not end on request within this is killed
LAST_WORDS = 4000  # characters of a dead worker's log that are shown
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}

Report = tuple[int, dict[str, Any]]  # worker, what it said; {"closed": True} when its pipe ended
_log = logging.getLogger(__name__)


class WorkerProcess:
    """One process that runs a module, and the thread that reads the lines of JSON which it says."""

    def __init__(
        self,
        number: int,
        folder: Path,
        reports: SimpleQueue[Report],
        module: str = WORKER_MODULE,
        arguments: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.log = folder / f"worker-{number}.log"
        with self.log.open("a") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env=worker_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
            )
        self._reports = reports
        self._reader = threading.Thread(target=self._read, name=f"worker {number}", daemon=True)
        self._reader.start()

    def send(self, **command: Any) -> None:
        """One command; a worker that is gone is noticed by its closed pipe."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            _log.debug("worker %d is gone", self.number)

    def close(self, at_once: bool) -> None:
        """End the process and its thread; kill it where it does not end on request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if at_once:
            self.process.kill()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            _log.debug("worker %d was gone", self.number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reports.put((self.number, json.loads(line)))
        self._reports.put((self.number, {"closed": True}))


def worker_environment() -> dict[str, str]:
    """The caller's environment, one thread a process, gloo on the loopback."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if interface := LOOPBACK.get(platform.system()):
        environment["GLOO_SOCKET_IFNAME"] = interface
    paths = [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def close_all(workers: Sequence[WorkerProcess], at_once: bool) -> None:
    """Close workers that may wait for each other; `at_once`: all are killed before the first is waited for."""
    if at_once:
        for worker in workers:
            worker.process.kill()
    for worker in workers:
        worker.close(at_once)
