"""Forwarding: a request goes to a replica and its answer to the client, as it comes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2 as httpx
from starlette.requests import Request as HttpRequest
from starlette.types import Message, Receive, Scope, Send

from meshwright.serving.api.error import BAD_REQUEST, NOT_FOUND, TOO_MANY, UNAVAILABLE, ApiError
from meshwright.serving.api.http.event_stream import ClientGone, form_on, until_gone
from meshwright.serving.api.http.route.adapter_route import UNLOAD
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.prompt_keys import routed_request
from meshwright.serving.front.replicas import Change, Replicas

Headers = list[tuple[bytes, bytes]]
Work = Callable[[Scope, bytes, Send], Coroutine[None, None, None]]
MOST_LOSSES = 2  # replicas that may be lost under a request before it is given up: it may be what kills them
ELSEWHERE = (TOO_MANY, UNAVAILABLE)  # answers for which another replica is asked
GONE = 499  # what nobody reads any more, as nginx counts it
EVENTS = "text/event-stream"
REPLICA = b"x-meshwright-replica"  # who answered
# Of one connection and not of what it carries; `host` is that of the replica, the body comes with its length.
OWN = frozenset(
    b"connection content-length expect host keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding"
    b" upgrade".split()
)  # fmt: skip
LOG = logging.getLogger(__name__)


@dataclass
class ForwardCounts:
    """What happened to requests on their way: those that another replica was asked, and those whose stream broke."""

    num_asked_again: int = 0
    num_broken: int = 0


class _Lost(Exception):
    """The replica broke off; `was_reached`: had it the request?"""

    def __init__(self, was_reached: bool) -> None:
        self.was_reached = was_reached


@dataclass
class _Answer:
    """One of a replica: status, headers, body. `first`: what has come of it; `rest`: what comes; None: that is all."""

    status: int
    headers: Headers
    first: bytes
    rest: AsyncIterator[bytes] | None


class Forwarding:
    """Forwards requests to replicas. Each method is an answer of ASGI; raises ApiError where nothing was sent."""

    def __init__(self, replicas: Replicas, limits: ServerLimits, counts: ForwardCounts) -> None:
        self._replicas, self._limits, self.counts = replicas, limits, counts

    async def generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the replica that the router names; to another one where that is full, or is lost before anything came."""
        await self._until_gone(scope, receive, send, self._generate)

    async def look_up(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To any: all say the same."""
        await self._until_gone(scope, receive, send, self._look_up)

    async def tell_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To every one that is ready, and to those that become it: what it changes, all are to have."""
        await self._until_gone(scope, receive, send, self._tell_all)

    async def _until_gone(self, scope: Scope, receive: Receive, send: Send, work: Work) -> None:
        request = HttpRequest(scope, receive)
        body = await request.body()
        began = False

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await until_gone(request, work(scope, body, noting))
        except ClientGone:  # the connection to the replica is closed by now, which ends it there
            if not began:
                await send({"type": "http.response.start", "status": GONE, "headers": []})
                await send({"type": "http.response.body", "body": b""})

    async def _look_up(self, scope: Scope, body: bytes, send: Send) -> None:
        number = self._replicas.any_ready()
        if number is None:
            raise _nobody()
        try:
            async with self._asked(number, scope, body) as answer:
                await self._pass_on(answer, scope, send)
        except _Lost as lost:
            raise _lost() from lost

    async def _tell_all(self, scope: Scope, body: bytes, send: Send) -> None:
        """The answer is one of those that went worst."""
        answers: list[_Answer] = []
        for number in self._replicas.ready():
            try:
                async with self._asked(number, scope, body) as answer:
                    answers.append(answer)
            except _Lost:
                LOG.warning("replica %d was lost before it was told", number)  # who begins in its place is
        if not answers:
            raise _nobody()
        worst = max(answers, key=lambda each: each.status)
        if worst.status < BAD_REQUEST:
            name, path = str(json.loads(body)["lora_name"]), scope["path"]
            self._replicas.changed(Change(name, path == UNLOAD, path, body, _kept(scope["headers"])))
        await self._pass_on(worst, scope, send)

    async def _generate(self, scope: Scope, body: bytes, send: Send) -> None:
        request, tried, num_losses = routed_request(body), set[int](), 0
        while True:
            number = self._replicas.give(request, tried)
            if number is None:
                raise _lost() if num_losses else _nobody()
            tried.add(number)
            try:
                async with self._asked(number, scope, body) as answer:
                    if answer.status not in ELSEWHERE or not self._replicas.ready(tried):
                        await self._pass_on(answer, scope, send)
                        return
            except _Lost as lost:
                num_losses += lost.was_reached
                LOG.warning("replica %d was lost before it answered", number)
                if num_losses >= MOST_LOSSES:
                    raise _lost() from lost
            finally:
                self._replicas.router.ended(number)
            self.counts.num_asked_again += 1

    @asynccontextmanager
    async def _asked(self, number: int, scope: Scope, body: bytes) -> AsyncIterator[_Answer]:
        """A replica's answer, of which something has come. Raises _Lost where nothing does."""
        client = self._replicas.client(number)
        url = httpx.URL(str(client.base_url), raw_path=_target(scope))
        asked = client.build_request(scope["method"], url, content=body, headers=_kept(scope["headers"]))
        try:
            answer = await client.send(asked, stream=True)
        except httpx.TransportError as error:
            raise _Lost(not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)) from error
        try:
            begun = await _begun(answer)
            begun.headers.append((REPLICA, str(number).encode()))
            yield begun
        finally:
            await answer.aclose()

    async def _pass_on(self, answer: _Answer, scope: Scope, send: Send) -> None:
        """What has come, and what comes, at once."""
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        await send(start)
        if answer.rest is None:
            await send({"type": "http.response.body", "body": answer.first})
            return
        form, last = form_on(scope["path"]), b""
        try:
            await self._send(send, answer.first)
            async for part in answer.rest:
                await self._send(send, part)
        except TimeoutError:
            LOG.info("a client reads too slowly, and is left")
            return
        except httpx.TransportError:
            self.counts.num_broken += 1
            last = form.broken(_lost()) + form.end
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send(self, send: Send, part: bytes) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await send({"type": "http.response.body", "body": part, "more_body": True})


