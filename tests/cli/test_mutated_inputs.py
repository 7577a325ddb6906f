"""Every format that commands read, damaged three hundred times: each copy is read, or refused in words, within two seconds
of processor time and 500 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.mutation import FORMATS

ROOT = Path(__file__).parents[2]
MOST_WAITED_S = 900  # of a machine that others use, too
NAMES = [each.name for each in FORMATS]


def found_wrong(name: str, folder: Path, count: int) -> list[dict[str, object]]:
    """What went wrong with so many copies, tried in a process of their own."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cli.mutation", name, str(folder), str(count)],
        cwd=ROOT, capture_output=True, text=True, timeout=MOST_WAITED_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: list[dict[str, object]] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_damaged_file_is_more_than_refused(name: str, tmp_path: Path) -> None:
    assert found_wrong(name, tmp_path, 300) == []
