"""What runs in a replica's process: it is told on stdin what to serve, and tells on stdout that it serves, and how it ended.

It ends by itself when stdin is closed, so that no replica outlives its front.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.specs.error import MeshwrightError

Told = Mapping[str, Any]
Serve = Callable[[Told, Callable[[int], None]], Told]


def answer_front(serve: Serve) -> int:
    """Run `serve(what was told, announce) -> figures`, which announces for how many tokens it has room. The exit code."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print is not part of the talk

    def say(**words: Any) -> None:
        lines.write(json.dumps(words) + "\n")
        lines.flush()

    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_front, daemon=True).start()
    try:
        say(ended=serve(told, lambda num_tokens: say(num_tokens=num_tokens)))
    except MeshwrightError as error:
        say(error=str(error), exit_code=error.exit_code)
        return error.exit_code
    return 0


def _end_with_front() -> None:
    while sys.stdin.readline():
        continue
    os._exit(1)
