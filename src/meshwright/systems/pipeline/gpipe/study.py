"""GPipe on two processes of this machine: what recompute saves in memory, and what microbatches bring in speed."""

from __future__ import annotations

import statistics

import numpy as np

from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.plan.workload import Workload

NUM_PROCESSES = 2
GLOBAL_BATCH, SEQUENCE_LENGTH = 8, 256
# Four blocks a stage: activations of a batch are an order of magnitude above the parameters.
MODEL = ModelSpec.decoder(8, 128, 4, max_sequence_length=SEQUENCE_LENGTH, name="gpipe study")
MEMORY_ITERATIONS = 2
SPEED_ITERATIONS = 4
NUM_PAIRS = 11  # interleaved, as every comparison of speed in this project


def plan(num_microbatches: int, recompute: Recompute) -> Plan:
    """Two stages of four blocks on two processes."""
    return Plan.of(
        MODEL,
        Cluster.detect(NUM_PROCESSES),
        Workload(GLOBAL_BATCH, SEQUENCE_LENGTH),
        schedule="gpipe",
        pp=NUM_PROCESSES,
        dp=1,
        microbatch_size=GLOBAL_BATCH // num_microbatches,
        recompute=recompute,
    )


def job(num_microbatches: int, recompute: Recompute, iterations: int, measures_memory: bool) -> Job:
    """The plan as a job on random tokens."""
    chosen = plan(num_microbatches, recompute)
    training = TrainingConfig(MODEL, chosen.layers_per_stage, SEQUENCE_LENGTH, source=RANDOM)
    program = lower(chosen, registered()["gpipe"])
    return Job.of(program, iterations, training=training, measures_memory=measures_memory)


def activation_peak_bytes(trace: Trace, device: int) -> float:
    """Measured peak of live storages, less parameters and optimizer state (the least that is ever alive) and gradients."""
    curve = next(curve for curve in trace.memory if curve.device == device)
    groups = trace.program.tables.groups
    stages = {hop.stage for path in trace.program.tables.paths for hop in path if hop.device == device}
    gradients = sum(group.bytes for group in groups if stages & set(group.stages))
    return peak_bytes(trace, device) - float(curve.bytes.min()) - gradients


def memory_ratio(num_microbatches: int) -> float:
    """Measured peak of activations without over with recompute, on the last stage."""
    found = []
    with Pool(NUM_PROCESSES) as pool:
        for recompute in ("none", "full"):
            result = pool.run(job(num_microbatches, recompute, MEMORY_ITERATIONS, measures_memory=True))
            assert result.trace is not None, "a job that is not interrupted has a trace"
            found.append(activation_peak_bytes(result.trace, NUM_PROCESSES - 1))
    return found[0] / found[1]


def speed_up(num_microbatches: int) -> float:
    """Measured speed-up over one microbatch at the same batch: median ratio of interleaved pairs."""
    jobs = [job(count, "none", SPEED_ITERATIONS, measures_memory=False) for count in (1, num_microbatches)]
    ratios = []
    with Pool(NUM_PROCESSES) as pool:
        for _ in range(NUM_PAIRS):
            one, many = (step_s(pool.run(each).trace) for each in jobs)
            ratios.append(one / many)
    return statistics.median(ratios)


def step_s(trace: Trace | None) -> float:
    """Median seconds between the ends of successive iterations."""
    assert trace is not None, "a job that is not interrupted has a trace"
    return float(np.median(np.diff(trace.end_s.max(axis=1))))
