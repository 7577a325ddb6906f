"""What a command does when nobody reads its output any more, or it cannot be written: a quiet end, with the right code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


def started(arguments: str, stdout: int) -> subprocess.CompletedProcess[str]:
    """A command in an interpreter of its own, which writes to this file."""
    command = [sys.executable, "-m", "meshwright", *arguments.split()]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("list schedules", 0),
        ("list schedules --json", 0),
        ("systems no_such_system --json", 2),
        ("check --schedule 1f1b -p 2", 0),
    ],
)
def test_a_reader_that_has_left_changes_nothing(arguments: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = started(arguments, writer)
    os.close(writer)
    assert ran.returncode == code
    assert "Broken" not in ran.stderr and "Traceback" not in ran.stderr and "mistake" not in ran.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["list schedules", "list schedules --json"])
def test_a_result_that_cannot_be_written_is_a_failure_in_words(arguments: str) -> None:
    with FULL.open("w") as full:
        ran = started(arguments, full.fileno())
    assert (
        ran.returncode == 1 and ran.stderr.strip() == "the result cannot be written: No space left on device"
    )
