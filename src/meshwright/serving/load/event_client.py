"""A client that reads events as they come and knows when each did: HTTP/1.1 on a connection of its own for every request."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from meshwright.specs.error import ExecutionError, SpecError

MOST_LINE_BYTES = 1 << 20  # of one event
MOST_ERROR_BYTES = 2000  # of a body that says what is wrong
GOOD = 200
DATA, DONE = b"data:", b"[DONE]"


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is.

    Args:
        host, port: of TCP.
        path: before /v1.
        is_secure: over TLS?
        key: sent as a bearer token; "": none.
    """

    host: str
    port: int
    path: str
    is_secure: bool
    key: str = ""

    @classmethod
    def of_url(cls, url: str, key: str = "") -> ServerAddress:
        """Of http://host:port, with or without /v1 behind it. Raises SpecError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SpecError(f"{url!r} is no URL: {error}", allowed="http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SpecError(f"{url!r} is no URL of a server", allowed="http://HOST:PORT or https://HOST:PORT")
        is_secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if is_secure else 80), path, is_secure, key)


class EventClient:
    """Sends to one server.

    Raises, in every method, ExecutionError where the server cannot be reached, answers with an error, or breaks off.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.is_secure else None

    async def get(self, path: str) -> Any:
        """The JSON of a path."""
        reader, writer = await self._send("GET", path, b"")
        try:
            return json.loads(b"".join([part async for part in _body(reader, await _head(reader))]))
        except ValueError as error:
            raise ExecutionError(f"{path} is answered with what is no JSON") from error
        finally:
            writer.close()

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """The events that answer a body, each as JSON, as soon as it is there; ends with the server's own end."""
        reader, writer = await self._send("POST", path, json.dumps(body).encode())
        try:
            held, is_done = b"", False
            async for part in _body(reader, await _head(reader)):
                *lines, held = (held + part).split(b"\n")
                for line in lines:
                    data = line.removeprefix(DATA).strip() if line.startswith(DATA) else b""
                    is_done = is_done or data == DONE
                    if data and not is_done:
                        yield _event(data)
                if len(held) > MOST_LINE_BYTES:
                    raise ExecutionError(f"an event of more than {MOST_LINE_BYTES} bytes")
            if not is_done:
                raise ExecutionError("the server broke off before the end")
        except OSError as error:
            raise ExecutionError(f"the connection broke: {error}") from error
        finally:
            writer.close()

    async def _send(
        self, method: str, path: str, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        to = self._address
        lines = [
            f"{method} {to.path}{path} HTTP/1.1",
            f"Host: {to.host}:{to.port}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {to.key}"] if to.key else []),
        ]
        try:
            reader, writer = await asyncio.open_connection(
                to.host, to.port, ssl=self._tls, limit=MOST_LINE_BYTES
            )
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except OSError as error:
            raise ExecutionError(
                f"{to.host}:{to.port} cannot be reached: {error}",
                next="is a server there? GET /ready says so",
            ) from error
        return reader, writer


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    """The headers of a good answer. Raises ExecutionError for any other."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError, OSError) as error:
        raise ExecutionError("the server answers with what is no HTTP") from error
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
    }
    if status != GOOD:
        said = b""
        async for part in _body(reader, headers):
            said = (said + part)[:MOST_ERROR_BYTES]
        raise ExecutionError(f"status {status}: {_message(said)}")
    return headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The parts of a body, chunked or not. Raises ExecutionError where it breaks off."""
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).split(b";")[0], 16):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
            return
        left = int(headers.get("content-length", -1))
        while left and (part := await reader.read(65536)):
            left -= len(part)
            yield part
        if left > 0:
            raise ExecutionError("the server broke off before the end")
    except (asyncio.IncompleteReadError, ValueError, OSError) as error:
        raise ExecutionError("the server broke off before the end") from error


def _event(data: bytes) -> Any:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise ExecutionError("an event that is no JSON") from error
    if isinstance(event, dict) and event.get("error"):
        raise ExecutionError(f"the stream ended with an error: {_message(data)}")
    return event


def _message(body: bytes) -> str:
    """What an error says, in OpenAI's form or any other."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")
