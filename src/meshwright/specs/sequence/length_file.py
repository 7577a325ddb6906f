"""Files of lengths: one whole number a line, or a JSON list of them; compressed with gzip where the name ends so."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from pathlib import Path

import numpy as np

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.sequence.length_distribution import Integers, LengthDistribution

COMPRESSED = ".gz"
MOST_BYTES = 1 << 30  # of a text, unpacked: a hundred million lengths
LOOKED_AT = 64  # characters by which such a file is known
SUFFIXES = (".txt", ".json", COMPRESSED)
_BEGINNING = re.compile(r"\s*\[?\s*[0-9]+\s*[,\]\s]")
ALLOWED = "one whole number from 1 a line, or a JSON list of them; .gz where it is compressed"


def is_length_file(path: str | os.PathLike[str]) -> bool:
    """Is it a file of numbers, by its name and how it begins?"""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        return False
    try:
        with gzip.open(file, "rb") if file.suffix == COMPRESSED else file.open("rb") as opened:
            begin = opened.read(LOOKED_AT).decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return False
    return _BEGINNING.match(f"{begin} ") is not None


def read_lengths(path: str | os.PathLike[str]) -> LengthDistribution:
    """The lengths of a file. Raises SpecError that names it and what it has instead."""
    file = Path(path).expanduser()
    found = _whole_numbers(_text(file))
    if found is None:
        raise SpecError(f"{file} is no file of lengths", allowed=ALLOWED)
    return LengthDistribution.of(found, file.name)


def _whole_numbers(text: str) -> Integers | None:
    """The whole numbers of a text that has nothing else; None of any other text."""
    try:
        if text.lstrip().startswith("["):
            values = json_of(text)
            is_whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
            return np.array(values, np.int64) if values and is_whole else None
        words = text.split()
        return np.array(words, np.int64) if words else None
    except (ValueError, OverflowError):
        return None


def _text(file: Path) -> str:
    try:
        if file.suffix != COMPRESSED:
            return file.read_text(encoding="utf-8")
        with gzip.open(file, "rb") as packed:
            data = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SpecError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", allowed=ALLOWED
        ) from error
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not text", allowed=ALLOWED) from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{file} unpacks to more than {MOST_BYTES} bytes", allowed=ALLOWED)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not text", allowed=ALLOWED) from None
