"""What a caller gets of a request while it is served: pieces of its outputs, in any thread or event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.sampling.logprobs import TopLogprobs

ENDS = ("stop", "length", "abort", "error", "deadline")


@dataclass(slots=True)
class OutputDelta:
    """Tokens of an output, or its end, or both.

    Args:
        index: which output of the request.
        token_ids: those of one step: one, or what was accepted of proposals and one more.
        logprobs: of each, where asked for.
        top: the best tokens at each place, where asked for.
        finish_reason: one of `ENDS` with the last piece of an output; "": it goes on.
        error: why, where it is an error.
        vector: ``[E]``, where it was asked for.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    top: list[TopLogprobs | None]
    finish_reason: str = ""
    error: str = ""
    vector: NDArray[np.float32] | None = None


class OutputStream:
    """Pieces of all outputs of one request, as they come; ends when all outputs have ended. One reader."""

    def __init__(self, request_id: str, num_outputs: int) -> None:
        self.request_id = request_id
        self._num_open = num_outputs
        self._pieces: deque[OutputDelta] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None

    def put(self, delta: OutputDelta) -> None:
        """The next piece, from the thread of the loop."""
        with self._changed:
            self._pieces.append(delta)
            self._num_open -= bool(delta.finish_reason)
            wake = self._wake
            self._changed.notify()
        if wake is not None:
            wake()

    @property
    def has_all(self) -> bool:
        """Has every output ended?"""
        return self._num_open <= 0

    @property
    def is_over(self) -> bool:
        """Has every output ended, and been read?"""
        return self._num_open <= 0 and not self._pieces

    def __iter__(self) -> Iterator[OutputDelta]:
        while True:
            with self._changed:
                while not self._pieces and self._num_open > 0:
                    self._changed.wait()
                if not self._pieces:
                    return
                delta = self._pieces.popleft()
            yield delta

    async def __aiter__(self) -> AsyncIterator[OutputDelta]:
        loop, there = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(there.set)

        self._wake = wake
        try:
            while not self.is_over:
                there.clear()
                while self._pieces:
                    yield self._pieces.popleft()
                if not self.is_over:
                    await there.wait()
        finally:
            self._wake = None
