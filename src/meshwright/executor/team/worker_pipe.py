"""WorkerPipe: a worker's end of the pipes to its parent, whose other end is `WorkerProcess`.

Commands come as JSON lines on stdin, reports leave as JSON lines on what was stdout when the process began.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any

from meshwright.specs.error import MeshwrightError


class WorkerPipe:
    """``commands``: those that came. The process ends by itself when stdin is closed, so that no worker outlives its parent.

    Ctrl-C is left to the parent, and what anybody prints goes to the log.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.commands: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._file = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, **fields: Any) -> None:
        """One report."""
        with self._lock:
            self._file.write(json.dumps(fields) + "\n")
            self._file.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.commands.put(json.loads(line))
        os._exit(0)  # the parent has closed the pipe, or is gone


def error_text(error: BaseException) -> str:
    """What the user is told: the error, and the traceback of one that is not ours."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, MeshwrightError):
        text += "\n" + "".join(traceback.format_exception(error)).strip()
    return text
