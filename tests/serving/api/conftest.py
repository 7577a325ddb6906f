"""A server on a port of its own, in a thread, for every module of tests that asks for one."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serving.api.said import MAX_TOKENS, VOCABULARY, ByteText, no_grammar, saying_service
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.app import create_app
from meshwright.serving.api.http.lifecycle import Lifecycle
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.server import Address, DrainingServer, config_of
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.loop.service import Service
from meshwright.serving.stored.pooling import Pooling


class Served:
    """A server under test."""

    def __init__(
        self, service: Service, url: str, lifecycle: Lifecycle, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.service, self.url, self.lifecycle, self.loop = service, url, lifecycle, loop

    def client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **more)


@contextmanager
def serving(
    keys: ApiKeys | None = None,
    limits: ServerLimits | None = None,
    adapters_folder: Path | None = None,
    address: Address | None = None,
    pooling: Pooling | None = None,
    **choices: Any,
) -> Iterator[Served]:
    """A server that runs while the block does; at its end no request is open and no block is held."""
    adapters = ServedAdapters(2 if adapters_folder else 0)
    metrics = ServerMetrics("said", MAX_TOKENS, adapters.most)
    service = saying_service(observers=[metrics], adapters=adapters, **choices)
    metrics.watch(service.snapshot)
    model = ModelService(
        "said",
        service,
        ByteText(),
        MAX_TOKENS,
        VOCABULARY,
        no_grammar,
        adapters,
        adapters_folder,
        limits=limits or ServerLimits(),
        observer=metrics,
        pooling=pooling,
    )
    lifecycle = Lifecycle()
    app = create_app(model, metrics, keys, lifecycle)
    address = address or Address(port=0)
    listening = address.listen()
    server = DrainingServer(config_of(app, model.limits, address))
    begun: queue.Queue[asyncio.AbstractEventLoop] = queue.Queue()

    async def run() -> None:
        begun.put(asyncio.get_running_loop())
        await server.serve([listening])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    loop = begun.get(timeout=30)
    try:
        scheme = "https" if address.certificate else "http"
        yield Served(service, f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", lifecycle, loop)
    finally:
        server.should_exit = True
        thread.join(30)
        left = wait_for_rest(service)
        service.close()
        listening.close()
    assert not thread.is_alive() and (left.num_open, left.num_held_blocks) == (0, 0), left


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.client()
