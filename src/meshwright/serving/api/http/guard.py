"""What every request passes first: its key, its size, its time; and the one place behind which no error is unanswered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.serving.api.error import (
    BAD_REQUEST,
    TIMED_OUT,
    TOO_LARGE,
    UNAUTHORIZED,
    ApiError,
    draining,
    failed,
)  # fmt: skip
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.lifecycle import Lifecycle
from meshwright.serving.api.limit import ServerLimits

OPEN_PATHS = ("/health", "/ready", "/metrics")  # who looks whether a server lives has no key
GENERATING = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank",
)  # fmt: skip
LOG = logging.getLogger(__name__)


class AnswerCounter(Protocol):
    """Counts answers."""

    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered."""
        ...


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, limits: ServerLimits, lifecycle: Lifecycle, metrics: AnswerCounter
    ) -> None:
        self._app, self._keys, self._limits = app, keys, limits
        self._lifecycle, self._metrics = lifecycle, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        statuses: list[int] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        generates = scope["path"] in GENERATING
        self._lifecycle.num_answering += generates
        try:
            self._check(scope)
            await self._app(scope, _Bounded(receive, self._limits), noting)
        except ApiError as error:
            await _refuse(error, scope, statuses, noting)
        except Exception:
            LOG.exception("a request failed")
            await _refuse(failed(), scope, statuses, noting)
        finally:
            self._lifecycle.num_answering -= generates
            self._metrics.answered(scope["method"], _route(scope), statuses[0] if statuses else 0)

    def _check(self, scope: Scope) -> None:
        """What its headers say. Raises ApiError."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        user = self._keys.user_of(
            headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        )
        if user is None and scope["path"] not in OPEN_PATHS:
            raise ApiError(
                UNAUTHORIZED, "no key, or one that is not served; send Authorization: Bearer KEY",
                code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        scope["meshwright.user"] = user or ""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._limits.body_bytes:
            raise _too_large(self._limits)
        if self._lifecycle.is_draining and scope["path"] in GENERATING:
            raise draining()


class _Bounded:
    """A body that comes in time, and is no larger than allowed."""

    def __init__(self, receive: Receive, limits: ServerLimits) -> None:
        self._receive, self._limits = receive, limits
        self._num_bytes, self._is_whole = 0, False

    async def __call__(self) -> Message:
        """The next part. Raises ApiError."""
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._limits.read_s):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                TIMED_OUT,
                f"the body did not come within {self._limits.read_s:g} s",
                headers={"Connection": "close"},
            ) from None
        self._num_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._num_bytes > self._limits.body_bytes:
            raise _too_large(self._limits)
        return message


def _too_large(limits: ServerLimits) -> ApiError:
    return ApiError(
        TOO_LARGE,
        f"a body of more than {limits.body_bytes} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def _route(scope: Scope) -> str:
    """The path as the routes know it: of unknown paths there are too many to count each."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", "none"))


async def _refuse(error: ApiError, scope: Scope, statuses: list[int], send: Send) -> None:
    """Send an error, where nothing was sent yet."""
    if statuses:
        return
    body = error.answer_on(scope["path"]).model_dump_json().encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(error.headers or {})}
    names = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status_code or BAD_REQUEST, "headers": names})
    await send({"type": "http.response.body", "body": body})
