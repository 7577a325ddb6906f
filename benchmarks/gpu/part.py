"""Part: one thing that is tried on the device, with what it found; each is reported whatever becomes of the others."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Part:
    """``ran``: how many things ran on the device. ``lines``: for the page, Markdown. ``figures``: the same as numbers."""

    name: str
    verdict: Verdict
    ran: int = 0
    lines: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def timed(name: str, run: Callable[[], Part]) -> Part:
    """A part with the seconds that it took; one that raises has failed, and says with what."""
    begin = time.perf_counter()
    try:
        found = run()
    except Exception as error:  # whatever breaks one part, the others are still wanted
        said = traceback.format_exc().splitlines()
        found = Part(name, "failed", lines=["```text", *said, "```"], figures={"error": repr(error)})
    return Part(name, found.verdict, found.ran, found.lines, found.figures, time.perf_counter() - begin)


def exit_code(parts: Sequence[Part]) -> int:
    """0: all passed or were skipped, and something ran on the device; else 1."""
    failed = any(part.verdict == "failed" for part in parts)
    return 1 if failed or not sum(part.ran for part in parts) else 0


def page(title: str, device: Mapping[str, Any], parts: Sequence[Part]) -> str:
    """All of it as one Markdown page."""
    head = [f"# {title}", "", *(f"- {key}: {value or 'unknown'}" for key, value in device.items()), ""]
    table = ["| part | verdict | ran on the device | seconds |", "|---|---|---|---|"]
    table += [f"| {part.name} | {part.verdict} | {part.ran} | {part.seconds:.0f} |" for part in parts]
    body = [line for part in parts for line in ("", f"## {part.name}", "", *part.lines)]
    return "\n".join([*head, *table, *body]) + "\n"
