"""serve_workbench, serve_run: servers on a port of the loopback interface, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn

from meshwright.specs.error import ExecutionError
from meshwright.workbench.document.followed import FollowedRun
from meshwright.workbench.server.app import Workbench, create_app
from meshwright.workbench.server.guard import LoopbackGuard
from meshwright.workbench.server.run_app import create_run_app

HOST = "127.0.0.1"
USUAL_PORT = 8643  # links that people send each other open where the other's is at the same one
MOST_CONNECTIONS = 64
KEEP_ALIVE_S = 30
MOST_HEADER_BYTES = 32 << 10


def serve_workbench(port: int | None, announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C. `port`: 0: the system chooses one, None: the usual one, where it is free; `announce` is told the
    URL once it can be asked.

    Raises ExecutionError where the port is taken.
    """
    with _listening(port) as listening:
        workbench = Workbench()
        workbench.warm()
        try:
            _serve(listening, partial(create_app, workbench), announce)
        finally:
            workbench.close()


def serve_run(path: Path, port: int | None, announce: Callable[[str], None]) -> None:
    """The page of a run that goes on, until Ctrl-C; port and `announce` as of `serve_workbench`.

    Raises SpecError as `FollowedRun.document`, ExecutionError where the port is taken.
    """
    run = FollowedRun(path)
    run.document()
    with _listening(port) as listening:
        _serve(listening, partial(create_run_app, run), announce)


def _serve(
    listening: socket.socket, create: Callable[[int], LoopbackGuard], announce: Callable[[str], None]
) -> None:
    """Answer what comes to a socket, until Ctrl-C."""
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        create(port), log_level="warning", access_log=False, http="h11", ws="none", lifespan="off",
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES, server_header=False,
    )  # fmt: skip
    announce(f"http://{HOST}:{port}/")
    uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int | None) -> socket.socket:
    return usual_or_free() if port is None else listening_on(port)


def usual_or_free() -> socket.socket:
    """A socket on the usual port, or on one that the system chooses."""
    try:
        return listening_on(USUAL_PORT)
    except ExecutionError:
        return listening_on(0)


def listening_on(port: int) -> socket.socket:
    """A socket of the loopback interface, and of no other. Raises ExecutionError where the port is taken."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ExecutionError(
            f"port {port} of {HOST} cannot be had: {error}", next="choose another with --port"
        ) from None
