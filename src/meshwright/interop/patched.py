"""Writes changed options into the file that a user has: every other byte of it stays.

An option that stands in several places, or that a file reaches by a name of its own, is not guessed at: PatchError says
which. Whoever patches reads the result again, and compares what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.interop.plan_difference import QUEUES, OptionChange
from meshwright.interop.script_text import shell_word, toml_value
from meshwright.interop.torchtitan.option import RENAMED
from meshwright.specs.data_text import json_of, toml_of
from meshwright.specs.error import PlanError

# A value as it is written: in quotes, or without (options may themselves stand inside the quotes of a variable).
WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|(?:\$\{[^}]*\}|\$\(\([^)]*\)\)|[^\s"'\\()&;|<>])+)"""
GAP = r"(?:[ \t]|\\\n)+"  # between words of one command
ANCHORS = ("--micro-batch-size", "--global-batch-size", "--tensor-model-parallel-size", "--num-layers")
TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
KEY = re.compile(r"(\s*)([\w.\"'-]+)(\s*=\s*)(.*)")


class PatchError(PlanError):
    """A file in which an option cannot be changed where it stands."""


class WrittenOption(NamedTuple):
    """Where an option and its value stand in a script: the option's first character, its last, and the value's two."""

    start: int
    end: int
    value_start: int
    value_end: int


def patched(text: str, changes: Sequence[OptionChange], format: str, after: str) -> str:
    """A user's file with options changed.

    Args:
        text: the file.
        changes: in its own words.
        format: "megatron", "torchtitan" or "deepspeed".
        after: the whole file that an export writes, for the kinds of values.

    Raises PatchError.
    """
    return _PATCHES[format](text, changes, after)


def _script(text: str, changes: Sequence[OptionChange], after: str) -> str:
    """A shell script. What goes and changes comes first, so that what comes stands behind an option that stays."""
    added = [change for change in changes if change.kind == "added"]
    for change in changes:
        if change.name == QUEUES:
            text = _with_queues(text, change)
        elif change.kind != "added":
            text = _with_option(text, change)
    for change in reversed(added):
        if change.name != QUEUES:
            text = _with_new(text, f"{change.name} {_words(change.after)}".rstrip())
    return text


def _words(value: str | None) -> str:
    return " ".join(map(shell_word, (value or "").split(" "))) if value else ""


def _with_option(text: str, change: OptionChange) -> str:
    num_words = len((change.before or "").split())
    place = _place(text, change.name, min(num_words, 1))
    if change.after is None:
        return _without(text, place)
    if place.value_start == place.value_end:
        raise PatchError(f"{change.name} has no value to change", next=f"write {change} by hand")
    return text[: place.value_start] + _words(change.after) + text[place.value_end :]


def _place(text: str, name: str, num_words: int) -> WrittenOption:
    """Where an option stands, in either spelling. Raises PatchError unless it is one place."""
    spelling = "--" + re.sub(r"[-_]", "[-_]", re.escape(name[2:]).replace(r"\-", "-"))
    value = rf"(?:=|{GAP})({WORD})" if num_words else "()"
    places = [
        WrittenOption(found.start(), found.end(), *found.span(1))
        for found in re.finditer(rf"(?<![\w-]){spelling}(?![\w-]){value}", text)
        if not _is_comment(text, found.start())
    ]
    if len(places) != 1:
        raise PatchError(
            f"{name} stands in {len(places)} places of the file",
            allowed="one, which is changed",
            next="write the change by hand",
        )
    return places[0]


def _is_comment(text: str, position: int) -> bool:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return re.match(r"(?:[^\"'#]|\"[^\"]*\"|'[^']*')*?(?:^|\s)#", line) is not None


def _without(text: str, place: WrittenOption) -> str:
    """The option goes; where nothing else stood on its line, the line does."""
    begin = text.rfind("\n", 0, place.start) + 1
    end = text.find("\n", place.end)
    end = len(text) if end < 0 else end
    before, behind = text[begin : place.start], text[place.end : end]
    if before.strip():
        return text[:begin] + before.rstrip(" \t") + text[place.end :]
    if behind.strip() in ("", "\\"):
        return text[:begin] + text[end + 1 :]
    return text[: place.start] + text[place.end :].lstrip(" \t")


