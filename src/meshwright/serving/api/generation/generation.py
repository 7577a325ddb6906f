"""One request under way: its tokens become text as they come, stop texts end it, and leaving it frees its blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.api.error import ApiError, draining, failed, late
from meshwright.serving.api.generation.model_text import GrowingText, ModelText
from meshwright.serving.loop.output_stream import OutputDelta
from meshwright.serving.loop.service import Service
from meshwright.serving.request.request import Request
from meshwright.serving.sampling.logprobs import TopLogprobs

TokenLogprobs = tuple[float, TopLogprobs | None]  # of the drawn token; and of the most probable ones
STOPPED = "stop"
FAILURES = {"abort": draining, "error": failed, "deadline": late}


@dataclass(slots=True)
class TextDelta:
    """What is new of one output.

    Args:
        index: which output.
        text: behind what came before.
        token_ids: new tokens.
        logprobs: of these tokens, where they were asked for.
        finish_reason: "stop" or "length" where nothing follows; "": more follows.
        stop_reason: the stop text, or the token, that ended it; None: the model's own end.
        vector: ``[E]``, of the prompt's last token, where the request asks for it.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str = ""
    stop_reason: str | int | None = None
    vector: NDArray[np.float32] | None = None


class GenerationObserver(Protocol):
    """Is told how generations go."""

    def began(self, generation: Generation) -> None:
        """It was submitted."""
        ...

    def came(self, generation: Generation, num_tokens: int, seconds: float, is_first: bool) -> None:
        """Tokens came, so long after those before them, the first ones so long after it was submitted."""
        ...

    def ended(self, generation: Generation, reason: str) -> None:
        """Nothing follows: "stop", "length", "abort", "error", "deadline"."""
        ...


class Unobserved:
    """Nobody is told anything."""

    def began(self, generation: Generation) -> None:
        """Nobody wants to know."""

    def came(self, generation: Generation, num_tokens: int, seconds: float, is_first: bool) -> None:
        """Nobody wants to know."""

    def ended(self, generation: Generation, reason: str) -> None:
        """Nobody wants to know."""


class Generation:
    """One request under way. It is closed in every case; what still ran then is aborted.

    Args:
        service, text: of the model.
        request: what is asked for; it is submitted at once. Raises what the service raises.
        timeout_s: after which it is ended.
        observer: is told how it goes.
        at_end: is called once, when it is closed.
    """

    def __init__(
        self,
        service: Service,
        text: ModelText,
        request: Request,
        timeout_s: float,
        observer: GenerationObserver,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.request = request
        self.began_s = time.monotonic()
        self.first_s = self.last_s = 0.0
        self.num_output_tokens = 0
        self._service, self._observer, self._at_end = service, observer, at_end
        self._ends_s = self.began_s + timeout_s
        self._texts: dict[int, GrowingText] = {
            index: text.growing(request.sampling.stop) for index in range(request.num_outputs)
        }
        request.deadline_s = service.clock.now_s() + timeout_s
        self._stream = service.submit(request)
        self._reason = ""
        self._is_closed = False
        observer.began(self)

    async def deltas(self) -> AsyncIterator[TextDelta]:
        """What comes of it, until all its outputs have ended. Raises ApiError where it fails or is late."""
        stream = aiter(self._stream)
        while self._texts:
            try:
                async with asyncio.timeout(max(0.0, self._ends_s - time.monotonic())):
                    delta = await anext(stream)
            except TimeoutError:
                self._reason = "deadline"
                raise late() from None
            except StopAsyncIteration:
                self._reason = "error"
                raise failed() from None
            if delta.index in self._texts:
                yield self._text_of(delta)
            await asyncio.sleep(0)  # who has much to say lets others speak, and hears that nobody listens
        self._reason = self._reason or STOPPED

    def close(self) -> None:
        """Nothing more is wanted of it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._texts:
            self._reason = self._reason or "abort"
        self._service.abort(self.request.id)
        self._observer.ended(self, self._reason or "abort")
        self._at_end()

    def _text_of(self, delta: OutputDelta) -> TextDelta:
        """The delta's tokens as text, up to what ends the output."""
        if delta.finish_reason in FAILURES:
            self._reason = delta.finish_reason
            raise self._failure(delta)
        self._tick(len(delta.token_ids))
        growing = self._texts[delta.index]
        text, taken = "", 0
        for token in delta.token_ids:
            text += growing.add(token)
            taken += 1
            if growing.stopped is not None:
                break
        found = TextDelta(
            delta.index, text, delta.token_ids[:taken], list(zip(delta.logprobs, delta.top))[:taken]
        )
        found.vector = delta.vector
        self.num_output_tokens += taken
        if growing.stopped is not None:
            found.finish_reason, found.stop_reason = STOPPED, growing.stopped
        elif delta.finish_reason:
            found.text += growing.end()
            found.finish_reason = delta.finish_reason
            found.stop_reason = growing.stopped
        if found.finish_reason:
            self._reason = found.finish_reason
            del self._texts[delta.index]
            if not delta.finish_reason and self._texts:  # a stop text: nothing more is wanted of this one
                self._service.abort(self.request.id, delta.index)
        return found

    def _failure(self, delta: OutputDelta) -> ApiError:
        made: ApiError = FAILURES[str(delta.finish_reason)]()
        return made

    def _tick(self, num_tokens: int) -> None:
        """Tokens have come: when?"""
        if num_tokens:
            now_s, is_first = time.monotonic(), not self.first_s
            self.first_s = self.first_s or now_s
            self._observer.came(self, num_tokens, now_s - (self.last_s or self.began_s), is_first)
            self.last_s = now_s


async def merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, TextDelta]]:
    """What comes of several, as it comes, each with the number of its generation. Raises ApiError as the first that fails."""
    if len(generations) == 1:
        async for delta in generations[0].deltas():
            yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, TextDelta | None]] = asyncio.Queue()

    async def pump(number: int, generation: Generation) -> None:
        try:
            async for delta in generation.deltas():
                arrived.put_nowait((number, delta))
        finally:
            arrived.put_nowait((number, None))

    pumps = [asyncio.create_task(pump(*each)) for each in enumerate(generations)]
    try:
        num_open = len(pumps)
        while num_open:
            number, found = await arrived.get()
            if found is not None:
                yield number, found
                continue
            num_open -= 1
            await pumps[number]
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
