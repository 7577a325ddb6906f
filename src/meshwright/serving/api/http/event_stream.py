"""Answers on their way: events as they come, or a whole body; in both a client that is gone ends the work at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshwright.serving.api.answer.response_event import ResponseEvent
from meshwright.serving.api.answer.run import AnswerRun
from meshwright.serving.api.error import ApiError, failed

LOG = logging.getLogger(__name__)
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass events on at once
Answer = TypeVar("Answer")


class ClientGone(Exception):
    """Nobody reads the answer."""


@dataclass(frozen=True)
class EventForm:
    """How events are written: have they names (their types), what an error is, and what stands at the end."""

    is_named: bool
    error: Callable[[ApiError], BaseModel]
    end: bytes = b""

    def event(self, chunk: Any) -> bytes:
        """One event."""
        name = b"event: %b\n" % chunk.type.encode() if self.is_named else b""
        return b"%bdata: %b\n\n" % (name, chunk.model_dump_json().encode())

    def broken(self, error: ApiError) -> bytes:
        """What a client is told whose answer cannot go on."""
        return self.event(self.error(error))


def _response_error(error: ApiError) -> ResponseEvent:
    told = {"code": error.code, "message": str(error), "param": error.param}
    return ResponseEvent(type="error", sequence_number=0, **told)


CHUNKS = EventForm(False, lambda error: error.answer, b"data: [DONE]\n\n")
RESPONSE_EVENTS = EventForm(True, _response_error)
MESSAGE_EVENTS = EventForm(True, lambda error: error.message_answer)
NAMED = {"/v1/responses": RESPONSE_EVENTS, "/v1/messages": MESSAGE_EVENTS}


def form_on(path: str) -> EventForm:
    """The form of the events that answer on a path."""
    return NAMED.get(path, CHUNKS)


class EventStream(Response):
    """Server-sent events of an answer.

    Args:
        run: the answer in the making; it is closed when the stream ends, however it ends.
        write_s: within which a client has to read a chunk.
        form: of its events.
    """

    media_type = "text/event-stream"

    def __init__(self, run: AnswerRun, write_s: float, form: EventForm = CHUNKS) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._run, self._write_s, self._form = run, write_s, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until it ends or nobody reads any more."""
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_leaving(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._run.close()
        if not tasks[0].cancelled():
            tasks[0].result()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._run.chunks():
                await self._send(send, self._form.event(chunk))
        except ApiError as error:
            await self._send(send, self._form.broken(error))
        except TimeoutError:
            LOG.info("a client reads too slowly, and is left")
            return
        except Exception:
            LOG.exception("a stream failed")
            await self._send(send, self._form.broken(failed()))
        await send({"type": "http.response.body", "body": self._form.end, "more_body": False})

    async def _send(self, send: Send, event: bytes) -> None:
        async with asyncio.timeout(self._write_s):
            await send({"type": "http.response.body", "body": event, "more_body": True})


async def answered(
    request: HttpRequest, run: AnswerRun, streams: bool, write_s: float, form: EventForm = CHUNKS
) -> Response:
    """An answer, as events or whole. Raises ApiError where it fails."""
    if streams:
        return EventStream(run, write_s, form)
    try:
        whole = await until_gone(request, run.whole())
    finally:
        run.close()
    return Response(whole.model_dump_json(by_alias=True), media_type="application/json")


async def until_gone(request: HttpRequest, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work gives. Raises ClientGone where the client leaves first; the work is then cancelled."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_leaving(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _leaving(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue
