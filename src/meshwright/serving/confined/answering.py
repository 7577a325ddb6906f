"""The other side of a confined process: lines of JSON come in and go out, in bounded memory.

The first line has the bounds and what its module wants to know, every other one a question.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

Answerer = Callable[[Mapping[str, Any]], str]


class Refused(Exception):
    """A question that has no answer; the message says why."""


def answer_lines(began: Callable[[Mapping[str, Any]], Answerer]) -> None:
    """Say that we are there, then answer lines until there are no more.

    `began`: given the first line, gives what answers the others. Both raise `Refused`.
    """
    _write({"text": ""})
    first = json.loads(sys.stdin.readline())
    # Before anything of it is looked at: a template's constants are worked out when it is read.
    resource.setrlimit(resource.RLIMIT_AS, (first["most_bytes"], first["most_bytes"]))
    try:
        answerer = began(first)
    except Refused as why:
        _write({"error": str(why)})
        return
    _write({"text": ""})
    for line in sys.stdin:
        _write(_answered(answerer, line))


def _answered(answerer: Answerer, line: str) -> dict[str, str]:
    try:
        return {"text": answerer(json.loads(line))}
    except Refused as why:
        return {"error": str(why)}
    except RecursionError:
        return {"error": "maximum recursion depth exceeded"}
    except MemoryError:
        return {"error": "it needs too much memory"}


def _write(answer: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
