"""Parts beside experts here: two gloo processes that hold half of the experts each train as one does, and overlap; a layer of
the user's that is measured as it trains, and its gates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.training.job_report import JobReport, Said
from meshwright.stage.mesh import data_axes
from meshwright.systems.moe.fs_moe import gates
from meshwright.systems.moe.fs_moe.job import LayerProfile, fitted_part, lines_of, step_seconds_of
from meshwright.systems.moe.fs_moe.planner import EXPERTS, ROUTE
from meshwright.systems.moe.fs_moe.routing_function import NOT_CAUSAL, RoutingFunction

NUM_PROCESSES, NUM_STEPS, SAMPLES = 2, 3, 4  # samples of each process, one microbatch
PARTS, CALLS = (1, 2, 4, 8), 12  # parts that are measured; calls of a gate, the first of which does not count
UNDISTURBED = 0.25
TEMPERATURE = 0.07  # a cosine's, where X-MoE's learning begins
PartSeconds = tuple[
    float, float, float
]  # of a part's experts in a forward, of one all-to-all of its tokens, and of a step
MODEL = ModelSpec.decoder(2, 48, 4, vocabulary_size=96, max_sequence_length=32, name="four experts").changed(
    architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=40
)


def trained(
    model: ModelSpec, num_processes: int, token_parts: int, pool: Pool, num_steps: int = NUM_STEPS, dtype: str = "float64",
    global_batch: int = NUM_PROCESSES * SAMPLES, microbatch: int = SAMPLES, link_bytes_per_s: float = 0.0,
    overlap: tuple[str, ...] = Plan.overlap,
) -> JobResult:  # fmt: skip
    """Experts over all processes, microbatches in so many parts; the batch is the same for any number of processes.

    `link_bytes_per_s`: what a process sends to another waits for a token bucket of this rate, without computing, as on a
    wire; 0: nothing is slowed, and a message is a copy that the host's cores make.
    """
    workload = Workload(global_batch, model.max_sequence_length)
    plan = Plan.of(
        model, Cluster.detect(num_processes), workload, ep=num_processes, token_parts=token_parts, dtype=dtype,
        microbatch_size=microbatch, overlap=overlap,
    )  # fmt: skip
    training = TrainingConfig(
        model, plan.layers_per_stage, workload.sequence_length, replace(OptimizerConfig(), clip_norm=None),
        source=RANDOM, layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    )  # fmt: skip
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    slowing = slowed_links(num_processes, link_bytes_per_s) if link_bytes_per_s else None
    return pool.run(Job.of(program, num_steps, training=training, dtype=dtype), slowing=slowing)


def slowed_links(num_processes: int, bytes_per_s: float) -> Slowing:
    """Every pair's link at that rate, each way; nothing leaves before it is paid for."""
    pairs = itertools.combinations(range(num_processes), 2)
    return Slowing(tuple(LinkLimit(one, other, bytes_per_s, burst_bytes=0.0) for one, other in pairs))


def even_link(result: JobResult) -> float:
    """Bytes/s of a link at which an all-to-all of whole microbatches takes as long as the experts' forward between two of
    them, by a run of whole microbatches."""
    trace = result.trace
    assert trace is not None, "a job that is not interrupted has a trace"
    num_sent = trace.start_s.shape[0] * int((_names(trace.program) == ROUTE).sum()) / trace.program.num_lists
    sent_bytes = max(each[ROUTE] for each in result.sent_bytes)
    return float(sent_bytes / num_sent / measured_rows(trace)[0])


def predicted_ratio(whole: PartSeconds, parted: PartSeconds, num_layers: int, parts: int) -> float:
    """A step in so many parts over one of whole microbatches by the closed form: startup and rate of experts and all-to-alls
    from what both took (`measured_rows`), and all else of the step as it was."""
    rows = {parts: whole, 1: parted}  # by tokens, in those of a part
    experts, sent = (fitted_part({tokens: row[n] for tokens, row in rows.items()}) for n in (0, 1))
    layer_s = step_seconds_of(sent, experts, (1, parts))
    return 1 - num_layers * (layer_s[1] - layer_s[parts]) / whole[2]


def parameter_difference(token_parts: int, pool: Pool | None = None) -> float:
    """Largest difference of any parameter to one process with whole microbatches, after three steps in float64."""
    return _difference(MODEL, token_parts, pool)


def gate_difference(gate: str, pool: Pool | None = None) -> float:
    """The same with another routing function, in two parts."""
    return _difference(RoutingFunction(gate)(MODEL), 2, pool)


def _difference(model: ModelSpec, token_parts: int, pool: Pool | None) -> float:
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours = trained(model, NUM_PROCESSES, token_parts, workers)
        alone = trained(model, 1, 1, workers)
    pairs = ((ours.parameters[name], alone.parameters[name]) for name in alone.parameters)
    return max(float((one - other).abs().max()) for one, other in pairs)


