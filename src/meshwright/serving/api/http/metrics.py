"""/metrics: what Prometheus reads, under the names and with the labels that vLLM's users have in their dashboards.

Names and buckets: vLLM's docs/design/metrics.md and vllm/v1/metrics/loggers.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from meshwright.serving.api.generation.generation import Generation
from meshwright.serving.api.http.service_gauge import LABELS, AdapterRequests, ServiceGauges
from meshwright.serving.engine.engine import StepResult
from meshwright.serving.loop.service import ServiceState
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
NEXT_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680
)  # fmt: skip
NUM_CHOICES = (1, 2, 5, 10, 20)


def token_buckets(most: int) -> list[int]:
    """1, 2, 5, 10, ... up to a number of tokens."""
    every = [digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5)]
    return [bound for bound in every if bound <= most]


class ServerMetrics:
    """Of one server with one model: it observes generations on the server's side, and steps in the service's thread.

    Args:
        model: the label model_name.
        max_model_tokens: the last bucket of token counts.
        max_adapters: that may be loaded at the same time; 0: none is served.
    """

    def __init__(self, model: str, max_model_tokens: int, max_adapters: int = 0) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._adapted, self._max_adapters = AdapterRequests(), max_adapters
        self._values = (model, "0")
        counts = token_buckets(max_model_tokens)
        self._first = self._histogram("time_to_first_token_seconds", "Until the first token.", FIRST_TOKEN_S)
        self._next = self._histogram("inter_token_latency_seconds", "Between tokens.", NEXT_TOKEN_S)
        self._per_token = self._histogram("time_per_output_token_seconds", "Its older name.", NEXT_TOKEN_S)
        self._mean_token = self._histogram(
            "request_time_per_output_token_seconds", "Between tokens, the mean of a request.", NEXT_TOKEN_S
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "Until a request ended.", REQUEST_S)
        self._queued = self._histogram("request_queue_time_seconds", "Until its first step.", REQUEST_S)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From there to its first token.", REQUEST_S
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From there to its last token.", REQUEST_S
        )
        self._running = self._histogram(
            "request_inference_time_seconds", "From its first step to its last.", REQUEST_S
        )
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", counts)
        self._output = self._histogram("request_generation_tokens", "Tokens of its outputs.", counts)
        self._asked = self._histogram("request_params_max_tokens", "Tokens asked for.", counts)
        self._longest = self._histogram(
            "request_max_num_generation_tokens",
            "Tokens of an output, at most, by what was asked for.",
            counts,
        )
        self._choices = self._histogram("request_params_n", "Outputs asked for.", NUM_CHOICES)
        self._step = self._histogram("iteration_tokens_total", "Tokens of a step.", counts)
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts, computed or found.")
        self._output_tokens = self._counter("generation_tokens", "Tokens that were generated.")
        self._looked_up = self._counter("prefix_cache_queries", "Tokens of prompts that were looked up.")
        self._found = self._counter("prefix_cache_hits", "Tokens of prompts that were found computed.")
        self._preempted = self._counter("num_preemptions", "Sequences that had to leave.")
        self._drafts = self._counter("spec_decode_num_drafts", "Times that tokens were proposed.")
        self._proposed = self._counter("spec_decode_num_draft_tokens", "Tokens that were proposed.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Of these, accepted.")
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted, by their place in the proposal.",
            (*LABELS, "position"), registry=self._registry,
        )  # fmt: skip
        reasons = (*LABELS, "finished_reason")
        self._success = Counter(
            "vllm:request_success", "Requests that ended.", reasons, registry=self._registry
        )
        handlers = ("handler", "method", "status")
        self._http = Counter("http_requests", "HTTP requests.", handlers, registry=self._registry)
        self._times: dict[str, _Times] = {}
        self.totals = ServerTotals()

    def watch(self, snapshot: Callable[[], ServiceState]) -> None:
        """Ask the service, too, whenever somebody reads."""
        self._registry.register(ServiceGauges(snapshot, self._values, self._adapted, self._max_adapters))

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)

    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered."""
        self._http.labels(handler, method, f"{status // 100}xx" if status else "none").inc()

    # -- generations, as the server sees them

    def began(self, generation: Generation) -> None:
        """It was submitted."""
        self.totals.num_requests += 1
        self._choices.observe(generation.request.num_outputs)
        self._asked.observe(generation.request.max_output_tokens)
        self._longest.observe(generation.request.max_output_tokens)

    def came(self, generation: Generation, num_tokens: int, seconds: float, is_first: bool) -> None:
        """Tokens came."""
        self._output_tokens.inc(num_tokens)
        self.totals.num_output_tokens += num_tokens
        if is_first:
            self._first.observe(seconds)
            self._prompt_tokens.inc(generation.request.num_prompt_tokens)
            self.totals.num_prompt_tokens += generation.request.num_prompt_tokens
            return
        self._next.observe(seconds)
        self._per_token.observe(seconds)

    def ended(self, generation: Generation, reason: str) -> None:
        """Nothing follows."""
        self._success.labels(*self._values, reason).inc()
        self._whole.observe(time.monotonic() - generation.began_s)
        self._prompt.observe(generation.request.num_prompt_tokens)
        self._output.observe(generation.num_output_tokens)
        if generation.request.num_outputs == 1 and generation.num_output_tokens > 1:
            span_s = generation.last_s - generation.first_s
            self._mean_token.observe(span_s / (generation.num_output_tokens - 1))

    # -- steps, as the loop sees them

    def arrived(self, request: Request, now_s: float) -> None:
        """It waits."""
        self._adapted.arrived(request)

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """The server knows already."""

    def given_out(self, batch: Batch, now_s: float) -> None:
        """Some begin, some had to leave."""
        self._preempted.inc(len(batch.preempted))
        self._adapted.given_out(batch)
        for chunk in batch.chunks:
            sequence = chunk.sequence
            if (
                sequence.output == 0
                and chunk.start == max(0, sequence.num_cached)
                and not sequence.num_preemptions
            ):
                self._queued.observe(max(0.0, now_s - sequence.request.arrival_s))
                self._looked_up.inc(sequence.request.num_prompt_tokens)
                self._found.inc(max(0, sequence.num_cached))
                self._times[sequence.request.id] = _Times(now_s)

    def ran(self, result: StepResult) -> None:
        """Some got their first token, some their last."""
        self._step.observe(result.batch.num_tokens)
        for _, num_proposed, num_accepted in result.speculated:
            self._drafts.inc()
            self._proposed.inc(num_proposed)
            self._accepted.inc(num_accepted)
            for position in range(num_accepted):
                self._accepted_at.labels(*self._values, str(position)).inc()
        for chunk in result.batch.chunks:
            times = self._times.get(chunk.sequence.request.id)
            if chunk.is_last and times is not None and not times.first_s:
                times.first_s = result.end_s
                self._prefill.observe(result.end_s - times.begun_s)
        for ended in result.ended:
            self._adapted.ended(ended.sequence.request)
            times = self._times.pop(ended.sequence.request.id, None) if ended.sequence.output == 0 else None
            if times is not None:
                self._decode.observe(result.end_s - times.first_s)
                self._running.observe(result.end_s - times.begun_s)

    def left(self, sequence: Sequence, now_s: float, reason: str) -> None:
        """One was ended."""
        self._adapted.ended(sequence.request)
        self._times.pop(sequence.request.id, None)

    def _histogram(self, name: str, help: str, buckets: Iterable[float]) -> Histogram:
        made = Histogram(f"vllm:{name}", help, LABELS, buckets=tuple(buckets), registry=self._registry)
        return made.labels(*self._values)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, LABELS, registry=self._registry).labels(*self._values)


@dataclass(slots=True)
class ServerTotals:
    """What a server did: requests that were taken, tokens of prompts that were computed, tokens that came out."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(slots=True)
class _Times:
    """Of the first output of a request: when its first step was given out, and when its first token came (0: not yet)."""

    begun_s: float
    first_s: float = 0.0
