"""A front in a thread with replicas in processes, for every module of tests that asks for one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import openai

from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.server import Address, DrainingServer, config_of
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.front import front_of
from meshwright.serving.front.replica_process import ReplicaPlace, ReplicaStart
from meshwright.serving.front.replicas import Replicas
from meshwright.serving.routing.router import Router

START_S = 60.0
TOLD = {"step_s": 0.0, "max_queue": 1000, "num_blocks": 4096}


class FrontServed:
    """A front under test."""

    def __init__(self, replicas: Replicas, url: str) -> None:
        self.replicas, self.url = replicas, url

    def client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **more)

    def complete(self, prompt: Any, num: int = 4, **more: Any) -> httpx.Response:
        body = {"model": "said", "prompt": prompt, "max_tokens": num, **more}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)

    def route_by(self, name: str) -> None:
        """Begin anew with this router, when what was under way has ended."""
        ends_s = time.monotonic() + START_S
        while any(each.num_open for each in self.replicas.router.replicas):
            assert time.monotonic() < ends_s
            time.sleep(0.01)
        self.replicas.router = Router(name, len(self.replicas.router.replicas), 4096)

    def pid(self, number: int) -> int:
        process = self.replicas._replicas[number].process
        assert process is not None
        return process.process.pid

    def wait_ready(self, num: int, timeout_s: float = START_S) -> list[dict[str, Any]]:
        """Until so many replicas are; their states as /health tells them."""
        ends_s = time.monotonic() + timeout_s
        while True:
            states: list[dict[str, Any]] = httpx.get(f"{self.url}/health").json()["replicas"]
            if sum(each["status"] == "ready" for each in states) == num:
                return states
            assert time.monotonic() < ends_s, states
            time.sleep(0.02)


def replicas_of(num: int, router: str = "least_loaded", **told: Any) -> Replicas:
    """Of the saying model."""
    how = ReplicaStart("tests.serving.front.saying_replica", {**TOLD, **told}, (ReplicaPlace(),) * num)
    return Replicas(how, router, read_s=60.0, end_s=20.0)


@contextmanager
def fronting(num: int, keys: ApiKeys | None = None, **told: Any) -> Iterator[FrontServed]:
    """A front that runs while the block does; at its end all replicas have ended, and neither they nor the router held
    anything."""
    replicas, limits, address = replicas_of(num, **told), ServerLimits(), Address(port=0)
    listening = address.listen()
    served = front_of(replicas, limits, keys or ApiKeys())
    server = DrainingServer(config_of(served.app, limits, address))
    is_ready = threading.Event()

    async def run() -> None:
        async with served.around:
            is_ready.set()
            await server.serve([listening])
            await served.drain(20.0)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert is_ready.wait(START_S)
        yield FrontServed(replicas, address.url(listening))
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
    assert not thread.is_alive()
    assert (replicas.figures["num_open"], replicas.figures["num_held"]) == (0, 0)
    assert not any(each.num_open for each in replicas.router.replicas)
    assert all(each.process and each.process.process.returncode is not None for each in replicas._replicas)
