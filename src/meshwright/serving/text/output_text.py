"""The text of one output while its tokens come: whole characters only, and nothing of a text that ends it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from meshwright.serving.text.stop_texts import StopTexts


class OutputText:
    """Pieces that together are the text of all tokens. Bytes that are no UTF-8 become U+FFFD, as in the text at once."""

    def __init__(self, bytes_of: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        """`bytes_of`: what a token adds. Raises SpecError as `StopTexts`."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopTexts(stop)

    @property
    def stopped(self) -> str | None:
        """The stop text that ended it; None: none yet."""
        return self._stops.stopped

    def add(self, token_id: int) -> str:
        """Text that is certain by now."""
        return self._stops.add(self._decoder.decode(self._bytes_of(token_id)))

    def end(self) -> str:
        """What was held back, where no more tokens come."""
        text = self._stops.add(self._decoder.decode(b"", final=True))
        return text + self._stops.end()
