"""Fleet: replicas of one plan under one load, on virtual time, and what became of every request."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from meshwright.costs.roofline import LINK_EFFICIENCY
from meshwright.serving.decoder.decoder import decoder_of
from meshwright.serving.engine.engine import INFINITY
from meshwright.serving.fleet.clients import serve_clients
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.occupancy_log import OccupancyLog
from meshwright.serving.loop.request_log import RequestLog, RequestRecord
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.request.request import Request
from meshwright.serving.routing.router import Router
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.proposed.simulated_decoder import SimulatedDecoder, draft_program
from meshwright.serving.simulated.replica_memory import check_neighbours, replica_memory, token_bytes
from meshwright.serving.simulated.step_model import StepModel
from meshwright.specs.error import PlanError


@dataclass(frozen=True)
class Served:
    """What a load did to a fleet. Attributes: logs of its replicas, blocks that each has, CPU seconds of the loops, and how
    full each replica was, where that was noted."""

    logs: tuple[RequestLog, ...]
    num_blocks: int
    simulate_s: float
    occupancies: tuple[OccupancyLog, ...] = ()


def serve(
    plan: ServingPlan,
    program: ForwardProgram,
    steps: StepModel,
    requests: Items[Request],
    max_model_tokens: int,
    num_clients: int = 0,
    think_s: float = 0.0,
    is_watched: bool = False,
) -> Served:
    """Run a load on the replicas of a plan. `num_clients`: each sends its next request `think_s` seconds after its last
    has ended (0: requests come when they say). `is_watched`: is it noted how full each replica is? Raises OutOfMemoryError
    where the model does not fit, PlanError for clients of prompts apart."""
    limits = plan.limits(max_model_tokens)
    check_neighbours(program, plan.replicas)
    decoder = decoder_of(plan.decoder)
    draft = draft_program(decoder, program)
    simulated = SimulatedDecoder.of(decoder, draft)
    num_blocks = replica_memory(program, limits, plan.block_tokens, beside=draft).num_blocks
    steps.step(BatchShape.of((), 1, 1))  # a table is made when it is first asked: before the loops are timed

    made: list[SimulatedReplica] = []

    def replicas(number: int, is_prefilled: bool = False) -> list[SimulatedReplica]:
        own = [
            SimulatedReplica(
                steps,
                num_blocks,
                plan.block_tokens,
                limits,
                plan.layout.pp,
                is_prefilled,
                simulated,
                is_watched,
            )
            for _ in range(number)
        ]
        made.extend(own)
        return own

    if plan.num_prefill and num_clients:
        raise PlanError("prompts apart, for clients who wait", allowed="requests at times of their own")
    began_s = time.process_time()
    if num_clients:
        logs = serve_clients(replicas(plan.replicas), plan.router, ClosedLoop(requests, num_clients, think_s))
    elif plan.num_prefill:
        logs = _apart(plan, program, requests, replicas)
    else:
        logs = _run(replicas(plan.replicas), plan.router, requests)
    occupancies = tuple(each.occupancy for each in made) if is_watched else ()
    return Served(logs, num_blocks, time.process_time() - began_s, occupancies)


def _run(replicas: Items[SimulatedReplica], name: str, requests: Items[Request]) -> tuple[RequestLog, ...]:
    """Give every request to the replica that the router chooses when it comes."""
    if len(replicas) == 1:
        replicas[0].serve(RecordedArrivals(requests))
        return (replicas[0].log,)
    router = Router(name, len(replicas), replicas[0].pool.num_blocks)
    for number, each in enumerate(replicas):
        each.arrivals.on_end = partial(_ended, router, number)
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    horizons = [*(after.arrival_s for _, after in pairwise(ordered)), INFINITY]
    for request, horizon_s in zip(ordered, horizons, strict=True):
        for each in replicas:
            each.advance(request.arrival_s)
        chosen = replicas[router.give(request)]
        for each in replicas:
            each.arrivals.horizon_s = horizon_s
        chosen.give(request)
    for each in replicas:
        each.advance(INFINITY)
    return tuple(each.log for each in replicas)


def _ended(router: Router, number: int, request: Request, now_s: float) -> None:
    """A replica's request: its router is told."""
    router.ended(number)


def _apart(
    plan: ServingPlan,
    program: ForwardProgram,
    requests: Items[Request],
    replicas: Callable[..., list[SimulatedReplica]],
) -> tuple[RequestLog, ...]:
    """Prompts and first tokens on some replicas, then the keys and values on the wire, then all else on the others.

    Each prefilling replica sends to one at a time. Its blocks are free when a prompt is computed: those that still wait for
    the wire are not counted.
    """
    first = _run(replicas(plan.num_prefill), plan.router, [_prompt_only(each) for each in requests])
    whole = {each.id: each for each in requests}
    coming: list[Request] = []
    for log in first:
        free_s = 0.0
        for record in sorted(log.records, key=lambda each: each.end_s):
            record.request = request = whole[record.request.id]
            if _num_output(request) > 1:
                free_s = max(free_s, record.end_s) + _transfer_s(plan, program, request.num_prompt_tokens)
                coming.append(replace(request, arrival_s=free_s))
    second = _run(replicas(plan.replicas - plan.num_prefill, is_prefilled=True), plan.router, coming)
    decoded = {record.request.id: record for log in second for record in log.records}
    never = {request.id for log in second for request in log.never}
    for log in first:
        log.never += [record.request for record in log.records if record.request.id in never]
        log.records = [record for record in log.records if record.request.id not in never]
        for record in log.records:
            if record.request.id in decoded:
                _go_on(record, decoded[record.request.id])
    return (*first, *(_steps_only(log) for log in second))


def _prompt_only(request: Request) -> Request:
    return replace(request, max_output_tokens=1, num_output_tokens=1)


def _num_output(request: Request) -> int:
    return request.num_output_tokens or request.max_output_tokens


def _go_on(record: RequestRecord, later: RequestRecord) -> None:
    """The record of a prompt takes up what became of its output."""
    record.end_s, record.num_tokens, record.reason = later.end_s, later.num_tokens, later.reason
    record.num_preemptions += later.num_preemptions


def _steps_only(log: RequestLog) -> RequestLog:
    """The steps of a replica whose requests stand in another's log."""
    found = RequestLog()
    found.steps = log.steps
    return found


def _transfer_s(plan: ServingPlan, program: ForwardProgram, num_tokens: int) -> float:
    """Keys and values of a prompt from the devices of the first replica to those of the last, each its own share."""
    cluster, number = program.cluster, plan.layout.num_devices
    source, target = 0, (plan.replicas - 1) * number
    holders = plan.layout.attention_tp * plan.layout.pp  # of the keys and values of one sequence
    share_bytes = token_bytes(program) * num_tokens / holders
    rate = cluster.bandwidth_bytes_per_s(source, target) * LINK_EFFICIENCY
    return cluster.latency_s(source, target) + share_bytes / rate
