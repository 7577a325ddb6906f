"""`import_plan`, `compare_log` and `compare_profile`: configurations, logs and profiles of other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright import catalog
from meshwright.api.subjects.loading import cluster_named
from meshwright.api.subjects.simulating import simulate
from meshwright.api.subjects.subject import subject
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.config.source import load_model
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

if TYPE_CHECKING:
    from meshwright.evidence.log_comparison import LogComparison
    from meshwright.evidence.profile_comparison import ProfileComparison
    from meshwright.interop.imported import Imported

PathLike = str | os.PathLike[str]


def import_plan(
    path: PathLike,
    format: str,
    *,
    model: str | ModelSpec | None = None,
    cluster: str = "",
    gpus: int | None = None,
    seq: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    vocab: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Imported:
    """A plan from another program's configuration, with what was understood, what does not matter, and what is unknown.

    Args:
        path: the file.
        format: "megatron" (a shell script or text with its options), "torchtitan" (TOML) or "deepspeed" (JSON).
        model: where the file does not say it, or in place of the file's: a preset, a config.json, or a ModelSpec.
        cluster: what the job runs on: "8x8xH100", "H100", or a .toml file.
        gpus, seq, global_batch, micro_batch: what the file does not say (sequences of a step, of a microbatch).
        vocab: tokens of the tokenizer, before padding.
        variables: values of a script's own variables that are set outside it.

    Raises PlanError with the flag for what is missing, UnknownNameError for a format or a model that is not known.
    """
    from meshwright.interop import Given
    from meshwright.interop import import_plan as read

    given = Given(
        None if model is None else load_model(model),
        cluster,
        gpus,
        seq,
        global_batch,
        micro_batch,
        vocab,
        variables or {},
    )
    return read(Path(path), format, given)


def compare_log(
    plan: Plan | PathLike,
    log: PathLike,
    *,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | PathLike | None = None,
    extrapolate: bool = False,
) -> LogComparison:
    """A plan's predicted step beside the steps of a log (Megatron-LM, torchtitan, our JSON or trace).

    Args:
        plan: a plan or its file.
        log: the log's file; its format is found by its content.
        cluster: where the plan runs; None: the cluster that the plan names.
        profile: of `calibrate --from-log`, by whose runs the prediction is corrected.
        extrapolate: predict for devices that were never measured, too, by their data sheet.

    Raises PlanError for such devices otherwise, and SpecError for a log in which nothing is recognised.
    """
    from meshwright.evidence.log_comparison import compare_log as compare
    from meshwright.interop.training_log import read_run

    chosen = plan if isinstance(plan, Plan) else Plan.load(plan)
    where = cluster_named(cluster or chosen.cluster)
    run = read_run(Path(log), tokens_per_device=chosen.workload.tokens_per_step / chosen.num_devices)
    from meshwright.prediction.memory_estimate import estimate_memory
    from meshwright.prediction.own_runs.own_stack import OwnStack
    from meshwright.prediction.predicted import predict

    schedule, stack = catalog.find_schedule(chosen.schedule), OwnStack.of(profile, where)
    estimate = stack.of_plan(predict(chosen, where, schedule=schedule, extrapolate=extrapolate))
    peak = None
    if run.peak_bytes is not None:
        memory = estimate_memory(chosen, where, schedule)
        peak = memory.reserved_bytes if run.memory_kind == "reserved" else memory.allocated_bytes
    return compare(
        estimate.step,
        estimate.parts,
        run,
        chosen,
        factor=estimate.factor,
        predicted_peak_bytes=peak,
        flops=estimate.flops,
    )


def compare_profile(
    predicted: Trace | Plan | PathLike,
    files: PathLike | Sequence[PathLike],
    *,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    extrapolate: bool = False,
) -> ProfileComparison:
    """A prediction beside traces that torch.profiler wrote, one a rank, of a job of any framework.

    Args:
        predicted: a plan or its file, or the trace that `simulate` made of one.
        files: .json or .json.gz files, or folders of such.
        cluster, profile, extrapolate: of a plan, as in `simulate`.

    Raises SpecError for files that are no such traces, and what `simulate` raises for the plan.
    """
    from meshwright.evidence.profile_comparison import compare_profile as compare
    from meshwright.interop.profiler.profiled_job import read_profile

    given = [files] if isinstance(files, str | os.PathLike) else files
    job = read_profile([Path(file) for file in given])
    if not isinstance(predicted, Trace | Plan) and Path(predicted).suffix == ".npz":
        predicted = Trace.load(Path(predicted))
    if isinstance(predicted, Trace):
        return compare(predicted, job)
    made = subject(predicted, cluster=cluster, profile=profile, extrapolate=extrapolate)
    peak = None if made.memory is None else made.memory.allocated_bytes
    return compare(simulate(made), job, peak)
