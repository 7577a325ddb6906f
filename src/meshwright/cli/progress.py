"""Progress on stderr: one live line on a terminal, a line now and then in a log, nothing with --quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from meshwright.cli.output import Output

if TYPE_CHECKING:
    from meshwright.executor.gather import Iteration

LOG_EVERY_S = 10.0  # between lines where stderr is no terminal
SMOOTHING_STEPS = 20  # tokens/s is a mean over so many iterations


class LiveLine:
    """A line of text that is overwritten on a terminal, and repeated every ten seconds elsewhere."""

    def __init__(self, out: Output, live: Any) -> None:
        self._out, self._live = out, live
        self._last_s = -LOG_EVERY_S

    def say(self, text: str) -> None:
        """Show this from now on."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._last_s >= LOG_EVERY_S:
            self._last_s = time.monotonic()
            self._out.note(text)


@contextmanager
def live_line(out: Output) -> Iterator[LiveLine]:
    """The line, gone when the block is left."""
    if out.is_quiet or not out.stderr.is_terminal:
        yield LiveLine(out, None)
        return
    from rich.live import Live

    with Live(console=out.stderr, transient=True, auto_refresh=False) as live:
        yield LiveLine(out, live)


class TrainingLine:
    """Step, loss, tokens/s and seconds left, from the iterations as they finish."""

    def __init__(self, line: LiveLine, num_iterations: int | None, seconds: float | None) -> None:
        self._line, self._num_iterations, self._seconds = line, num_iterations, seconds
        self._recent: list[Iteration] = []
        self._begin_s = time.monotonic()

    def __call__(self, iteration: Iteration) -> None:
        """One more has finished."""
        self._recent = [*self._recent, iteration][-SMOOTHING_STEPS:]
        took = sum(one.seconds for one in self._recent)
        rate = sum(one.tokens for one in self._recent) / took if took > 0 else 0.0
        self._line.say(
            f"step {iteration.number + 1:>4}   loss {iteration.loss:.3f} nats   {rate:,.0f} tokens/s   "
            f"{max(0.0, self._left_s(iteration, took)):.0f} s left"
        )

    def _left_s(self, iteration: Iteration, took_s: float) -> float:
        if self._seconds is not None:
            return self._seconds - (time.monotonic() - self._begin_s)
        steps = (self._num_iterations or 0) - iteration.number - 1
        return steps * took_s / max(1, len(self._recent))
