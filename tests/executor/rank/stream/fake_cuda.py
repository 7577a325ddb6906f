"""torch.cuda as far as streams need it: streams with a clock each, events that keep it, and what was asked of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

ERROR = "an illegal memory access was encountered"


class FakeStream:
    """`now_ms`: when all that was given to it has ended."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name, self.now_ms = cuda, name, 0.0

    def wait_event(self, event: FakeEvent) -> None:
        """What is given from now on begins behind the event."""
        assert event.at_ms is not None, "an event that nobody has recorded is waited for"
        self.cuda.log.append(("wait", self.name, event.stream))
        self.now_ms = max(self.now_ms, event.at_ms)


class FakeEvent:
    """Comes when all that its stream had then has ended."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.stream, self.is_broken = cuda, "", False
        self.at_ms: float | None = None

    def record(self, stream: FakeStream) -> None:
        """Behind what the stream has now."""
        self.at_ms = max(stream.now_ms, self.cuda.now_ms)
        self.stream, self.is_broken = stream.name, self.cuda.is_broken

    def query(self) -> bool:
        """Has it come, by the time of the device?"""
        return self.at_ms is not None and self.at_ms <= self.cuda.now_ms

    def synchronize(self) -> None:
        """The host waits for it."""
        assert self.at_ms is not None
        if self.is_broken:
            raise RuntimeError(ERROR)
        self.cuda.now_ms = max(self.cuda.now_ms, self.at_ms)
        self.cuda.log.append(("host waits", self.stream, ""))

    def elapsed_time(self, other: FakeEvent) -> float:
        """Milliseconds."""
        assert self.at_ms is not None and other.at_ms is not None
        return other.at_ms - self.at_ms


class FakeCuda:
    """Stands in for the module. `now_ms`: how far the device has come, as the host sees it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, str]] = []
        self.now_ms, self.is_broken = 0.0, False
        self.streams: list[FakeStream] = []
        self._current = [FakeStream(self, "default")]

    def Stream(self, device: Any) -> FakeStream:  # noqa: N802 - as torch calls it
        """A new one."""
        self.streams.append(FakeStream(self, f"side {len(self.streams)}"))
        return self.streams[-1]

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802 - as torch calls it
        """A new one."""
        assert enable_timing
        return FakeEvent(self)

    def current_stream(self, device: Any = None) -> FakeStream:
        """Where operations go."""
        return self._current[-1]

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Operations go to it."""
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def synchronize(self, device: Any) -> None:
        """The host waits for all."""
        self.now_ms = max([self.now_ms, self._current[0].now_ms, *(stream.now_ms for stream in self.streams)])
        self.log.append(("host waits", "all", ""))

    def work(self, milliseconds: float) -> None:
        """An operation on the current stream."""
        stream = self.current_stream()
        stream.now_ms = max(stream.now_ms, self.now_ms) + milliseconds
