"""What a command gives back and how it reaches people and scripts: stdout, stderr, JSON, files, pages, exit codes."""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from meshwright import __version__
from meshwright.reports.chart.png import check_png, png_of
from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.whole_file import whole_file

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from meshwright.reports.page.report import Report

ALL = "For every command"
JSON_SCHEMA = (
    1  # of the object that --json prints; a field may be added, none is changed without a new number
)
PERCENT = 100.0
GAP = 3  # characters between two columns of a table
PAGE_SUFFIXES = (".html", ".htm")
EVERY_FORM = (".json", ".txt")  # of -o, of all commands: the data, and what a terminal shows
SVG, PNG = ".svg", ".png"  # a picture, and the same in pixels
DONE, FAILED, MISTAKE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True)
class Result:
    """What a command found.

    ``data``: what --json prints, SI units. ``view``: what a terminal shows. ``forms``: suffix of -o -> function that
    writes the file (.json and .txt always work). ``report``: makes the page of --report; without it a page of ``data``.
    ``explanation``: lines of --explain. ``exit_code``: 3 for the honest no. ``is_silent``: another process tells. ``took``:
    how long its parts took, told on stderr, being another text each time.
    """

    data: Mapping[str, Any]
    view: Sequence[RenderableType] = ()
    forms: Mapping[str, Callable[[Path], Any]] = field(default_factory=dict)
    report: Callable[[], Report] | None = None
    explanation: Sequence[str] = ()
    exit_code: int = DONE
    is_silent: bool = False
    took: str = ""


@dataclass(frozen=True)
class Output:
    """Where a command writes, and the options that mean the same for all commands."""

    is_json: bool = option(False, "Print one JSON object, in SI units.", "--json", panel=ALL)
    path: Path | None = option(
        None, "Also write the result to this file; its suffix says the form.", "--output -o", panel=ALL
    )
    report_path: Path | None = option(None, "Also write a self-contained HTML page.", "--report", panel=ALL)
    seed: int = option(0, "Keys every random choice (0).", panel=ALL)
    is_quiet: bool = option(False, "The result only: no progress, no notes.", "--quiet -q", panel=ALL)
    is_debug: bool = option(False, "Tracebacks and every log message.", "--debug", panel=ALL)
    trusts: bool = option(False, "Run code that a plan's file names (./mine.py:NAME).", "--trust", panel=ALL)
    explains: bool = option(False, "Say what was assumed and how it was made.", "--explain", panel=ALL)
    started_s: float = field(default_factory=time.perf_counter)

    @cached_property
    def stdout(self) -> Console:
        """The result goes here, and nothing else."""
        from meshwright.cli.frame.console import console_of

        return console_of(sys.stdout)

    @cached_property
    def stderr(self) -> Console:
        """Progress and notes go here."""
        from meshwright.cli.frame.console import console_of

        return console_of(sys.stderr)

    @property
    def wall_s(self) -> float:
        """Seconds since the command began."""
        return time.perf_counter() - self.started_s

    def note(self, text: str) -> None:
        """Say on stderr what is being done; --quiet says nothing."""
        if not self.is_quiet:
            self.stderr.print(text, highlight=False, markup=False)

    def configure_logging(self) -> None:
        """Warnings to stderr; everything with --debug, errors only with --quiet."""
        level = logging.DEBUG if self.is_debug else logging.ERROR if self.is_quiet else logging.WARNING
        logging.basicConfig(level=level, format=LOG_FORMAT, stream=sys.stderr, force=True)
        for name in ("numba", "matplotlib", "asyncio"):  # their debugging is not ours
            logging.getLogger(name).setLevel(logging.WARNING)

    def check_paths(self, forms: Sequence[str] = ()) -> None:
        """Before the work: that the files can be written where they are asked for, and -o in one of `forms` or in a form
        that every command writes. Raises SpecError.
        """
        for path in (self.path, self.report_path):
            if path is not None and not path.parent.is_dir():
                raise SpecError(
                    f"{path} cannot be written: there is no folder {path.parent}",
                    allowed="a path in a folder that is there",
                )
        if self.report_path is not None and self.report_path.suffix not in PAGE_SUFFIXES:
            raise SpecError(f"--report {self.report_path} is no page", allowed=" or ".join(PAGE_SUFFIXES))
        self.check_form(forms)

    def check_form(self, forms: Sequence[str]) -> None:
        """Before the work, where a command's options leave it only some of its forms: that -o has one of them, or one that
        every command writes. Raises SpecError.
        """
        if self.path is not None and _form_of(self.path, forms) == PNG:
            check_png()

    def deliver(self, result: Result) -> None:
        """Write files first, then the result, so that what reads stdout finds the files there."""
        if result.is_silent:
            return
        if self.path is not None:
            self._write(result, self.path)
        if self.report_path is not None:
            self._write_report(result, self.report_path)
        if self.is_json:
            sys.stdout.write(self.json_text(self._data(result)) + "\n")
            return
        for renderable in result.view:
            self.stdout.print(renderable)
        if self.explains:
            self.stdout.print(*_explained(result), sep="\n", highlight=False, markup=False)
        if result.took:
            self.note(result.took)

    def json_text(self, data: Mapping[str, Any]) -> str:
        """One object: schema and version first, then the data, then what it took."""
        whole = {"schema": JSON_SCHEMA, "meshwright": __version__, **data, "wall_s": round(self.wall_s, 6)}
        return json.dumps(plain(whole), indent=2, allow_nan=False)

    def _data(self, result: Result) -> Mapping[str, Any]:
        return {**result.data, "explanation": list(result.explanation)} if self.explains else result.data

    def _write(self, result: Result, path: Path) -> None:
        forms: dict[str, Callable[[Path], Any]] = {
            ".json": lambda target: target.write_text(
                self.json_text(self._data(result)) + "\n", encoding="utf-8"
            ),
            ".txt": lambda target: target.write_text(text_of(result.view), encoding="utf-8"),
            **result.forms,
        }
        if SVG in result.forms:
            forms[PNG] = partial(_write_png, result.forms[SVG])
        try:
            form = _form_of(path, tuple(result.forms))
        except SpecError:
            if result.exit_code != INTERRUPTED:
                raise
            self.note(f"{path} is not written: there was nothing of it yet")
            return
        _into(path, forms[form])
        self.note(f"wrote {path}")

    def _write_report(self, result: Result, path: Path) -> None:
        from meshwright.reports.page.html import write_report

        made = result.report() if result.report is not None else _data_page(result)
        _into(path, lambda target: write_report(made, target))
        self.note(f"wrote {path}")


