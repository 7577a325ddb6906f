"""JobReport: what a job of a system's own has found, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Said = Callable[[str], None]  # is told what is being done


class JobReport(NamedTuple):
    """``lines``: what a terminal shows. ``data``: the same as plain values, SI units."""

    lines: Sequence[str]
    data: Mapping[str, Any]


class JobRunner(Protocol):
    """What runs a job: its options, the seed of every random choice, and whom to tell."""

    def __call__(self, job: Any, seed: int, said: Said) -> JobReport:
        """Run it. Raises MeshwrightError."""
        ...
