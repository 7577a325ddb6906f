"""`meshwright calibrate`: measuring this machine, or learning from a run, for later predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli.frame.command import command
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.train.slowed import SlowLink, SlowProcess, slowing_of

LOOP = "The loop"
ADD_TOUCHES = 3  # arrays that a sum of two into a third touches


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "calibrate", LOOP, (".profile.json",))(calibrate)


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
    from meshwright.cli.frame.progress import live_line
    from meshwright.specs.cluster.profile import cache_path
    from meshwright.specs.error import UnknownNameError

    if from_log is not None or from_trace is not None or plan is not None:
        from meshwright.cli.train.plan_log import calibrated_from_run

        _not_slowed(slow_link, slow_process)
        return calibrated_from_run(from_log, from_trace, plan, cluster)
    if effort not in ("full", "quick"):
        raise UnknownNameError("effort", effort, ("full", "quick"))
    slowing = slowing_of(slow_link, slow_process)
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

    from meshwright.reports.chart.quantity import quantity

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
