"""`meshwright doctor`: explains an environment, line by line, with what to do where something is missing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from meshwright.api.subjects.diagnosing import doctor as look
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(out: Output) -> Result:
    """Explain this environment: Python, libraries, torch, devices, memory, network, profile. Exit 3 where it cannot work."""
    findings = look()
    width = max(len(one.name) for one in findings)
    view: list[Any] = []
    for one in findings:
        line = Text.assemble((f"{one.status:<5}", STYLES[one.status]), f"{one.name:<{width}}  {one.found}")
        view.append(line)
        if one.next:
            view.append(Text(f"{'':<{5 + width}}  -> {one.next}"))
    counts = {status: sum(one.status == status for one in findings) for status in STYLES}
    view.append(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} that must be mended")
    data = {"findings": [asdict(one) for one in findings], "counts": counts}
    return Result(
        data, view, explanation=["nothing leaves this machine, and no process is started"],
        exit_code=REFUSED if counts["fail"] else DONE,
    )  # fmt: skip
