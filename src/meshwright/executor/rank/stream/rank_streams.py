"""RankStreams: what the interpreter knows of the streams of its rank, however a device has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from meshwright.executor.rank.rank_list import Step
from meshwright.executor.rank.stream.issued import Issued
from meshwright.executor.rank.stream.row_times import Times


class RankStreams(Protocol):
    """Runs rows in the order in which the host reaches them.

    ``waited_s``: by row, the seconds of this iteration in which computes stood still because it was not complete.
    """

    waited_s: list[float]

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Let the handlers that run in other threads than the host's run inside `watching()`."""

    def begin(self, iteration: int) -> None:
        """An iteration begins."""

    def wait(self, step: Step, iteration: int) -> None:
        """What must be complete before this row begins (`Step.waits`) is waited for: by the host, or by the row's stream."""

    def run(self, issued: Issued) -> None:
        """Run a row, or hand it to its stream."""

    def end(self, times: Times, iteration: int) -> None:
        """All rows of the iteration are issued. Raises RowError where one has failed."""

    def drain(self) -> None:
        """Wait until all that was issued has ended. Raises RowError where a row has failed."""

    def close(self) -> None:
        """As `drain`, and give back what streams hold."""
