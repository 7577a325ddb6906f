"""A link between two hosts that are both this machine: forwards connections, counts bytes, never faster than a rate."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType

LOOPBACK, PIECE_BYTES = "127.0.0.1", 4096
ASKED = struct.Struct("!BH")  # what is asked for and answered: a host, a port
END_S = 200.0  # who is to be reached may still be starting


class Lane:
    """One direction of the link, shared by all its connections: one piece after another, each in its time."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.num_bytes: dict[int, int] = {}  # by the port that connections lead to
        self.passed: list[
            tuple[float, int]
        ] = []  # by the clock that it keeps time with: when, and how many bytes
        self._is_free = threading.Lock()

    def hold(self, num_bytes: int, port: int) -> None:
        """Keep the lane for as long as it is busy with a piece."""
        with self._is_free:
            time.sleep(num_bytes / self.bytes_per_s)
            self.passed.append((time.monotonic(), num_bytes))
            self.num_bytes[port] = self.num_bytes.get(port, 0) + num_bytes


class SlowLink:
    """A context: a wire between host 0 and host 1 with a lane each way. ``sent_by``: the lane that a host sends on."""

    def __init__(self, bytes_per_s: float) -> None:
        self.sent_by = (Lane(bytes_per_s), Lane(bytes_per_s))
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> SlowLink:
        self.port = self._listen(self._answer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._sockets:
            one.close()

    def port_to(self, host: int, target: int) -> int:
        """A port at this end of the link that leads to a port of the host at the other end."""
        return self._listen(lambda client: self._join(client, host, target))

    def _listen(self, serve: Callable[[socket.socket], None]) -> int:
        server = socket.create_server((LOOPBACK, 0))
        self._sockets.append(server)

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:  # closed: the link is gone
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    def _answer(self, client: socket.socket) -> None:
        """Somebody asks for a port that leads to a port of a host."""
        with client:
            host, target = ASKED.unpack(client.recv(ASKED.size, socket.MSG_WAITALL))
            client.sendall(ASKED.pack(host, self.port_to(host, target)))

    def _join(self, client: socket.socket, host: int, target: int) -> None:
        far = _reach(target)
        self._sockets += [client, far]
        for source, sink, sender in ((client, far, 1 - host), (far, client, host)):
            given = (source, sink, self.sent_by[sender], target)
            threading.Thread(target=_carry, args=given, daemon=True).start()


def ask_for_port(link: int, host: int, target: int) -> int:
    """From another process: `port_to` of the link at port ``link``."""
    with socket.create_connection((LOOPBACK, link), timeout=END_S) as asking:
        asking.sendall(ASKED.pack(host, target))
        port: int = ASKED.unpack(asking.recv(ASKED.size, socket.MSG_WAITALL))[1]
        return port


def _carry(source: socket.socket, sink: socket.socket, lane: Lane, target: int) -> None:
    try:
        while data := source.recv(PIECE_BYTES):
            lane.hold(len(data), target)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)  # the other direction may still have something to carry
    except OSError:  # one side is gone; the other one shall notice
        for one in (source, sink):
            one.close()


def _reach(port: int) -> socket.socket:
    """A connection to a process that may still be starting."""
    end_s = time.monotonic() + END_S
    while True:
        try:
            return socket.create_connection((LOOPBACK, port), timeout=END_S)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
