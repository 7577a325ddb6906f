"""`plan_load`: which layouts of a cluster serve a load, within which times, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright import catalog
from meshwright.api.loads.load_request import USUAL_OBJECTIVE, requests_of
from meshwright.api.subjects.loading import cluster_named
from meshwright.api.subjects.routing import busiest_load, routing_of
from meshwright.planner.serving.replica_steps import ExpertLoad, of_chance
from meshwright.planner.serving.serving_search import ServingPlans, ServingSearch
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import PathLike
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.routing_trace import RoutingTrace

FORMATS = (
    "bfloat16",
    "float16",
    "float32",
    "float8",
)  # of linear layers; the first where nobody says another


def plan_load(
    model: str | ModelSpec,
    cluster: str | ClusterSpec,
    requests: PathLike | Sequence[Request],
    *,
    slo: LatencyObjective = USUAL_OBJECTIVE,
    fix: Mapping[str, Any] | None = None,
    clients: int = 0,
    think_s: float = 0.0,
    planner: str | None = None,
    step_table: bool = True,
    routing: PathLike | RoutingTrace | None = None,
    expert_placement: str = "",
    progress: Callable[[str, float], None] | None = None,
) -> ServingPlans:
    """Simulate a load on the layouts of a cluster, with the scheduler that serves: best first.

    Args:
        model, cluster: as `Model` and `Cluster` take them.
        requests: their file, "lengths(prompt=500, output=200)" (all at once, unless there are clients), or they themselves by
            arrival.
        slo: within which a request is good; 2 s to the first token and 100 ms for each other, where nothing is said.
        fix: what is decided: tp, pp, ep, attention_dp, replicas, num_prefill, max_batch_tokens, max_sequences, router,
            block_tokens, weights, sums, step, decoder, dtype. With tp and replicas nothing else is varied.
        clients: so many, each of whom sends its next request when its last has ended; 0: requests come at their times.
        think_s: that each of them waits before its next one.
        planner: another search than ours: a name of `meshwright list serving_planners`, or ./mine.py:NAME.
        step_table: False simulates every batch as its program.
        routing: a trace of the model's, or its file: by it experts of the busiest device of ep have their rows.
        expert_placement: with it, a file of a placement for as many devices, or a name of the slot `expert_placement`.
        progress: called with a plan in words and the share of its round that is done.

    Raises SpecError, PlanError and UnknownNameError for what cannot be, OutOfMemoryError where nothing fits.
    """
    load = (
        requests
        if isinstance(requests, Sequence) and not isinstance(requests, str)
        else requests_of(requests)
    )
    decided = dict(fix or {})
    dtype = str(decided.pop("dtype", FORMATS[0]))
    if dtype not in FORMATS:
        raise UnknownNameError("number format of a model that serves", dtype, FORMATS)
    found = None if planner is None else catalog.filler("serving_planner", planner)
    spec = load_model(model)
    search = ServingSearch(
        spec, cluster_named(cluster), load, slo, decided, step_table, dtype, clients, found, think_s=think_s,
        expert_load=load_of_experts(spec, routing, expert_placement),
    )  # fmt: skip
    if progress is not None:
        search.progress = progress
    return search.run()


def load_of_experts(
    model: ModelSpec, routing: PathLike | RoutingTrace | None, placement: str = ""
) -> ExpertLoad:
    """By how many devices whole experts are on, rows of the busiest over the mean, as a routing says; without one of chance.

    Raises SpecError where the routing is of another model, or a placement comes without one.
    """
    if routing is None:
        if placement:
            raise SpecError("an expert placement without a routing", next="give a routing trace, too")
        return of_chance
    trace = routing_of(model, routing)

    def load(num_devices: int) -> float:
        if num_devices == 1:
            return 1.0
        return busiest_load(trace, placement, num_devices, takes_copies=False)

    return load
