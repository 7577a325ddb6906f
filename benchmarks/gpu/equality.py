"""The executor's tests that are marked `cuda`, in a process of their own: their counts, and what failed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .part import Part

CHECKOUT = Path(__file__).resolve().parent.parent.parent
TESTS = "tests/executor/test_cuda.py"
TIMEOUT_S = 300


def equality() -> Part:
    """Plans on the device give what one process of plain torch gives on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            TESTS,
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if not report.is_file():
            return Part("equality", "failed", lines=["```text", *done.stdout.splitlines()[-30:], "```"])
        return read_report(report.read_text(encoding="utf-8"))


def read_report(text: str) -> Part:
    """What pytest wrote of its tests, as JUnit's XML."""
    cases = list(ElementTree.fromstring(text).iter("testcase"))  # of our own process, not of a stranger
    failed = {case.get("name", ""): _words(case, "failure") or _words(case, "error") for case in cases}
    failed = {name: words for name, words in failed.items() if words}
    skipped = [_words(case, "skipped") for case in cases]
    ran = sum(not words for words in skipped)
    lines = [f"{ran - len(failed)} of {len(cases)} passed, {len(failed)} failed, {len(cases) - ran} skipped."]
    lines += [f"- **{name}**: {words}" for name, words in failed.items()]
    lines += [f"- skipped: {words}" for words in sorted({words for words in skipped if words})]
    figures = {"passed": ran - len(failed), "failed": failed, "skipped": len(cases) - ran}
    verdict = "failed" if failed or not cases else "passed" if ran else "skipped"
    return Part("equality", verdict, ran, lines, figures)


def _words(case: ElementTree.Element, kind: str) -> str:
    """The first line of what a test says, empty where it says nothing of this kind."""
    found = case.find(kind)
    return "" if found is None else (found.get("message") or kind).splitlines()[0]
