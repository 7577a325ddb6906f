"""OpenVINO's core: one for the process, never let go of."""

from __future__ import annotations

from functools import cache

import openvino


@cache
def core() -> openvino.Core:
    """The one core.

    A core that compiles for the CPU gives its thread a stack for signal handlers and frees that again with itself. Where a
    second one came meanwhile, the thread keeps an address that is no longer mapped, and the next Ctrl-C ends the process.
    """
    return openvino.Core()