def _with_new(text: str, words: str) -> str:
    """Behind an option that is always there: on a line of its own where that one has its own line, else beside it."""
    place = next(_found(text), None)
    if place is None:
        raise PatchError(f"there is no place for {words}", next="write it by hand")
    begin = text.rfind("\n", 0, place.start) + 1
    end = text.find("\n", place.end)
    indent, behind = text[begin : place.start], text[place.end : len(text) if end < 0 else end].strip()
    if indent.strip() or behind not in ("", "\\"):
        return f"{text[: place.end]} {words}{text[place.end :]}"
    return text[: place.end] + (" \\\n" if behind else "\n") + indent + words + text[place.end :]


def _found(text: str) -> Iterator[WrittenOption]:
    for name in ANCHORS:
        try:
            yield _place(text, name, 1)
        except PatchError:
            continue


def _with_queues(text: str, change: OptionChange) -> str:
    """The one variable of the environment that an export sets."""
    lines = text.splitlines(keepends=True)
    own = [line for line in lines if re.match(rf"\s*(export\s+)?{QUEUES}=", line)]
    if change.after is None:
        return "".join(line for line in lines if line not in own)
    first = 1 if lines and lines[0].startswith("#!") else 0
    return "".join([*lines[:first], f"export {QUEUES}={shell_word(change.after)}\n", *lines[first:]])


def _toml(text: str, changes: Sequence[OptionChange], after: str) -> str:
    """A file of tables, line by line."""
    tables = toml_of(after)
    lines = text.splitlines(keepends=True)
    for change in changes:
        at, ends = _keys(lines)
        table, _, key = change.name.rpartition(".")
        if change.kind == "added":
            line = f"{key} = {toml_value(_value(tables, change.name))}\n"
            lines[ends.get(table, len(lines)) : ends.get(table, len(lines))] = (
                [line] if table in ends else ["\n", f"[{table}]\n", line]
            )
        elif change.name not in at:
            raise PatchError(f"{change.name} is not a line of the file", next="write the change by hand")
        elif change.after is None:
            del lines[at[change.name]]
        else:
            own = KEY.match(lines[at[change.name]])
            assert own is not None
            written = toml_value(_value(tables, RENAMED.get(change.name, change.name)))
            remark = re.search(r"\s+#.*$", own[4]) if '"' not in own[4] else None
            lines[at[change.name]] = f"{own[1]}{own[2]}{own[3]}{written}{remark[0] if remark else ''}\n"
    return "".join(lines)


def _keys(lines: Sequence[str]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The line of every key, and for every table the line behind its last key."""
    at: dict[str, int] = {}
    ends: dict[str, int] = {}
    table = ""
    for number, line in enumerate(lines):
        if found := TABLE.fullmatch(line.rstrip("\n")):
            table = found[1].strip()
            ends[table] = number + 1
        elif (found := KEY.match(line)) and not line.lstrip().startswith("#"):
            at[f"{table}.{found[2]}" if table else found[2]] = number
            ends[table] = number + 1
    return at, ends


def _value(tables: Mapping[str, Any], name: str) -> Any:
    """What an export writes for a key."""
    found: Any = tables
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise PatchError(f"an export has no value for {name}", next="write the change by hand")
        found = found[part]
    return found


def _json(text: str, changes: Sequence[OptionChange], after: str) -> str:
    """One object; it has no comments, and keeps its order and its indent."""
    tables, whole = json_of(after), json_of(text)
    for change in changes:
        *outer, key = change.name.split(".")
        table = whole
        for part in outer:
            table = table.setdefault(part, {})
        if change.after is None:
            table.pop(key, None)
        else:
            table[key] = _value(tables, change.name)
    indent = re.search(r"^( +|\t)\S", text, re.MULTILINE)
    ending = "\n" if text.endswith("\n") else ""
    return json.dumps(whole, indent=indent[1] if indent else None, ensure_ascii=False) + ending


_PATCHES: Mapping[str, Callable[[str, Sequence[OptionChange], str], str]] = {
    "megatron": _script,
    "torchtitan": _toml,
    "deepspeed": _json,
}
