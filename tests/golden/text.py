"""Compares a text with its golden file; with UPDATE_GOLDEN=1 in the environment it writes the file (then read the diff)."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def check_golden(name: str, text: str) -> None:
    """The text equals tests/golden/NAME.txt."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.is_file(), f"{path} is not there; UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(), (
        f"{path.name} differs; where that is intended, UPDATE_GOLDEN=1 writes it anew"
    )
