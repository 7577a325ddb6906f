"""`meshwright train`, `compare` and `calibrate`: running a plan, and predicted beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.command import command
from meshwright.cli.output import DONE, INTERRUPTED, Output, Result

if TYPE_CHECKING:
    from meshwright.api import Training
    from meshwright.evidence.compare import Comparison
    from meshwright.ir.trace import Trace
    from meshwright.specs.profile import Profile
    from meshwright.specs.slowing import Slowing

LOOP = "The loop"
DEFAULT_ITERATIONS = 20
SlowLink = Annotated[
    list[str] | None, typer.Option("--slow-link", help="Slow a link by a token bucket: 0-1=50MB/s.")
]
SlowProcess = Annotated[
    list[str] | None,
    typer.Option("--slow-process", help="Make computes of a process take longer: 1=2 (twice)."),
]
ADD_TOUCHES = 3  # arrays that a sum of two into a third touches


def add_to(app: typer.Typer) -> None:
    """Register the three commands."""
    command(app, "train", LOOP)(train)
    command(app, "compare", LOOP)(compare)
    command(app, "calibrate", LOOP)(calibrate)


def train(
    out: Output,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan (.toml).")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder or file of text, read as bytes (Python's own sources)."),
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Steps to train (20).")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Train by the clock instead.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Of AdamW (0.001).")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where the plan runs: a file or a name.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="What `calibrate -o` wrote, for the prediction.")
    ] = None,
    slow_link: SlowLink = None,
    slow_process: SlowProcess = None,
) -> Result:
    """Train by a plan on processes of this machine: the very program that `simulate` runs.

    -o writes .npz (the measured trace), .perfetto.json, .svg. Ctrl-C ends it with what was reached.
    """
    from meshwright import api
    from meshwright.api.training import LEARNING_RATE
    from meshwright.cli.progress import TrainingLine, live_line

    steps = DEFAULT_ITERATIONS if iterations is None and seconds is None else iterations
    with live_line(out) as line:
        done = api.run_training(
            plan, data=data, iterations=steps, seconds=seconds, seed=out.seed, cluster=cluster,
            learning_rate=LEARNING_RATE if learning_rate is None else learning_rate,
            progress=TrainingLine(line, steps, seconds), profile=read_profile(profile),
            slowing=_slowing(slow_link, slow_process),
        )  # fmt: skip
    return training_result(done)


def read_profile(path: Path | None) -> Profile | None:
    """A profile's file, where one is named; None: the user's own."""
    from meshwright.specs.profile import Profile

    return None if path is None else Profile.load(path)


def _slowing(links: Sequence[str] | None, processes: Sequence[str] | None) -> Slowing | None:
    """What the two options say, None where they say nothing."""
    from meshwright.specs.slowing import Slowing

    return Slowing.parse(links or (), processes or ()) if links or processes else None


def training_result(done: Training) -> Result:
    """Losses, rates and predicted beside measured of a finished or interrupted training."""
    from rich.text import Text

    from meshwright import api
    from meshwright.planner.description import describe

    data = training_figures(done)
    view: list[Any] = [Text(describe(done.plan), style="bold"), training_sentence(done)]
    code = INTERRUPTED if done.result.interrupted else DONE
    if done.trace is None or not done.trace.num_iterations:
        return Result(data, view, exit_code=code)
    comparison = api.compare(done.predicted, done.trace)
    view += comparison_view(comparison, done.predicted, done.trace)
    return Result(
        {**data, "comparison": comparison.to_dict()}, view, trace_files(done.trace),
        lambda: training_page(done, comparison), list(done.predicted.metadata.get("assumptions", ())), code,
    )  # fmt: skip


def training_figures(done: Training) -> dict[str, Any]:
    """What was reached, for --json."""
    return {
        "plan": done.predicted.metadata.get("label", ""),
        "num_iterations": len(done.iterations),
        "interrupted": done.result.interrupted,
        "losses": [iteration.loss for iteration in done.iterations],
        "tokens_per_s": done.tokens_per_s,
        "trained_s": sum(iteration.seconds for iteration in done.iterations),
        "digest": done.predicted.digest,
    }


def training_sentence(done: Training) -> str:
    """One line for people."""
    if not done.iterations:
        return "interrupted before the first step was done"
    first, last = done.iterations[0], done.iterations[-1]
    head = "interrupted after" if done.result.interrupted else "trained"
    return (
        f"{head} {len(done.iterations)} steps, {done.tokens_per_s:,.0f} tokens/s, "
        f"loss {first.loss:.3f} -> {last.loss:.3f} nats a token"
    )


def comparison_view(comparison: Comparison, predicted: Trace, measured: Trace) -> list[Any]:
    """The table, and both timelines on one scale, of the last iteration."""
    from meshwright.reports.comparison import comparison_table
    from meshwright.reports.terminal import TimelineView

    return [
        comparison_table(comparison.rows(), "predicted beside measured"),
        TimelineView({"predicted": predicted, "measured": measured}),
    ]


def training_page(
    done: Training, comparison: Comparison, title: str = "meshwright train", **parts: Any
) -> Any:
    """The page: both timelines, memory, loss, the comparison; `parts` are further fields of a Report."""
    from meshwright.ir import metrics
    from meshwright.planner.description import describe
    from meshwright.reports.quantity import quantity
    from meshwright.reports.report import Figure, Report

    trace = done.trace
    assert trace is not None, "a page is made of a training that left a trace"
    step = comparison.step
    ratio = (
        ""
        if step.predicted in (None, 0) or step.measured is None
        else f"{step.measured / step.predicted:.2f}x"
    )
    figures = [
        Figure("step", quantity(step.measured, "s"), f"predicted {quantity(step.predicted, 's')}, {ratio}"),
        Figure("tokens/s", f"{done.tokens_per_s:,.0f}"),
        Figure(
            "bubble",
            quantity(comparison.bubble.measured, "share"),
            f"predicted {quantity(comparison.bubble.predicted, 'share')}",
        ),
        Figure("loss", f"{done.iterations[-1].loss:.3f} nats", f"after {len(done.iterations)} steps"),
    ]
    fields: dict[str, Any] = {
        "predicted": done.predicted,
        "measured": trace,
        "subtitle": f"{done.plan.model.name} on {done.plan.num_devices} processes: {describe(done.plan)}",
        "figures": figures,
        "plan": [_plan_row(done)],
        "measured_peak_bytes": {c.device: metrics.peak_bytes(trace, c.device) for c in trace.memory},
        "loss": [(iteration.number + 1, iteration.loss) for iteration in done.iterations],
        "comparison": comparison.rows(),
        "assumptions": list(done.predicted.metadata.get("assumptions", ())),
    }
    return Report(title, **{**fields, **parts})


def trace_files(trace: Trace) -> dict[str, Any]:
    """The files that a measured trace can become."""
    from meshwright.cli.simulating import trace_forms

    return trace_forms(trace)


def compare(
    out: Output,
    predicted: Annotated[
        Path, typer.Argument(metavar="PREDICTED", help="A trace that `simulate -o` wrote, or a plan (.toml).")
    ],
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED",
            help="A trace that `train -o` wrote; beside a plan the log of a run (Megatron-LM, torchtitan).",
        ),
    ],
    different: Annotated[
        bool, typer.Option("--different", help="Compare traces of different programs all the same.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where the plan runs: a file or a name.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="A profile of `calibrate --from-log`, for a plan.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Predict for a chip or precision that was never seen, too.")
    ] = False,
) -> Result:
    """Say where a prediction was wrong: a plan beside the log of its run, or two traces name by name.

    -o writes .perfetto.json and .svg with both timelines, of two traces.
    """
    from meshwright import api

    there(predicted), there(measured)
    if predicted.suffix == ".toml":
        from meshwright.cli.plan_log import compared_log

        return compared_log(
            api.compare_log(predicted, measured, cluster=cluster, profile=profile, extrapolate=extrapolate)
        )
    if measured.suffix == ".toml":
        from meshwright.specs.error import SpecError

        raise SpecError(
            f"{measured} is a plan and stands behind {predicted}",
            allowed="compare PLAN LOG, or compare PREDICTED MEASURED with two traces (.npz)",
        )
    _no_plan_options(cluster, profile, extrapolate)
    return _compared_traces(predicted, measured, different)


def _no_plan_options(cluster: str | None, profile: Path | None, extrapolate: bool) -> None:
    """Options of a plan beside a log mean nothing for two traces."""
    from meshwright.specs.error import SpecError

    if cluster is not None or profile is not None or extrapolate:
        raise SpecError(
            "--cluster, --profile or --extrapolate is given with two traces",
            allowed="a plan (.toml) as PREDICTED",
        )


def _compared_traces(predicted: Path, measured: Path, different: bool) -> Result:
    from meshwright import api
    from meshwright.ir.trace import Trace
    from meshwright.reports.perfetto import write_perfetto
    from meshwright.reports.report import Report
    from meshwright.reports.svg import write_timeline_svg

    traces = {"predicted": Trace.load(predicted), "measured": Trace.load(measured)}
    found = api.compare(traces["predicted"], traces["measured"], allow_different=different)
    forms = {
        ".perfetto.json": lambda path: write_perfetto(traces, path),
        ".svg": lambda path: write_timeline_svg(traces, path),
    }
    return Result(
        found.to_dict(), comparison_view(found, traces["predicted"], traces["measured"]), forms,
        lambda: Report(
            "meshwright compare", predicted=traces["predicted"], measured=traces["measured"], comparison=found.rows()
        ),
        ["with three iterations or more the first is left out: it meets cold caches", "ratios are measured over predicted"],
    )  # fmt: skip


def calibrate(
    out: Output,
    processes: Annotated[int, typer.Option("--processes", help="How many are busy at once.")] = 2,
    effort: Annotated[str, typer.Option("--effort", help="full (about 20 s) or quick.")] = "full",
    from_log: Annotated[
        Path | None, typer.Option("--from-log", help="Do not measure: take the log of a run of --plan.")
    ] = None,
    from_trace: Annotated[
        Path | None, typer.Option("--from-trace", help="The same from a saved trace (.npz).")
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="The plan (.toml) of that run.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Where the plan ran.")] = None,
    slow_link: SlowLink = None,
    slow_process: SlowProcess = None,
) -> Result:
    """Measure this machine with all processes busy, and keep the profile for later predictions.

    With --slow-link or --slow-process it is a profile of the machine so slowed, which is not kept: write it with -o.
    With --from-log or --from-trace a profile of one factor, measured over predicted step. -o writes .profile.json.
    """
    from meshwright import api
    from meshwright.cli.progress import live_line
    from meshwright.specs.error import UnknownNameError
    from meshwright.specs.profile import cache_path

    if from_log is not None or from_trace is not None or plan is not None:
        from meshwright.cli.plan_log import calibrated_from_run

        _not_slowed(slow_link, slow_process)
        return calibrated_from_run(from_log, from_trace, plan, cluster)
    if effort not in ("full", "quick"):
        raise UnknownNameError("effort", effort, ("full", "quick"))
    slowing = _slowing(slow_link, slow_process)
    with live_line(out) as line:
        profile = api.calibrate(
            processes, effort=effort, progress=lambda what, share: line.say(f"{100 * share:3.0f} %  {what}"),
            slowing=slowing,
        )  # fmt: skip
    data = {
        "device": profile.device,
        "num_processes": profile.num_processes,
        "measured": profile.measured,
        "path": None if slowing is not None else str(cache_path()),
        "process_factors": list(profile.process_factors),
        **profile_figures(profile),
    }
    return Result(data, profile_view(profile), {".profile.json": profile.save}, explanation=[profile.source])


def _not_slowed(links: Sequence[str] | None, processes: Sequence[str] | None) -> None:
    """A run that is over cannot be slowed."""
    from meshwright.specs.error import SpecError

    if links or processes:
        raise SpecError(
            "--slow-link or --slow-process is given with --from-log or --from-trace",
            allowed="slowing while this machine is measured",
        )


def profile_figures(profile: Any) -> dict[str, Any]:
    """The few numbers of a profile that people know: best matrix rate, memory rate, messages."""
    import math

    from meshwright.specs.dtype import dtype_bytes

    matrices = [2 * math.prod(sample.shape) / sample.seconds for sample in profile.samples("matmul")]
    largest = max(profile.samples("elementwise"), key=lambda sample: math.prod(sample.shape), default=None)
    touched = 0 if largest is None else ADD_TOUCHES * dtype_bytes(profile.dtype) * math.prod(largest.shape)
    messages = profile.samples("send_receive")
    return {
        "matmul_flops_per_s": max(matrices, default=None),
        "memory_bytes_per_s": None if largest is None else touched / largest.seconds,
        "message_latency_s": min((sample.seconds for sample in messages), default=None),
        "message_bytes_per_s": max((sample.shape[0] / sample.seconds for sample in messages), default=None),
        "constants": dict(profile.constants),
        "num_samples": sum(len(samples) for samples in profile.tables.values()) + len(profile.passes),
    }


def profile_view(profile: Any) -> Sequence[Any]:
    """Those numbers as lines."""
    from rich.text import Text

    from meshwright.reports.quantity import quantity

    figures = profile_figures(profile)
    rows = [
        ("matrix products", quantity(figures["matmul_flops_per_s"], "FLOP/s") + " a process"),
        ("memory", quantity(figures["memory_bytes_per_s"], "B/s") + " a process"),
        ("gloo latency", quantity(figures["message_latency_s"], "s")),
        ("gloo bandwidth", quantity(figures["message_bytes_per_s"], "B/s") + " each way"),
    ]
    slowdown = profile.constants.get("compute_slowdown")
    rows += [("compute beside a transfer", f"{slowdown:.2f}x as long")] if slowdown else []
    factors = ", ".join(f"{factor:.2f}" for factor in profile.process_factors)
    rows += [("computes by process", f"{factors} times the mean")] if factors else []
    head = f"{profile.device}, {profile.num_processes} processes, {figures['num_samples']} samples"
    return [Text(head, style="bold"), *(Text(f"  {name:<26}{value}") for name, value in rows)]


def _plan_row(done: Training) -> dict[str, Any]:
    plan = done.plan
    return {
        "model": f"{plan.model.num_parameters:,} parameters, {plan.model.num_layers} layers",
        "mesh": plan.product_text(),
        "schedule": plan.schedule,
        "microbatch": plan.microbatch_size,
        "batch": f"{plan.workload.global_batch} x {plan.workload.sequence_length} tokens",
        "recompute": plan.recompute,
        "layers per stage": ", ".join(map(str, plan.layers_per_stage)),
    }


def there(path: Path) -> Path:
    """A file that is there; a missing one is a name that was mistyped, not a broken trace."""
    from meshwright.specs.error import SpecError

    if not path.is_file():
        raise SpecError(
            f"there is no file {path}",
            allowed="a trace (.npz) that `simulate -o` or `train -o` wrote; or a plan (.toml) and the log of its run",
        )
    return path
