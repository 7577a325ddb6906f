"""A connection whose heads come in time: a client that sends one byte now and then would keep its place for ever."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

TOO_SLOW = 408


def timed_protocol(head_s: float) -> type[H11Protocol]:
    """A protocol for `uvicorn.Config.http` that ends a connection whose next head is not whole `head_s` seconds after the
    connection was made, or after the first byte behind an answer. (A connection without a byte behind an answer is uvicorn's
    `timeout_keep_alive`.)
    """

    class TimedProtocol(H11Protocol):
        """One connection."""

        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Its first head is waited for."""
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            """Is the head whole now?"""
            super().data_received(data)
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            """Nothing is waited for."""
            self._stop()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Wait while their head is under way, and only then."""
            if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
                self._stop()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(head_s, self._end)

        def _stop(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _end(self) -> None:
            self._head_timer = None
            if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
                return
            if self.conn.our_state is h11.IDLE:
                headers = [(b"connection", b"close"), (b"content-length", b"0")]
                told = h11.Response(status_code=TOO_SLOW, headers=headers, reason=b"Request Timeout")
                self.transport.write(self.conn.send(told) or b"")
            self.transport.close()

    return TimedProtocol
