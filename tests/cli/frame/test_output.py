"""Tables for people: what stands in a head stays whole where there are few columns."""

from __future__ import annotations

import io

from meshwright.cli.frame.console import SafeConsole
from meshwright.cli.frame.output import table_of


def test_a_head_is_not_broken_inside_a_word() -> None:
    """The cells give way, which are longer."""
    rows = [
        {
            "plan": "tp8 pp2 dp4, micro 1, recompute 2 of 32 blocks, zero2",
            "tokens/s/GPU": "10,122",
            "fits at all": 1,
        }
    ]
    stream = io.StringIO()
    SafeConsole(file=stream, width=40).print(table_of(rows))
    shown = stream.getvalue()
    assert "tokens/s/GPU" in shown and all(len(line) <= 40 for line in shown.splitlines())


def test_so_many_of_something_is_a_name_and_no_number() -> None:
    """Its column stands to the left, as names do."""
    stream = io.StringIO()
    SafeConsole(file=stream, width=40).print(table_of([{"plan": "2 x tp4"}, {"plan": "16 x tp1"}]))
    assert [line.rstrip() for line in stream.getvalue().splitlines()][-3:-1] == [" 2 x tp4", " 16 x tp1"]
