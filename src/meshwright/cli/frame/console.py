"""Where a command writes for people: no text that a stranger chose moves the cursor, colours or turns a line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment

from meshwright.specs.printable import BREAKS, printable

PLAIN_WIDTH = 100  # columns where the output is no terminal


class SafeConsole(Console):
    """A console whose texts have a mark where they had a control character; its own styles are as ever."""

    def render(self, renderable: RenderableType, options: Any = None) -> Iterator[Segment]:
        """As always, without what the texts would have done to the terminal."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(printable(text, BREAKS), style)

    def on_broken_pipe(self) -> None:
        """Whoever read has left: the command says with which code it ends, not rich. Raises BrokenPipeError."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console_of(stream: Any) -> Console:
    """What writes to a stream, as wide as the terminal behind it or as COLUMNS says."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PLAIN_WIDTH
    return SafeConsole(file=stream, width=width, highlight=False, soft_wrap=False)


def plain_console() -> Console:
    """What is captured as plain text."""
    return SafeConsole(width=PLAIN_WIDTH, color_system=None, force_terminal=False)
