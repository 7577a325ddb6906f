"""serve_workbench: the server on a port of the loopback interface, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from meshwright.specs.error import ExecutionError
from meshwright.workbench.server.app import Workbench, create_app

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64
KEEP_ALIVE_S = 30
MOST_HEADER_BYTES = 32 << 10


def serve_workbench(port: int, announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C. `port`: 0: the system chooses one; `announce` is told the URL once it can be asked.

    Raises ExecutionError where the port is taken.
    """
    with listening_on(port) as listening:
        address = listening.getsockname()[1]
        workbench = Workbench()
        workbench.warm()
        config = uvicorn.Config(
            create_app(workbench, address), log_level="warning", access_log=False, http="h11", ws="none", lifespan="off",
            limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES, server_header=False,
        )  # fmt: skip
        try:
            announce(f"http://{HOST}:{address}/")
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            workbench.close()


def listening_on(port: int) -> socket.socket:
    """A socket of the loopback interface, and of no other. Raises ExecutionError where the port is taken."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ExecutionError(
            f"port {port} of {HOST} cannot be had: {error}", next="choose another with --port"
        ) from None
