"""What a service is doing, asked whenever somebody reads /metrics: gauges under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from meshwright.serving.engine.served_adapters import name_of_key
from meshwright.serving.loop.service import ServiceState
from meshwright.serving.policy.batch import Batch
from meshwright.serving.request.request import Request

LABELS = ("model_name", "engine")


@dataclass(slots=True)
class _Adapted:
    """An open request with an adapter: its key, its outputs that have not ended, and whether it has begun."""

    adapter: str
    num_left: int
    is_running: bool = False


class AdapterRequests:
    """Requests with adapters that wait or run, as the loop sees them."""

    def __init__(self) -> None:
        self._open: dict[str, _Adapted] = {}

    def arrived(self, request: Request) -> None:
        """It waits."""
        if request.adapter:
            self._open[request.id] = _Adapted(request.adapter, request.num_outputs)

    def given_out(self, batch: Batch) -> None:
        """Who is in it runs."""
        if self._open:
            for chunk in batch.chunks:
                if (found := self._open.get(chunk.sequence.request.id)) is not None:
                    found.is_running = True

    def ended(self, request: Request) -> None:
        """One of its outputs has."""
        if (found := self._open.get(request.id)) is not None:
            found.num_left -= 1
            if not found.num_left:
                del self._open[request.id]

    def names(self, is_running: bool) -> str:
        """Of the adapters of those that run, or wait, with commas."""
        found = (each.adapter for each in list(self._open.values()) if each.is_running == is_running)
        return ",".join(sorted({name_of_key(key) for key in found}))


class ServiceGauges:
    """A collector of one service. `max_adapters` 0: nothing is told of adapters."""

    def __init__(
        self, snapshot: Callable[[], ServiceState], values: Sequence[str], adapted: AdapterRequests, max_adapters: int
    ) -> None:  # fmt: skip
        self._snapshot, self._values = snapshot, values
        self._adapted, self._max_adapters = adapted, max_adapters

    def collect(self) -> Iterator[Metric]:
        """The gauges as it is now."""
        state = self._snapshot()
        used = state.num_held_blocks / state.num_blocks
        swapped = state.num_held_host_blocks / max(1, state.num_host_blocks)
        gauges = {
            "num_requests_running": ("Outputs whose tokens are computed.", state.num_running),
            "num_requests_waiting": ("Requests that wait.", state.num_waiting),
            "kv_cache_usage_perc": ("Share of used blocks: 1 is all.", used),
            "gpu_cache_usage_perc": ("Its older name.", used),
            "cpu_cache_usage_perc": ("Share of used blocks in host memory.", swapped),
        }
        for name, (help, value) in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", help, labels=LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        yield self._blocks(state)
        if self._max_adapters:
            yield self._adapters()

    def _blocks(self, state: ServiceState) -> Metric:
        """An info: its value is always 1."""
        told = {
            "block_size": state.block_tokens, "num_gpu_blocks": state.num_blocks, "num_cpu_blocks": state.num_host_blocks,
            "enable_prefix_caching": True, "engine": self._values[1],
        }  # fmt: skip
        gauge = GaugeMetricFamily("vllm:cache_config_info", "Blocks of keys and values.", labels=list(told))
        gauge.add_metric([str(each) for each in told.values()], 1.0)
        return gauge

    def _adapters(self) -> Metric:
        """An info: its value is the time."""
        names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        gauge = GaugeMetricFamily("vllm:lora_requests_info", "Adapters of open requests.", labels=names)
        told = (str(self._max_adapters), self._adapted.names(False), self._adapted.names(True))
        gauge.add_metric(told, time.time())
        return gauge
