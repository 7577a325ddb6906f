"""A page that runs what it shows: its blocks in order, in one folder and one namespace, and the text that comes of it.

A block's language says what it is:

- `console`: lines `$ meshwright ...` with what they print on stdout (and on stderr, where they do not end with 0);
- `python`: runs with the names of those before it; what it prints is the `text` block right behind it;
- any language with `title="NAME"`: the file NAME, which later blocks may use; where a command has written it, what it wrote;
- `sh`: runs elsewhere (the test says where); all others are only shown.

A line `...` in an output stands for lines that are left out. A figure of the page that a command wrote is that file.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from meshwright.cli import main

FENCE = re.compile(r"^( *)```(\S*)(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
FIGURE = re.compile(r"!\[[^\]]*\]\(([^)]+\.svg)\)")
LEFT_OUT = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block: where its content is in the page, its language, the file it is, and how far it is indented."""

    start: int
    end: int
    language: str
    title: str | None
    indent: str
    content: str


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
        content = textwrap.dedent(found[4])
        yield Block(found.start(4), found.end(4), found[2], title and title[1], found[1], content)


def run(page: Path, folder: Path) -> Written:
    """The page as it should be, its blocks run in `folder`. Raises what a snippet raises."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    printed: str | None = None
    parts, at = [], 0
    beside = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with contextlib.chdir(folder), patch.dict(os.environ, beside, clear=True):  # as wide as where nobody says
        for block in blocks(text):
            content = block.content
            if block.language == "text" and printed is not None:
                content = shown(printed, block.content)
            elif block.title is not None:
                content = _filed(Path(block.title), block.content)
            elif block.language == "console":
                content = "".join(_command(said) for said in _commands(block.content))
            printed = _python(block.content, names) if _is_snippet(block) else None
            parts += [text[at : block.start], textwrap.indent(content, block.indent)]
            at = block.end
    return Written("".join(parts) + text[at:], _figures(page, text, folder))


def _filed(file: Path, content: str) -> str:
    """What the file has: what a command has written, or else this."""
    if file.exists():
        return shown(file.read_text(encoding="utf-8"), content)
    file.write_text(content, encoding="utf-8")
    return content


def _is_snippet(block: Block) -> bool:
    return block.language == "python" and block.title is None


def _python(source: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(source, "<page>", "exec"), names)
    return out.getvalue()


def _commands(content: str) -> list[str]:
    """Each command of a console block with the output that stands behind it."""
    return re.split(r"^(?=\$ )", content, flags=re.MULTILINE)[1:]


def _command(said: str) -> str:
    line, output = re.fullmatch(r"(\$ (?:.*\\\n)*.*\n)((?:.*\n)*)", said).groups()  # type: ignore[union-attr]
    program, *arguments = shlex.split(line.removeprefix("$ ").replace("\\\n", " "))
    if program != "meshwright":
        raise ValueError(
            f"a console block runs meshwright, not {program}; what runs elsewhere is a block `sh`"
        )
    out, beside = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(beside):
        try:
            main(arguments)
            code: object = 0
        except SystemExit as left:
            code = left.code
    return line + shown(out.getvalue() + (beside.getvalue() if code else ""), output)


def shown(printed: str, before: str) -> str:
    """What was printed, without the lines that the page leaves out: as many stay on either side of each `...`."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
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
