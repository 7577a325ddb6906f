"""A server: one socket, one application, and an end that lets finish what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.app import create_app
from meshwright.serving.api.http.lifecycle import Lifecycle
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.timed_protocol import timed_protocol
from meshwright.specs.error import SpecError

BACKLOG = 4096  # connections that may wait to be accepted: a burst of clients is no error
LOOK_S = 0.05  # between looks whether all is answered
CLOSING_S = 5.0  # for connections to take their last bytes
KEEP_ALIVE_S = 15.0  # that an idle connection is kept
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the files of its certificate, without which it speaks plain HTTP."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    def listen(self) -> socket.socket:
        """A socket there. Raises SpecError where it cannot be had, or the certificate is none."""
        if self.certificate is not None:
            self._check_certificate(self.certificate)
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
    """Answer until SIGTERM or Ctrl-C; then take nothing more, finish what runs, and end. A second signal ends at once.

    Args:
        listening: the socket of `address`, which the caller opened before the model was loaded.
        announce: is told the URL as soon as it answers.
    """
    host, port = listening.getsockname()[:2]
    scheme = "https" if address.certificate else "http"
    named = f"[{host}]" if ":" in host else host
    lifecycle = Lifecycle()
    server = DrainingServer(config_of(create_app(model, metrics, keys, lifecycle), model, address))
    asyncio.run(_serve(server, listening, model, lifecycle, lambda: announce(f"{scheme}://{named}:{port}")))


def config_of(app: object, model: ModelService, address: Address) -> uvicorn.Config:
    """h11 and not httptools, because only it bounds headers."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=timed_protocol(model.limits.read_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=model.limits.header_bytes,
        timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=int(CLOSING_S),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )


async def _serve(
    server: DrainingServer,
    listening: socket.socket,
    model: ModelService,
    lifecycle: Lifecycle,
    announce: Callable[[], None],
) -> None:
    told = asyncio.Event()

    def stop() -> None:
        server.force_exit = told.is_set()  # twice is at once
        server.should_exit = server.force_exit
        told.set()

    loop = asyncio.get_running_loop()
    for each in SIGNALS:
        loop.add_signal_handler(each, stop)
    serving = asyncio.create_task(server.serve([listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(LOOK_S / 10)
    announce()
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not serving.done():
        await _drain(server, model, lifecycle)
    server.should_exit = True
    await serving


async def _drain(server: DrainingServer, model: ModelService, lifecycle: Lifecycle) -> None:
    """Take nothing more; wait for what runs, and for its last bytes, as long as the limits say."""
    lifecycle.is_draining = True
    ends_s = asyncio.get_running_loop().time() + model.limits.drain_s
    draining = asyncio.create_task(asyncio.to_thread(model.service.drain, model.limits.drain_s))
    while lifecycle.num_answering or not draining.done():
        if server.force_exit or asyncio.get_running_loop().time() >= ends_s + CLOSING_S:
            LOG.warning("%d requests were not finished", lifecycle.num_answering)
            break
        await asyncio.sleep(LOOK_S)
