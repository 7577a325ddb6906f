"""Requests of a CSV table: when each came, how many tokens it had and how many it got."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import NamedTuple, NoReturn

from meshwright.serving.request.request import Request
from meshwright.specs.error import SpecError

# What tables call them: the public traces of Azure (also in their own spelling), of BurstGPT, APEX, Vidur and LLMServingSim,
# and logs of vLLM.
ARRIVALS = ("arrived_at_s", "arrival_s", "arrived_at", "TIMESTAMP", "Timestamp", "Time")
PROMPTS = (
    "prompt_tokens",
    "num_prefill_tokens",
    "input_toks",
    "input_tokens",
    "ContextTokens",
    "Request tokens",
)
OUTPUTS = ("output_tokens", "num_decode_tokens", "output_toks", "GeneratedTokens", "Response tokens")
IDS = ("request_id", "id")


class RequestColumns(NamedTuple):
    """Which column of a table says what; "": none does."""

    arrival: str
    prompt: str
    output: str
    id: str


def requests_of_table(lines: Iterable[str], name: str, first: int | None = None) -> Iterator[Request]:
    """The first requests of a CSV text with a head, as they stand. Without a column of arrivals all come at once.

    Raises SpecError: a column is missing, or a cell is no number that can be; names file, line and column.
    """
    rows = csv.DictReader(lines)
    columns = _columns(rows.fieldnames or (), name)
    start: datetime | None = None
    for row in islice(rows, first):
        place = f"{name}, line {rows.line_num}"
        prompt = whole_number(row, columns.prompt, place)
        output = whole_number(row, columns.output, place)
        arrival_s: float = 0.0
        if columns.arrival:
            at = _arrival(row, columns.arrival, place)
            if isinstance(at, datetime):
                start = start or at
                at = (at - start).total_seconds()
            arrival_s = at
        number = row[columns.id] if columns.id else str(rows.line_num - 1)
        yield Request(number, prompt, output, arrival_s, num_output_tokens=output)


def whole_number(row: Mapping[str, object], column: str, place: str) -> int:
    """A count from 1 of a row. Raises SpecError."""
    value = row.get(column)
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        refuse_cell(place, column, value, "a whole number from 1")
    if isinstance(value, bool | float) or number < 1:
        refuse_cell(place, column, value, "a whole number from 1")
    return int(number)


def refuse_cell(place: str, column: str, value: object, allowed: str) -> NoReturn:
    """Raise SpecError for one cell: file, line, column, what stands there."""
    stands = "nothing" if value is None else repr(value)
    raise SpecError(
        f"{place}, column {column!r}: {stands}", allowed=allowed, next="mend or leave out the line"
    )


def _columns(names: Iterable[str], file: str) -> RequestColumns:
    known = list(names)
    prompt, output = _among(known, PROMPTS), _among(known, OUTPUTS)
    for found, what, allowed in (
        (prompt, "the prompt's tokens", PROMPTS),
        (output, "the output's tokens", OUTPUTS),
    ):
        if not found:
            raise SpecError(
                f"{file}, line 1: no column says {what}; it has {', '.join(known) or 'none'}",
                allowed=f"a column {' or '.join(allowed)}",
                next="name the column so",
            )
    return RequestColumns(_among(known, ARRIVALS), prompt, output, _among(known, IDS))


def _among(names: list[str], wanted: tuple[str, ...]) -> str:
    return next((name for name in wanted if name in names), "")


def _arrival(row: Mapping[str, str], column: str, place: str) -> float | datetime:
    text = row.get(column) or ""
    try:
        seconds = float(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            refuse_cell(place, column, text, "seconds, or a date and time")
    if not 0.0 <= seconds < float("inf"):
        refuse_cell(place, column, text, "seconds from 0")
    return seconds
