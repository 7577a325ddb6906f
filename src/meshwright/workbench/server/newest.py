"""NewestFirst: one thread that works; of those who wait for it the newest is next, and all others are told so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Superseded(Exception):
    """A newer request came while this one waited."""


class TookTooLong(Exception):
    """It is not done in the time that a page waits."""


class NewestFirst:
    """Runs functions, one at a time, in a thread. What runs is finished; one may wait."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: after it whoever asked is told, and the thread goes on until it is done."""
        self.limit_s = limit_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="workbench")
        self._waiting: asyncio.Future[None] | None = None
        self._is_busy = False

    def first(self, work: Callable[[], object]) -> None:
        """Have this worked at before all else; nobody waits for it, and what it raises nobody hears."""
        self._pool.submit(work)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns. Raises what it raises, Superseded, or TookTooLong."""
        async with asyncio.timeout(self.limit_s) as limit:
            try:
                await self._turn()
                self._is_busy = True
                running = asyncio.get_running_loop().run_in_executor(self._pool, work)
                running.add_done_callback(self._done)
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if limit.expired():
                    raise TookTooLong from None
                raise

    async def _turn(self) -> None:
        """Wait until nothing runs, unless a newer one comes."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Superseded())
        self._waiting = None
        if self._is_busy:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _done(self, ran: asyncio.Future[T]) -> None:
        if not ran.cancelled():
            ran.exception()  # whoever gave up does not ask for it
        self._is_busy = False
        if self._waiting is not None and not self._waiting.done():
            self._is_busy = True  # until the one that waits begins: nobody may come between
            self._waiting.set_result(None)

    def close(self) -> None:
        """What waits never runs; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
