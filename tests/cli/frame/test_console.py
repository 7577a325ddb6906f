"""A terminal is told nothing by texts that strangers chose, and everything by our own styles."""

from __future__ import annotations

import io

import pytest

from meshwright.cli.frame.console import SafeConsole, console_of


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_texts_do_not_reach_the_terminal_as_commands() -> None:
    stream = Terminal()
    SafeConsole(file=stream, force_terminal=True, color_system="standard", width=80).print(
        "a\x1b[2Jb\x07\x9b31m\u202ec\nd\te", style="red", markup=False
    )
    shown = stream.getvalue()
    assert shown.startswith("\x1b[31m") and "\x1b[2J" not in shown  # our own colour, not theirs
    assert "\x07" not in shown and "\x9b" not in shown and "\u202e" not in shown
    assert shown.count("\n") == 2


def test_columns_are_honoured_where_the_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_of(io.StringIO()).width == 100
    monkeypatch.setenv("COLUMNS", "60")
    assert console_of(io.StringIO()).width == 60
