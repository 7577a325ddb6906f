"""`serve`: a model behind OpenAI's API, until somebody ends it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from meshwright.api.servings.adapter_options import NO_ADAPTERS, AdapterOptions
from meshwright.api.servings.engine_choice import SIMULATED, EngineChoice
from meshwright.api.servings.opened_model import (
    ANY_ENGINE,
    CONTINUOUS,
    LIMITS,
    MAX_QUEUE,
    OpenedModel,
    name_of,
)
from meshwright.serving.api.limit import DEFAULT_LIMITS, ServerLimits
from meshwright.serving.decoder.decoder import ONE_TOKEN
from meshwright.serving.loop.run_record import RunRecord
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.routing.router import ROUTERS, USUAL_ROUTER
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.option import option

if TYPE_CHECKING:
    from meshwright.api.servings.simulated_model import SimulatedModel
    from meshwright.serving.api.http.server import Address
    from meshwright.serving.engine.served_adapters import ServedAdapters
    from meshwright.serving.loop.serving_loop import Observer

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "httpx2")
Announce = Callable[[str, int], None]
PANEL = "Server"


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and to whom."""

    host: str = option("127.0.0.1", "The address to listen on; this machine alone", panel=PANEL)
    port: int = option(8000, "The port; 0: any that is free", panel=PANEL, least=0)
    name: str = option(
        "", "What clients call the model; else its folder's name.", "--served-name", panel=PANEL
    )
    api_keys: Path | None = option(
        None, "A file with a key a line; MESHWRIGHT_API_KEYS has more, with commas.", panel=PANEL
    )
    certificate: Path | None = option(None, "A file with a TLS certificate.", "--ssl-certfile", panel=PANEL)
    certificate_key: Path | None = option(None, "A file with its key.", "--ssl-keyfile", panel=PANEL)
    max_queue: int = option(
        MAX_QUEUE, "Requests that may wait or run, in each replica; others get 429", panel=PANEL, least=1
    )
    socket: Path | None = option(
        None, "A Unix socket to listen on, in place of host and port.", "--uds", panel=PANEL
    )
    record: Path | None = option(
        None, "When it ends, write what was decided, step by step, to this file; it is kept in memory till then.",
        panel=PANEL,
    )  # fmt: skip
    replicas: int = option(
        1, "So many servers of the model, each a process of its own, behind the address", panel=PANEL, least=1
    )
    router: str = option(
        "", f"Which replica gets a request: {', '.join(ROUTERS)}; else {USUAL_ROUTER}.", panel=PANEL
    )

    def __post_init__(self) -> None:
        if self.port > 65535:
            raise SpecError(f"port {self.port}", allowed="0 to 65535")
        if self.record is not None and self.replicas > 1:
            raise SpecError(
                f"--record with {self.replicas} replicas", allowed="one replica: a record is of one scheduler"
            )
        if self.router and self.replicas == 1:
            raise SpecError(f"--router {self.router} with one replica", allowed="--replicas 2 or more")
        if self.router and self.router not in ROUTERS:
            raise UnknownNameError("router", self.router, ROUTERS)
        if (self.certificate is None) != (self.certificate_key is None):
            raise SpecError(
                "a certificate without its key, or a key without its certificate", allowed="both, or none"
            )
        for path in (self.certificate, self.certificate_key):
            if path is not None and not path.is_file():
                raise SpecError(f"{path} is no file", allowed="a file in PEM form")


LOOPBACK = ServerOptions()


