"""/metrics of a front: its own, and those of its replicas, with the label `engine` as of vLLM's data-parallel ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import httpx2 as httpx
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from meshwright.serving.front.forwarding import ForwardCounts
from meshwright.serving.front.replicas import Replicas, ReplicaState

READ_S = 5.0  # that a replica may take to tell its metrics
ENGINE = ("engine",)
OF_FRONT = ("http_requests", "http_requests_created")  # counted here and not by replicas


class FrontMetrics:
    """Of one front."""

    def __init__(self, replicas: Replicas, counts: ForwardCounts) -> None:
        self._replicas, self._counts = replicas, counts
        self._registry = CollectorRegistry()
        handlers = ("handler", "method", "status")
        self._http = Counter("http_requests", "HTTP requests.", handlers, registry=self._registry)

    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered."""
        self._http.labels(handler, method, f"{status // 100}xx" if status else "none").inc()

    async def text(self) -> bytes:
        """As Prometheus reads it; a replica that does not tell its own is left out."""
        states = self._replicas.states()
        texts = await asyncio.gather(
            *(self._of(number) for number, each in enumerate(states) if each.status == "ready")
        )
        told = CollectorRegistry()
        told.register(_Told([*merged(texts), *_own(states, self._counts)]))
        return generate_latest(self._registry) + generate_latest(told)

    async def _of(self, number: int) -> tuple[int, str]:
        try:
            return number, (await self._replicas.client(number).get("/metrics", timeout=READ_S)).text
        except httpx.HTTPError:
            return number, ""


def merged(texts: Sequence[tuple[int, str]]) -> list[Metric]:
    """Metrics of several replicas under one name each; the label `engine` of every sample is its replica's number."""
    found: dict[str, Metric] = {}
    for number, text in texts:
        for family in text_string_to_metric_families(text):
            if family.name in OF_FRONT:
                continue
            metric = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "engine": str(number)}
                metric.samples.append(sample._replace(labels=labels))
    return list(found.values())


def _own(states: Sequence[ReplicaState], counts: ForwardCounts) -> Iterator[Metric]:
    ready = GaugeMetricFamily("meshwright:replica_ready", "Does it take requests?", labels=ENGINE)
    starts = CounterMetricFamily("meshwright:replica_starts", "How often it was started.", labels=ENGINE)
    under_way = GaugeMetricFamily("meshwright:replica_requests", "Requests that it was given.", labels=ENGINE)
    for number, each in enumerate(states):
        ready.add_metric((str(number),), each.status == "ready")
        starts.add_metric((str(number),), each.num_starts)
        under_way.add_metric((str(number),), each.num_open)
    yield from (ready, starts, under_way)
    for name, help, value in (
        ("asked_again", "Requests that another replica was asked.", counts.num_asked_again),
        ("broken", "Streams that broke because a replica was lost.", counts.num_broken),
    ):
        yield CounterMetricFamily(f"meshwright:requests_{name}", help, value)


class _Told:
    """Metrics as a collector."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All."""
        yield from self._metrics
