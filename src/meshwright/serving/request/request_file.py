"""Files of requests, whatever their form: a CSV table or JSON lines, packed or not."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from meshwright.serving.request.request import Request
from meshwright.serving.request.request_lines import Encode, requests_of_lines
from meshwright.serving.request.request_table import requests_of_table
from meshwright.specs.error import SpecError

PathLike = str | os.PathLike[str]
BLOCK_TOKENS = 16  # tokens of a block of keys and values, as vLLM's --block-size on GPUs
FORMS = ".csv, .jsonl or .ndjson, each also with .gz"


def read_requests(
    path: PathLike,
    *,
    first: int | None = None,
    block_tokens: int = BLOCK_TOKENS,
    encode: Encode | None = None,
) -> list[Request]:
    """The requests of a file by arrival; the first one comes at 0.

    Args:
        first: so many lines only; None: all.
        block_tokens: of the pool that will hold them, for keys of prefixes.
        encode: makes token ids of text, for files with prompts.

    Raises:
        SpecError: the file cannot be read, has no request, or a line of it is none (names file, line and column).
    """
    file = Path(path)
    suffixes = [suffix.lower() for suffix in file.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    form = "".join(suffixes[-2:-1] if is_packed else suffixes[-1:])
    if form not in (".csv", ".jsonl", ".ndjson"):
        raise SpecError(f"requests in {file.name}", allowed=FORMS)
    if first is not None and first < 1:
        raise SpecError(f"the first {first} requests of {file.name}", allowed="1 or more")
    try:
        with _opened(file, is_packed) as lines:
            found: Iterable[Request]
            if form == ".csv":
                found = requests_of_table(lines, file.name, first)
            else:
                found = requests_of_lines(
                    lines, file.name, block_tokens=block_tokens, encode=encode, first=first
                )
            requests = sorted(found, key=lambda request: request.arrival_s)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise SpecError(
            f"{file} cannot be read: {said[:1].lower()}{said[1:]}", allowed=f"a file {FORMS}",
            next="without one 'lengths(prompt=500,output=200)' draws requests",
        ) from None  # fmt: skip
    if not requests:
        raise SpecError(f"{file.name} has no request", allowed="at least one line")
    start_s = requests[0].arrival_s
    for request in requests:
        request.arrival_s -= start_s
    return requests


def _opened(file: Path, is_packed: bool) -> IO[str]:
    if is_packed:
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8-sig", newline="")