async def _begun(answer: httpx.Response) -> _Answer:
    """Its first part where it is a stream, all of it where it is not. Raises _Lost."""
    headers = _kept(answer.headers.raw)
    try:
        if not answer.headers.get("content-type", "").startswith(EVENTS):
            whole = b"".join([part async for part in answer.aiter_raw()])
            return _Answer(
                answer.status_code, [*headers, (b"content-length", str(len(whole)).encode())], whole, None
            )
        parts = _events(answer.aiter_raw())
        return _Answer(answer.status_code, headers, await anext(parts, b""), parts)
    except httpx.TransportError as error:
        raise _Lost(True) from error


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole events, as soon as they are whole: an error may follow on each."""
    held = b""
    async for part in parts:
        whole, end, held = (held + part).rpartition(b"\n\n")
        if end:
            yield whole + end


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name.lower(), value) for name, value in headers if name.lower() not in OWN]


def _target(scope: Scope) -> bytes:
    """Path and query as they came. Raises ApiError for the forms of a target that are for proxies."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    if not path.startswith(b"/"):
        raise ApiError(NOT_FOUND, "a target that is no path", code="not_found")
    return bytes(path + b"?" + query if query else path)


def _nobody() -> ApiError:
    return ApiError(
        UNAVAILABLE,
        "no replica is ready; they are being started",
        code="no_replica",
        headers={"Retry-After": "1"},
    )


def _lost() -> ApiError:
    return ApiError(
        UNAVAILABLE, "the replica that computed this request was lost; ask again", code="replica_lost",
        headers={"Retry-After": "1"},
    )  # fmt: skip