def serve(
    model: str | Path, *, choice: EngineChoice = ANY_ENGINE, server: ServerOptions = LOOPBACK,
    limits: Limits = LIMITS, policy: ContinuousBatching = CONTINUOUS,
    bounds: ServerLimits = DEFAULT_LIMITS, adapting: AdapterOptions = NO_ADAPTERS,
    announce: Announce = lambda url, num_tokens: None,
) -> dict[str, Any]:  # fmt: skip
    """Serve a model over HTTP until SIGTERM or Ctrl-C: then take nothing more, finish what runs, and return.

    Args:
        model: a folder, or an id in the local hub cache.
        choice: the engine.
        server: where it listens.
        limits, policy: of the scheduler.
        bounds: the most that one request may bring.
        adapting: which adapters it has, and from where it may load others.
        announce: is told the URL once it answers, and how many tokens one replica has room for.

    Returns:
        num_requests, num_prompt_tokens, num_output_tokens, and num_open: requests that had not ended; of one replica whose
        model has experts also experts: rows of each, and of each device of ep (`ExpertLoads`).

    Raises:
        SpecError: the model cannot be served, the address cannot be had, or a package is missing.
    """
    check_packages()
    from meshwright.serving.api.http.server import Address

    address = Address(server.host, server.port, server.certificate, server.certificate_key, server.socket)
    with address.listen() as listening:
        if server.replicas > 1:
            from meshwright.api.servings.replicas import serve_replicas

            return serve_replicas(
                model, choice, server, limits, policy, bounds, adapting, address, listening, announce
            )
        return _serve_one(
            model, choice, server, limits, policy, bounds, adapting, address, listening, announce
        )


def _serve_one(
    model: str | Path, choice: EngineChoice, server: ServerOptions, limits: Limits, policy: ContinuousBatching,
    bounds: ServerLimits, adapting: AdapterOptions, address: Address, listening: socket, announce: Announce,
) -> dict[str, Any]:  # fmt: skip
    """In this process."""
    from meshwright.serving.api.generation.model_service import ModelService
    from meshwright.serving.api.http.api_key import keys_of
    from meshwright.serving.api.http.metrics import ServerMetrics
    from meshwright.serving.api.http.server import serve_until_told

    keys, name = keys_of(server.api_keys, os.environ), server.name or name_of(model)
    adapters = adapting.made()
    metrics = ServerMetrics(name, limits.max_model_tokens, adapters.most)
    record = RunRecord()
    if server.record is not None and choice.decoder != ONE_TOKEN:
        raise SpecError(f"--record with --decoder {choice.decoder}", allowed="steps of one token a sequence")
    observers: list[Observer] = [metrics, record] if server.record is not None else [metrics]
    with opened_model(
        model, adapting.engine(choice), limits, policy, server.max_queue, observers, adapters
    ) as opened:
        adapting.load(adapters, name)
        metrics.watch(opened.service.snapshot)
        served = ModelService(
            name, opened.service, opened.text, opened.max_model_tokens, opened.vocabulary_size,
            opened.check_grammar, adapters, adapting.folder and adapting.folder.resolve(), bounds, metrics,
            opened.pooling,
        )  # fmt: skip
        state = opened.service.snapshot()
        room = state.num_blocks * state.block_tokens
        serve_until_told(served, metrics, address, listening, keys, lambda url: announce(url, room))
        if server.record is not None:
            record.write(server.record)
        totals = {**asdict(metrics.totals), "num_open": opened.service.snapshot().num_open}
        loads = opened.expert_loads()
        return totals if loads is None else {**totals, "experts": loads}


def opened_model(
    model: str | Path, choice: EngineChoice, limits: Limits, policy: ContinuousBatching, max_queue: int,
    observers: Sequence[Observer], adapters: ServedAdapters,
) -> OpenedModel | SimulatedModel:  # fmt: skip
    """The model on the engine that was chosen. Raises what its kind raises."""
    if choice.engine != SIMULATED:
        return OpenedModel(model, choice, limits, policy, max_queue, observers, adapters)
    if adapters.most:
        raise SpecError(
            "adapters of a model whose tokens are drawn", next="leave them out, or choose another engine"
        )
    from meshwright.api.servings.simulated_model import SimulatedModel

    return SimulatedModel(model, choice, limits, policy, max_queue, observers)


def check_packages() -> None:
    """Raise SpecError where a package is missing that a server needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(f"a server needs {', '.join(missing)}", next="pip install 'meshwright[serve]'")
