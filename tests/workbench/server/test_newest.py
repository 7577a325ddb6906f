"""One works, one waits: the newest; who waited before it is told, and who waits too long, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from meshwright.workbench.server.newest import NewestFirst, Superseded, TookTooLong


async def settled(*given: Awaitable[object]) -> list[object]:
    return list(await asyncio.gather(*given, return_exceptions=True))


def test_the_newest_of_those_who_wait_is_next() -> None:
    async def scene() -> list[object]:
        queue, gate = NewestFirst(10.0), threading.Event()
        tasks = [asyncio.ensure_future(queue.run(gate.wait))]
        for number in range(4):
            await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(queue.run(lambda number=number: number)))
        await asyncio.sleep(0.01)
        gate.set()
        found = await settled(*tasks)
        assert await queue.run(lambda: "idle again") == "idle again"
        queue.close()
        return found

    found = asyncio.run(scene())
    assert found[0] is True and found[-1] == 3
    assert all(isinstance(each, Superseded) for each in found[1:-1])


def test_mistakes_reach_who_asked_and_the_next_is_served() -> None:
    async def scene() -> object:
        queue = NewestFirst(10.0)
        with pytest.raises(ZeroDivisionError):
            await queue.run(lambda: 1 / 0)
        return await queue.run(lambda: 1)

    assert asyncio.run(scene()) == 1


def test_whoever_waits_too_long_is_told_and_the_thread_is_not_asked_twice_at_once() -> None:
    async def scene() -> None:
        queue, gate, running = NewestFirst(0.05), threading.Event(), []

        def work() -> None:
            running.append(1)
            assert len(running) == 1
            gate.wait(5)
            running.pop()

        for found in await settled(queue.run(work), queue.run(work)):
            assert isinstance(found, TookTooLong)
        gate.set()
        queue.limit_s = 5.0
        await queue.run(lambda: None)
        queue.close()

    asyncio.run(scene())


def test_what_is_to_be_first_is_first_and_its_mistake_is_nobodys() -> None:
    def fails() -> None:
        done.append("first")
        raise RuntimeError("a mistake")

    async def scene() -> str:
        queue.first(fails)
        return await queue.run(lambda: "".join([*done, " then asked"]))

    done, queue = list[str](), NewestFirst(10.0)
    assert asyncio.run(scene()) == "first then asked"
    queue.close()
