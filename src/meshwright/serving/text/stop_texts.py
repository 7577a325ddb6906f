"""Texts that end an output: found across the borders of tokens, and never shown, not even their beginning."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.specs.error import SpecError

MOST_STOPS = 16
MOST_CHARACTERS = 1024  # of one


class StopTexts:
    """Watches one output's text. The stop text that is complete first ends it, of several that end together the longest.

    So the output does not depend on how the text comes in pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises SpecError for an empty one, and for too many or too long ones."""
        if len(stops) > MOST_STOPS or any(not 0 < len(stop) <= MOST_CHARACTERS for stop in stops):
            raise SpecError(
                f"{len(stops)} stop texts of {', '.join(str(len(stop)) for stop in stops[:MOST_STOPS])} characters",
                allowed=f"at most {MOST_STOPS}, of 1 to {MOST_CHARACTERS} characters each",
            )
        self._stops = tuple(stops)
        self._held = ""
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        """What is certain to be output, of what was held and this. Nothing, once it has stopped."""
        if self.stopped is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := held.find(stop)) >= 0]
        if found:
            _, begin, self.stopped = min(found)
            self._held = ""
            return held[:begin]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """What was held, where nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop text, but not all of it."""
    most = min(len(stop) - 1, len(text))
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