def plain(value: Any) -> Any:
    """The value as JSON types; a number that is not finite becomes null, arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def text_of(view: Sequence[RenderableType]) -> str:
    """What a terminal would show, as plain text."""
    from meshwright.cli.frame.console import plain_console

    console = plain_console()
    with console.capture() as captured:
        for renderable in view:
            console.print(renderable)
    return captured.get()


def table_of(
    rows: Sequence[Mapping[str, Any]], title: str = "", without: Sequence[str] = ()
) -> RenderableType:
    """Rows of texts and numbers as a table; columns whose values are all numbers stand to the right. Those of `without` are
    left out."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in without]
    for name in names:
        values = [row.get(name) for row in rows]
        is_number = all(_looks_numeric(value) for value in values)
        longest = max(map(len, name.split()), default=0)  # a head is broken between words, not in one
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*("" if row.get(name) is None else str(row[name]) for name in names))
    return table


@dataclass(frozen=True)
class NarrowingTable:
    """Rows as a table that leaves columns out, one after the other, until `text`, its one column of words, has `least`
    characters or as many as it needs: words of a few characters a line are no table.

    ``optional``: those that may be left out, the first of them first; --json has them all. ``is_one_line``: a row is a line,
    and of longer words stand as many as fit.
    """

    rows: Sequence[Mapping[str, Any]]
    text: str
    optional: Sequence[str]
    least: int = 26
    is_one_line: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The widest that fits."""
        wanted = min(self.least, max(len(str(row.get(self.text, ""))) for row in self.rows))
        for count in range(len(self.optional) + 1):
            table = table_of(self.rows, without=(*self.optional[:count], self.text))
            taken = console.measure(table, options=options.update(width=10_000)).maximum + GAP
            if taken + wanted <= options.max_width:
                break
        room = max(wanted, options.max_width - taken)
        rows = [
            {**row, self.text: shorten(str(row.get(self.text, "")), room, placeholder=" ...")}
            if self.is_one_line
            else row
            for row in self.rows
        ]
        yield table_of(rows, without=self.optional[:count])


def percent(share: float | None) -> float | str:
    """A share in per cent with one digit, for a cell of a table; a dash where it is not known."""
    return "-" if share is None else round(PERCENT * share, 1)


def _looks_numeric(value: Any) -> bool:
    """A name such as "2 x tp4" is no number."""
    if value is None or value == "-" or isinstance(value, int | float):
        return True
    return str(value)[:1].isdigit() and " x " not in str(value)


def _write_png(write_svg: Callable[[Path], Any], path: Path) -> None:
    """The picture that a function writes as SVG, in pixels."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / f"picture{SVG}"
        write_svg(drawn)
        path.write_bytes(png_of(drawn.read_text(encoding="utf-8")))


def _form_of(path: Path, forms: Sequence[str]) -> str:
    """The longest suffix of a path that is a form, where each picture is one of pixels, too. Raises SpecError where it has
    none."""
    known = {*EVERY_FORM, *forms, *([PNG] if SVG in forms else [])}
    found = max((suffix for suffix in known if path.name.endswith(suffix)), key=len, default="")
    if not found:
        raise SpecError(f"-o {path} says no form that this result has", allowed=" ".join(sorted(known)))
    return found


def _into(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file, whole or not at all; what the system refuses is the user's to know."""
    try:
        with whole_file(path) as file:
            write(file)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}", allowed="a path in a folder that is there"
        ) from error


def _explained(result: Result) -> list[str]:
    lines = [f"- {line}" for line in result.explanation] or ["- nothing was assumed"]
    return ["", "How this was made:", *lines]


def _data_page(result: Result) -> Report:
    """A page of plain data, for results that have no picture."""
    from meshwright.reports.page.report import DataTable, Report

    tables, facts = [], {}
    for key, value in plain(result.data).items():
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            tables.append(DataTable(key, value))
        else:
            facts[key] = value if isinstance(value, str | int | float | bool | None) else json.dumps(value)
    return Report(
        "meshwright", plan=[facts] if facts else (), tables=tables, assumptions=list(result.explanation)
    )
