"""LoopbackGuard: whoever asks has to be a page of this server, on this computer, and to ask for little."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES = 256 << 10
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


class LoopbackGuard:
    """ASGI middleware. A name made to point at this computer has another Host, a page from elsewhere another Origin."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in LOOPBACK}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no sockets here: the server closes them
        if refused := self._refused(scope):
            await _answer(send, *refused)
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, "the body is too large", f"{MOST_BODY_BYTES:,} bytes")
            return
        rest = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def once() -> Message:
            return next(rest, None) or await receive()

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, once, guarded)

    def _refused(self, scope: Scope) -> tuple[int, str, str] | None:
        """Status, what is wrong, and what is allowed."""
        told: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            told.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts, origins = told.get(b"host", []), told.get(b"origin", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return 403, "the request is for another host", "the address that meshwright view printed"
        if any(each.lower() not in self.origins for each in origins):
            return 403, "the request comes from another page", "pages of this server"
        if scope["method"] == "POST" and "application/json" not in "".join(told.get(b"content-type", [])):
            return 415, "the body is not said to be JSON", "Content-Type: application/json"
        length = "".join(told.get(b"content-length", ["0"]))
        if not length.isdigit() or len(length) > 12 or int(length) > MOST_BODY_BYTES:
            return 413, "the body is too large", f"{MOST_BODY_BYTES:,} bytes"
        return None


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or nothing where it is too large or its sender went away."""
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        found += message.get("body", b"")
        if len(found) > MOST_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(found)


async def _answer(send: Send, status: int, message: str, allowed: str) -> None:
    text = json.dumps({"error": {"message": message, "allowed": allowed, "next": ""}}).encode()
    headers = [(b"content-type", b"application/json"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