def overlapped_share(trace: Trace) -> float:
    """Of the seconds of all-to-alls of tokens, those in which their own process computes; of all iterations of a trace."""
    program = trace.program
    names = _names(program)
    streams = np.array(program.tables.streams)[program.columns.stream]
    sent, beside = 0.0, 0.0
    for rank in range(program.num_lists):
        own = program.list_of_row == rank
        for start, end in zip(trace.start_s, trace.end_s, strict=True):
            computes = list(
                zip(start[own & (streams == "compute")], end[own & (streams == "compute")], strict=True)
            )
            for begin, until in zip(
                start[own & (names == "ROUTE")], end[own & (names == "ROUTE")], strict=True
            ):
                sent += until - begin
                beside += sum(max(0.0, min(until, high) - max(begin, low)) for low, high in computes)
    return beside / sent if sent else 0.0


def _names(program: Program) -> NDArray[np.str_]:
    """Of every row."""
    return np.array([effect.name for effect in program.tables.effects])[program.columns.effect]


def profile_layer(job: LayerProfile, seed: int, said: Said, pool: Pool | None = None) -> JobReport:
    """Train the layer in 1, 2, 4 ... parts and time its gates. Raises SpecError as `LayerProfile.layer`, or for a batch
    that has no halves."""
    layer, parts = job.layer(), [each for each in PARTS if job.batch % each == 0]
    if len(parts) < 2:
        raise SpecError(
            f"{job.batch} sequences of a process", allowed="an even number: parts are whole sequences"
        )
    tokens, rows = job.batch * job.seq, dict[int, PartSeconds]()
    with opened_pool(pool, job.processes) as workers:
        for each in parts:
            said(f"{each} parts")
            made = trained(
                layer,
                job.processes,
                each,
                workers,
                job.steps,
                "float32",
                job.processes * job.batch,
                job.batch,
            )
            assert made.trace is not None
            rows[tokens // each] = measured_rows(made.trace)
    said("gates")
    timed = gate_seconds(layer, [tokens // each for each in parts], seed)
    fits = {
        **{f"gate, {name}": fitted_part(seconds) for name, seconds in timed.items()},
        "experts": fitted_part({each: row[0] for each, row in rows.items()}),
        "all-to-all": fitted_part({each: row[1] for each, row in rows.items()}),
    }
    form_s = step_seconds_of(fits["all-to-all"], fits["experts"], parts)
    measured_s = {each: rows[tokens // each][2] for each in parts}
    refused = f"refused in causal decoding: {NOT_CAUSAL}"
    data = {
        "parts": {
            name: {
                "startup_s": fit.cost.startup_s, "s_per_token": fit.cost.s_per_unit, "explained": fit.explained,
                "seconds_of_tokens": {str(key): value for key, value in fit.seconds_of.items()},
            }
            for name, fit in fits.items()
        },
        "closed_form_s": {str(key): value for key, value in form_s.items()},
        "measured_step_s": {str(key): value for key, value in measured_s.items()},
        "refused": {"expert_choice": refused},
    }  # fmt: skip
    return JobReport(lines_of(job, layer.name, fits, refused, form_s, measured_s), data)


def measured_rows(trace: Trace) -> PartSeconds:
    """Seconds of a part's experts in a forward, of one all-to-all of its tokens, and of a step; a quarter of what all ranks
    and all steps but the first took stays below: disturbances only add."""
    program, tables = trace.program, trace.program.tables
    names = _names(program)
    has = np.array([any(each.kind == EXPERTS for each in work.operators) for work in tables.works] + [False])
    took = (trace.end_s - trace.start_s)[1:]
    steps_s = trace.end_s[1:].max(1) - trace.start_s[1:].min(1)
    computed, sent = (names == "F") & has[program.columns.work], names == ROUTE
    return _undisturbed(took[:, computed]), _undisturbed(took[:, sent]), _undisturbed(steps_s)


def _undisturbed(seconds: NDArray[np.float64]) -> float:
    return float(np.quantile(seconds, UNDISTURBED))


def gate_seconds(model: ModelSpec, tokens: Sequence[int], seed: int) -> dict[str, dict[int, float]]:
    """Of routing functions, router and choice together, by tokens, on one thread as on a process that trains.

    Routers have the shapes of the model's; X-MoE's projects to half as many dimensions as there are experts.
    """
    experts = model.experts
    assert experts is not None, "a layer with experts"
    draw = torch.Generator().manual_seed(seed)
    num, top = experts.num_experts, experts.num_experts_per_token
    dimensions = max(2, num // 2)
    router_XH, projection_RH = (torch.randn(n, model.hidden_size, generator=draw) for n in (num, dimensions))
    embeddings_XR = torch.randn(num, dimensions, generator=draw)
    hidden_TH = torch.randn(max(tokens), model.hidden_size, generator=draw)
    functions: Mapping[str, Callable[[Tensor], object]] = {
        "gshard": lambda x_TH: gates.gshard(F.linear(x_TH, router_XH), draw),
        "sigmoid": lambda x_TH: gates.sigmoid(F.linear(x_TH, router_XH), top),
        "x_moe": lambda x_TH: gates.x_moe(x_TH, projection_RH, embeddings_XR, TEMPERATURE, top),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: {num: _call_s(each, hidden_TH[:num]) for num in tokens} for name, each in functions.items()
        }
    finally:
        torch.set_num_threads(threads)


def _call_s(call: Callable[[Tensor], object], hidden_TH: Tensor) -> float:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call(hidden_TH)
        times.append(time.perf_counter() - start)
    return _undisturbed(np.array(times[1:]))
