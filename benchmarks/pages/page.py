"""A page that runs what it shows: its blocks in order, in one folder and one namespace, and the text that comes of it.

A block's language says what it is:

- `console`: lines `$ meshwright ...` with what they print on stdout (and on stderr, where they do not end with 0);
- `sh`: commands alone, which end with 0; what they print is not shown;
- `python`: runs with the names of those before it; what it prints is the `text` block right behind it;
- any language with `title="NAME"`: the file NAME, which later blocks may use; where a command has written it, what it wrote;
- all others are only shown.

A line `...` in an output stands for lines that are left out. A figure of the page that a command wrote is that file. A remark
above a block says what else is to be known of it, and one of the page what its folder holds before the first block:

- `<!-- measured -->`: numbers are of the machine and the day, so that an output is written anew where its words differ only;
- `<!-- run with 3e4 for 3e5 -->`: with another number, of what takes long;
- `<!-- run by tests/... -->`: not here, but in that test; `<!-- not run: REASON -->`: nowhere;
- `<!-- set-up: NAME, NAME -->`: functions of `benchmarks.pages.set_up`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.pages import set_up
from benchmarks.pages.shell import Ended, Shell, commands

FENCE = re.compile(r"^( *)```(\S*)(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
FIGURE = re.compile(r"!\[[^\]]*\]\(([^)]+\.svg)\)")
REMARK = re.compile(r"<!-- ([^>]+) -->\s*\Z")
SET_UP = re.compile(r"^<!-- set-up: ([\w, ]+) -->$", re.MULTILINE)
RUN_WITH = re.compile(r"(\S+) for (\S+?)(?:,|$)")
LEFT_OUT = "..."
MEASURED, SHORTER, RUN_BY, NOT_RUN = "measured", "run with ", "run by ", "not run: "
NUMBER = re.compile(
    r"[<~]?\d[\d.,:]*+(?:e[+-]?\d+)?(?: ?(?:[num]?s|min|h|d|[kMGT]?B(?:/s)?|[GTP]?FLOP/s|%|x))?(?!\w)"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its content is in the page, its language, the file it is, how far it is indented, and the remark
    above it."""

    start: int
    end: int
    language: str
    title: str | None
    indent: str
    content: str
    remark: str

    @property
    def is_run(self) -> bool:
        """Does it run with its page?"""
        return not self.remark.startswith((RUN_BY, NOT_RUN))


@dataclass
class Written:
    """A page as its blocks make it: its text, and the figures that its commands wrote."""

    text: str
    figures: dict[str, bytes] = field(default_factory=dict)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(text))


def _blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', found[3])
        remark = REMARK.search(text[: found.start()])
        content = textwrap.dedent(found[4])
        yield Block(
            found.start(4), found.end(4), found[2], title and title[1], found[1], content, remark[1] if remark else ""
        )  # fmt: skip


def run(page: Path, folder: Path) -> Written:
    """The page as it should be, its blocks run in `folder`. Raises what a snippet raises."""
    text = page.read_text(encoding="utf-8")
    parts, at = [], 0
    beside = {
        name: value for name, value in os.environ.items() if name != "COLUMNS"
    }  # as wide as where nobody says
    beside["XDG_CACHE_HOME"] = str(folder / ".cache")  # no profile of this machine, no shards of others
    with contextlib.chdir(folder), patch.dict(os.environ, beside, clear=True), Shell(folder) as shell:
        for name in re.findall(r"\w+", "".join(SET_UP.findall(text))):
            getattr(set_up, name)(folder)
        running = _Running(shell)
        for block in blocks(text):
            content = running.content_of(block) if block.is_run else block.content
            if block.remark == MEASURED and _words(content) == _words(block.content):
                content = block.content
            parts += [text[at : block.start], textwrap.indent(content, block.indent)]
            at = block.end
    return Written("".join(parts) + text[at:], _figures(page, text, folder))


class _Running:
    """What blocks leave to those behind them: names, and what the last snippet has printed."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._names: dict[str, Any] = {"__name__": "page"}
        self._printed: str | None = None

    def content_of(self, block: Block) -> str:
        """What a block should have, once it has run."""
        printed, self._printed = self._printed, None
        if block.language == "text" and printed is not None:
            return shown(printed, block.content)
        if block.title is not None:
            return _filed(Path(block.title), block.content)
        if block.language == "console":
            return "".join(self._command(said) for said in _commands(block.content))
        if block.language == "sh":
            for line in commands(_shorter(block)):
                _check_done(line, self._shell.run(line))
        if block.language == "python":
            self._printed = _python(self._shell.here(block.content), self._names)
        return block.content

    def _command(self, said: str) -> str:
        line, output = re.fullmatch(r"(\$ (?:.*\\\n)*.*\n)((?:.*\n)*)", said).groups()  # type: ignore[union-attr]
        ended = self._shell.run(line.removeprefix("$ "))
        return line + shown(ended.stdout + (ended.stderr if ended.code else ""), output)


def _shorter(block: Block) -> str:
    """The commands of a block with the numbers that its remark has for them."""
    content = block.content
    if block.remark.startswith(SHORTER):
        for number, instead_of in RUN_WITH.findall(block.remark.removeprefix(SHORTER)):
            assert instead_of in content, f"{block.remark}: there is no {instead_of} in it"
            content = content.replace(instead_of, number)
    return content


def _check_done(line: str, ended: Ended) -> None:
    if ended.code:
        raise AssertionError(f"{line.strip()} ended with {ended.code}:\n{ended.stdout}{ended.stderr}")


def _words(content: str) -> list[str]:
    """The lines of an output without numbers, widths and rules."""
    return [" ".join(re.sub("─+", "", NUMBER.sub("#", line)).split()) for line in content.splitlines()]


def _filed(file: Path, content: str) -> str:
    """What the file has: what a command has written, or else this."""
    if file.exists():
        return shown(file.read_text(encoding="utf-8"), content)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    return content


def _python(source: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(source, "<page>", "exec"), names)
    return out.getvalue()


def _commands(content: str) -> list[str]:
    """Each command of a console block with the output that stands behind it."""
    return re.split(r"^(?=\$ )", content, flags=re.MULTILINE)[1:]


def shown(printed: str, before: str) -> str:
    """What was printed, without the lines that the page leaves out: as many stay on either side of each `...`."""
    lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()).rstrip("\n").splitlines()
    kept = before.rstrip("\n").splitlines()
    if LEFT_OUT in kept:
        first = kept.index(LEFT_OUT)
        last = len(kept) - first - 1
        lines = [*lines[:first], LEFT_OUT, *(lines[-last:] if last else [])]
    return "".join(f"{line}\n" for line in lines)


def _figures(page: Path, text: str, folder: Path) -> dict[str, bytes]:
    """Figures of the page that a command wrote, by the path from the page."""
    named = {name: folder / Path(name).name for name in FIGURE.findall(text)}
    return {name: file.read_bytes() for name, file in named.items() if file.exists()}
