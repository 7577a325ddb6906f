"""The application of a front: what generates goes where the router says, health and metrics are of all replicas."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshwright.serving.api.error import BAD_REQUEST, UNAVAILABLE, ApiError
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.guard import GENERATING, Guard
from meshwright.serving.api.http.lifecycle import Lifecycle, Status
from meshwright.serving.api.http.route.adapter_route import LOAD, UNLOAD
from meshwright.serving.api.http.route.status_route import METRICS_TYPE
from meshwright.serving.api.http.server import ServedApp
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.forwarding import ForwardCounts, Forwarding
from meshwright.serving.front.front_metrics import FrontMetrics
from meshwright.serving.front.replicas import Replicas

HEALTH, READY, METRICS = "/health", "/ready", "/metrics"
ADAPTERS = (LOAD, UNLOAD)
KNOWN = (
    *ADAPTERS,
    HEALTH,
    READY,
    METRICS,
    *GENERATING,
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/openapi.json",
    "/v1/messages/count_tokens",
)
COUNTS = ("num_running", "num_waiting")


class _Route(NamedTuple):
    """A path under which requests are counted."""

    path: str


class Front:
    """An ASGI application around replicas."""

    def __init__(self, replicas: Replicas, limits: ServerLimits, lifecycle: Lifecycle) -> None:
        counts = ForwardCounts()
        self.metrics = FrontMetrics(replicas, counts)
        self._replicas, self._lifecycle = replicas, lifecycle
        self._forwarding = Forwarding(replicas, limits, counts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ApiError."""
        if scope["type"] != "http":
            raise ApiError(BAD_REQUEST, "only HTTP is spoken here")
        path = scope["path"]
        scope["route"] = _Route(path if path in KNOWN else "none")
        if path in GENERATING:
            await self._forwarding.generate(scope, receive, send)
        elif path in ADAPTERS:
            await self._forwarding.tell_all(scope, receive, send)
        elif scope["method"] == "GET" and path in (HEALTH, READY):
            await self._health(path == READY)(scope, receive, send)
        elif scope["method"] == "GET" and path == METRICS:
            await Response(await self.metrics.text(), media_type=METRICS_TYPE)(scope, receive, send)
        else:
            await self._forwarding.look_up(scope, receive, send)

    def _health(self, asks_ready: bool) -> Response:
        """It is ready with one replica that is, and well with one that begins to be."""
        states = self._replicas.states()
        serves = any(
            each.status == "ready" or (each.status == "starting" and not asks_ready) for each in states
        )
        status: Status = "ready" if asks_ready else "ok"
        if self._lifecycle.is_draining:
            status = "draining" if asks_ready else "ok"
        elif not serves:
            status = "failed"
        told: dict[str, Any] = {"status": status}
        told |= {name: sum(int(each.load.get(name, 0)) for each in states) for name in COUNTS}
        told["replicas"] = [
            {"status": each.status, "num_open": each.num_open, "num_starts": each.num_starts}
            for each in states
        ]
        is_good = status in ("ok", "ready")
        return Response(json.dumps(told), 200 if is_good else UNAVAILABLE, media_type="application/json")


def front_of(replicas: Replicas, limits: ServerLimits, keys: ApiKeys) -> ServedApp:
    """A front as something to serve; its replicas live as long."""
    lifecycle = Lifecycle()
    front = Front(replicas, limits, lifecycle)
    return ServedApp(
        Guard(front, keys, limits, lifecycle, front.metrics), limits, lifecycle, replicas.drain, replicas
    )
