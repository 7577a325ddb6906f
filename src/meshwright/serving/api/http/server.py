"""A server: one socket, one application, and an end that lets finish what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.app import create_app
from meshwright.serving.api.http.lifecycle import Lifecycle
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.timed_protocol import timed_protocol
from meshwright.serving.api.limit import ServerLimits
from meshwright.specs.error import SpecError

BACKLOG = 4096  # connections that may wait to be accepted: a burst of clients is no error
LOOK_S = 0.05  # between looks whether all is answered
CLOSING_S = 5.0  # for connections to take their last bytes
KEEP_ALIVE_S = 15.0  # that an idle connection is kept
SIGNALS = (signal.SIGTERM, signal.SIGINT)
TERMINATED = 128 + signal.SIGTERM  # the exit code that shells know
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the files of its certificate, without which it speaks plain HTTP. `path`: of a Unix socket,
    in place of host and port."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    path: Path | None = None

    def listen(self) -> socket.socket:
        """A socket there. Raises SpecError where it cannot be had, or the certificate is none."""
        if self.certificate is not None:
            self._check_certificate(self.certificate)
        if self.path is not None:
            return _at(self.path)
        try:
            kind, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            made = socket.socket(kind, socket.SOCK_STREAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(BACKLOG)
        except OSError as error:
            raise SpecError(
                f"{self.host}:{self.port} cannot be listened on: {error.strerror}",
                allowed="an address of this machine and a port that is free (0: any)",
            ) from error
        return made

    def url(self, listening: socket.socket) -> str:
        """Where clients find it."""
        if self.path is not None:
            return f"unix:{self.path}"
        host, port = listening.getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificate else 'http'}://{named}:{port}"

    def _check_certificate(self, certificate: Path) -> None:
        """Before a model is loaded that nobody could reach. Raises SpecError."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                certificate, self.key, password=lambda: ""
            )
        except (ssl.SSLError, OSError) as error:
            raise SpecError(
                f"{certificate} and {self.key} are no certificate with its key: {error}",
                allowed="files in PEM form, the key without a password",
            ) from error


def _at(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_answered(path):
            path.unlink()  # of a server that has ended
        made.bind(str(path))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise SpecError(
            f"{path} cannot be listened on: {error.strerror or error}",
            allowed="a path of at most about 100 characters where nothing stands yet",
        ) from error
    return made


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


@dataclass(frozen=True)
class ServedApp:
    """An application and its end.

    Args:
        app: of ASGI.
        limits: of a request.
        lifecycle: says how many it is answering, and is told that it ends.
        drain: takes nothing more and lets finish, or aborts, what runs within so many seconds.
        around: is entered before it answers, and left when it has ended.
    """

    app: ASGIApp
    limits: ServerLimits
    lifecycle: Lifecycle
    drain: Callable[[float], Awaitable[object]]
    around: AbstractAsyncContextManager[object] = field(default_factory=contextlib.nullcontext)


class DrainingServer(uvicorn.Server):
    """One whose signals are the caller's matter."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


def serve_until_told(
    model: ModelService, metrics: ServerMetrics, address: Address, listening: socket.socket, keys: ApiKeys,
    announce: Callable[[str], None],
) -> None:  # fmt: skip
    """Let a model answer until SIGTERM or Ctrl-C; see `answer_until_told`."""
    lifecycle = Lifecycle()

    def drain(seconds: float) -> Awaitable[object]:
        return asyncio.to_thread(model.service.drain, seconds)

    served = ServedApp(create_app(model, metrics, keys, lifecycle), model.limits, lifecycle, drain)
    answer_until_told(served, address, listening, announce)


def answer_until_told(
    served: ServedApp, address: Address, listening: socket.socket, announce: Callable[[str], None]
) -> None:
    """Answer until SIGTERM or Ctrl-C; then take nothing more, finish what runs, and end. A second signal ends at once.

    Args:
        listening: the socket of `address`, which the caller opened before anything was loaded.
        announce: is told the URL as soon as it answers.
    """
    asyncio.run(_serve(served, address, listening, lambda: announce(address.url(listening))))


def config_of(app: object, limits: ServerLimits, address: Address) -> uvicorn.Config:
    """h11 and not httptools, because only it bounds headers."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=timed_protocol(limits.read_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=int(CLOSING_S),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )


async def _serve(
    served: ServedApp, address: Address, listening: socket.socket, announce: Callable[[], None]
) -> None:
    server = DrainingServer(config_of(served.app, served.limits, address))
    loop, starting, is_ended = asyncio.get_running_loop(), asyncio.current_task(), False
    assert starting is not None

    def end() -> None:  # while it starts; Ctrl-C does the same by itself
        nonlocal is_ended
        is_ended = True
        starting.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        async with served.around:
            await _answer(server, served, listening, announce)
    except asyncio.CancelledError:
        if is_ended:
            raise SystemExit(TERMINATED) from None
        raise


async def _answer(
    server: DrainingServer, served: ServedApp, listening: socket.socket, announce: Callable[[], None]
) -> None:
    """Until a signal, and then until what runs has ended."""
    told = asyncio.Event()

    def stop() -> None:
        server.force_exit = told.is_set()  # twice is at once
        server.should_exit = server.force_exit
        told.set()

    for each in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, stop)
    serving = asyncio.create_task(server.serve([listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(LOOK_S / 10)
    announce()
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not serving.done():
        await _drain(server, served)
    server.should_exit = True
    await serving


async def _drain(server: DrainingServer, served: ServedApp) -> None:
    """Take nothing more; wait for what runs, and for its last bytes, as long as the limits say."""
    lifecycle, seconds = served.lifecycle, served.limits.drain_s
    lifecycle.is_draining = True
    ends_s = asyncio.get_running_loop().time() + seconds
    draining = asyncio.ensure_future(served.drain(seconds))
    while lifecycle.num_answering or not draining.done():
        if server.force_exit or asyncio.get_running_loop().time() >= ends_s + CLOSING_S:
            LOG.warning("%d requests were not finished", lifecycle.num_answering)
            break
        await asyncio.sleep(LOOK_S)
