"""Progress on stderr: one live line on a terminal, a line now and then in a log, nothing with --quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.text import Text

from meshwright.api.trainings.metrics import StepMetrics
from meshwright.cli.frame.output import Output
from meshwright.specs.units import format_flops_per_s, format_seconds

LOG_EVERY_S = 10.0  # between lines where stderr is no terminal
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
SMOOTHING_STEPS = 20  # tokens/s is a mean over so many iterations
GAP = "  "


class LiveLine:
    """A line of text that is overwritten on a terminal, and repeated every ten seconds elsewhere."""

    def __init__(self, out: Output, live: Any) -> None:
        self._out, self._live = out, live
        self._last_s = self._stage_s = -LOG_EVERY_S
        self._stage = ""

    def say(self, text: str) -> None:
        """Show this from now on."""
        if self._live is not None:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._last_s >= LOG_EVERY_S:
            self._last_s = time.monotonic()
            self._out.note(text)

    def share(self, what: str, done: float) -> None:
        """What is being done, and which part of all is done."""
        self.say(f"{100 * done:3.0f} %  {what}")

    @property
    def width(self) -> int | None:
        """Characters that are seen; None where lines may be as long as they like."""
        return None if self._live is None else int(self._live.console.width)

    def stage(self, text: str) -> None:
        """What is being done before the first step. In a log once, and every ten seconds what stands behind a comma."""
        if self._live is not None:
            self.say(text)
            return
        name, now_s = text.split(",", 1)[0], time.monotonic()
        if name != self._stage or now_s - self._stage_s >= LOG_EVERY_S:
            self._stage, self._stage_s = name, now_s
            self._out.note(text)

    def warn(self, text: str) -> None:
        """Say something that stays."""
        self._out.note(f"WARNING {text}")


@contextmanager
def live_line(out: Output) -> Iterator[LiveLine]:
    """The line, gone when the block is left."""
    if out.is_quiet or not out.stderr.is_terminal:
        yield LiveLine(out, None)
        return

    with Live(console=out.stderr, transient=True, auto_refresh=False) as live:
        yield LiveLine(out, live)


class TrainingLine:
    """Step, loss, tokens/s, time left, MFU where a peak is known, and a device's FLOP/s, from the steps as they finish."""

    def __init__(self, line: LiveLine) -> None:
        self._line = line
        self._recent: list[StepMetrics] = []
        self._held_out: float | None = None
        self._num_seen = 0

    def __call__(self, step: StepMetrics) -> None:
        """One more has finished. The first one holds the start of the job, and counts as long as it is alone."""
        before = self._recent if self._num_seen != 1 else []
        self._recent = [*before, step][-SMOOTHING_STEPS:]
        self._num_seen += 1
        self._held_out = step.held_out_loss if step.held_out_loss is not None else self._held_out
        took = sum(one.seconds for one in self._recent)
        rate = sum(one.tokens for one in self._recent) / took if took > 0 else 0.0
        parts = [f"step {step.number + 1:>4}", f"loss {step.loss:.3f}"]
        if self._held_out is not None:
            parts.append(f"held out {self._held_out:.3f}")
        parts.append(f"{rate:,.0f} tokens/s")
        if step.groups:
            took_s, predicted_s = map(format_seconds, (step.seconds, step.predicted_s))
            parts.append(f"groups {step.groups}: {took_s}, predicted {predicted_s}")
        if step.left_s is not None:
            parts.append(f"{duration_text(step.left_s)} left")
        if step.mfu is not None and step.tokens_per_s > 0:
            parts.append(f"MFU {100 * step.mfu * rate / step.tokens_per_s:.0f} %")
        if step.tokens_per_s > 0:
            parts.append(format_flops_per_s(step.flops_per_s_per_device * rate / step.tokens_per_s))
        self._line.say(_fitting(parts, self._line.width))
        if step.drift is not None:
            self._line.warn(f"step {step.number + 1}: {step.drift}")


def _fitting(parts: Sequence[str], width: int | None) -> str:
    """The parts with spaces between them; the last ones are left out where the terminal is too narrow."""
    text = GAP.join(parts)
    if width is None or len(text) <= width or len(parts) == 1:
        return text
    return _fitting(parts[:-1], width)


def duration_text(seconds: float) -> str:
    """Seconds as people say them: 12 s, 3:05 min, 2:07 h, 3 d 4 h."""
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}:{whole % MINUTE_S:02} min"
    if whole < DAY_S:
        return f"{whole // HOUR_S}:{whole % HOUR_S // MINUTE_S:02} h"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"
