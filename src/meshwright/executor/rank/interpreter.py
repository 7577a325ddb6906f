"""The interpreter: a host that walks the list of its rank, and the only loop over microbatches there is."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.rank_list import RankList
from meshwright.executor.rank.seconds_by_name import SecondsByName, Spent
from meshwright.executor.rank.stream.device_streams import streams_of
from meshwright.executor.rank.stream.issued import Issued
from meshwright.executor.rank.stream.row_times import Times
from meshwright.executor.rank.value_store import ValueStore, fetch
from meshwright.executor.rank.watchdog import Position

# Times of the last iterations are kept: as many as have this many rows together, at least LEAST_KEPT. A row costs about
# 100 bytes.
KEPT_ROWS, LEAST_KEPT = 1_000_000, 200


class Interpreter:
    """Runs the list of one rank again and again.

    A row begins when the versions it reads are complete, its ring slot is free and its `after` are complete. An in-order host
    waits for that itself (`Step.waits`: only asynchronous rows can be incomplete), then runs a COMPUTE, and hands anything
    else to its stream; an asynchronous one lets the row's stream wait (`RankStreams`). ``position`` publishes where it is;
    ``watch`` lets asynchronous rows run inside a context.
    """

    def __init__(self, ranked: RankList, store: ValueStore, context: Context, position: Position) -> None:
        self.ranked, self.store, self.position = ranked, store, position
        self.times: deque[Times] = deque(maxlen=max(LEAST_KEPT, KEPT_ROWS // max(1, len(ranked.steps))))
        self.num_done = 0  # iterations begun, all but the last of them done
        self._seconds = SecondsByName(ranked)
        self._streams = streams_of(ranked, context, position)

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Let the handlers of asynchronous rows run inside `watching()`, in the threads of their streams."""
        self._streams.watch(watching)

    def prepare(self, iteration: int) -> None:
        """Nothing: the list is the same in every iteration (`ChangingInterpreter`)."""

    def run_iteration(self) -> None:
        """Walk the list once. Exchanges that nobody waited for may still be under way afterwards.

        Raises:
            RowError: a handler failed, here or on a stream.
        """
        iteration = self.num_done
        self.num_done += 1
        times = Times(len(self.ranked.steps))
        self.times.append(times)
        lines, position, streams = self.store.lines(iteration), self.position, self._streams
        streams.begin(iteration)
        for step in self.ranked.steps:
            position.set(iteration, step.row.number)
            if step.waits:
                streams.wait(step, iteration)
            # what the row held must not live until the next one: nothing here keeps it
            streams.run(Issued(step, _inputs(lines, step.reads), lines[0], times, iteration))
        streams.end(times, iteration)

    def drain(self) -> None:
        """Wait for all streams to finish what was issued."""
        self._streams.drain()

    def close(self) -> None:
        """Wait for all streams to finish what was issued, and end them."""
        self._streams.close()

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Posted, start and end of the last iterations, ``[iterations, rows of this rank]``."""
        num = len(self.ranked.steps)
        return {
            name: np.array([getattr(times, name) for times in self.times], dtype=np.float64).reshape(
                len(self.times), num
            )
            for name in ("posted", "start", "end")
        }

    def spent(self) -> Spent:
        """Where the host's seconds of the last iteration went, by name."""
        return self._seconds.of(self.times[-1], self._streams.waited_s)


def _inputs(lines: list[list[Any]], reads: tuple[Any, ...]) -> list[Any]:
    """One entry a read pattern: a value, several, or None."""
    inputs: list[Any] = []
    for read in reads:
        if read is None:
            inputs.append(None)
        elif read and type(read[0]) is int:
            inputs.append(fetch(lines, read))
        else:
            inputs.append(tuple([fetch(lines, one) for one in read]))
    return inputs
