"""`meshwright simulate` and `meshwright check`: a program on virtual time, and its proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.command import command
from meshwright.cli.output import DONE, REFUSED, Output, Result, table_of

if TYPE_CHECKING:
    from meshwright.api import Check, Subject
    from meshwright.ir.trace import Trace

LOOP = "The loop"
VERDICTS = {True: "yes", False: "no", None: "-"}

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[PLAN]", help="A plan (.toml), program text, saved trace, or torch's schedule CSV."
    ),
]
ScheduleName = Annotated[
    str | None, typer.Option("--schedule", help="A schedule: a name, ./mine.py:FUNCTION, or FILE.csv.")
]
Stages = Annotated[
    int | None, typer.Option("--stages", "--devices", "-p", help="Devices in the pipeline (4).")
]
Microbatches = Annotated[int | None, typer.Option("--microbatches", "-m", help="Microbatches a step (8).")]
Chunks = Annotated[
    int | None, typer.Option("--chunks", "-v", help="Stages a device; 2 for interleaved schedules.")
]
Split = Annotated[bool, typer.Option("--split", help="Split every backward into I and W.")]
Recompute = Annotated[bool, typer.Option("--recompute", help="Recompute every stage before its backward.")]
Extrapolate = Annotated[
    bool, typer.Option("--extrapolate", help="Predict for a chip that was never measured, too.")
]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Where a plan runs: 8xH100, or a file.")]


def add_to(app: typer.Typer) -> None:
    """Register both commands."""
    command(app, "simulate", LOOP)(simulate)
    command(app, "check", LOOP)(check)


def simulate(
    out: Output,
    what: What = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            help="A name, ./mine.py:FUNCTION, FILE.csv, `all` or `search`; several make a table.",
        ),
    ] = None,
    stages: Stages = None,
    microbatches: Microbatches = None,
    chunks: Chunks = None,
    times: Annotated[
        str | None,
        typer.Option("--times", metavar="F,I,W", help="Seconds of a full stage (1,1,1); B = I + W."),
    ] = None,
    comm: Annotated[
        float | None, typer.Option("--comm", help="Latency in seconds of a hop between devices (0).")
    ] = None,
    stage_times: Annotated[
        str | None,
        typer.Option(
            "--stage-times", metavar="FILE.csv", help="Seconds of every stage: the columns stage,F,I,W."
        ),
    ] = None,
    memory_cap: Annotated[
        float | None,
        typer.Option(
            "--memory-cap", metavar="N", help="Of a table: full-stage activations a device may keep."
        ),
    ] = None,
    split: Split = False,
    recompute: Recompute = False,
    cluster: ClusterName = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Iterations of the program.")] = None,
    extrapolate: Extrapolate = False,
) -> Result:
    """Run a plan, a program or a schedule on virtual time, and draw it.

    `--schedule all` compares every schedule there is, `search` finds others; -o frontier.svg draws span against peak.
    -o of one schedule writes .npz (the trace), .perfetto.json, .svg, .program.
    """
    from meshwright import api
    from meshwright.cli.schedule_table import is_table, schedule_table
    from meshwright.specs.error import SpecError

    if iterations is not None and iterations < 1:
        raise SpecError(f"--iterations {iterations}", allowed="1 or more")
    counts: dict[str, Any] = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    choices: dict[str, Any] = {"times": _times(times), "comm": comm, "split": split, "recompute": recompute}
    names = schedule or []
    given = _one_of(what, names[0] if names else None)
    if what is None and is_table(names, memory_cap):
        if cluster is not None:
            raise SpecError("schedules were given with --cluster", next="leave it out, or give a plan")
        return schedule_table(
            out,
            names,
            memory_cap,
            trace_figures,
            iterations=iterations,
            stage_times=stage_times,
            **counts,
            **choices,
        )
    if memory_cap is not None:
        raise SpecError(f"{given} with --memory-cap", allowed="--schedule NAME, all or search")
    if stage_times is not None:
        subject = _stage_timed(given, stage_times, counts, choices)
    else:
        subject = api.subject(given, **counts, **choices, cluster=cluster, extrapolate=extrapolate)
    trace = api.simulate(subject, iterations=iterations)
    return trace_result(trace, subject)


def _stage_timed(given: str, path: str, counts: dict[str, Any], choices: dict[str, Any]) -> Subject:
    """One schedule with a table of stage times; as many devices as it has rows, unless they were said."""
    from meshwright import api
    from meshwright.api.schedule_comparison import read_times, with_stage_times

    times = read_times(path, choices["times"], choices["comm"])
    counts = {**counts, "stages": counts["stages"] or times.num_stages}
    return with_stage_times(api.subject(given, **counts, **choices), times)


def trace_result(trace: Trace, subject: Subject) -> Result:
    """Figures, picture, files and page of a simulated trace."""
    from rich.text import Text

    from meshwright.cli.step_view import step_view
    from meshwright.reports.terminal import timeline_view

    has_bytes = bool(trace.memory) or subject.memory is not None
    facts = {} if has_bytes else {"peak activations": _activations(_peak_activations(trace))}
    title = subject.label if subject.counts is None else f"{subject.label}  {_counts_text(subject.counts)}"
    return Result(
        trace_figures(trace, subject),
        (Text(title, style="bold"), timeline_view(trace, facts=facts), *step_view(trace, subject)),
        trace_forms(trace),
        lambda: _trace_page(trace, subject),
        # what stands under a step with its parts is not said twice
        _trace_explanation(trace, replace(subject, assumptions=()) if "parts" in trace.metadata else subject),
    )


def trace_figures(trace: Trace, subject: Subject) -> dict[str, Any]:
    """The figures of a trace under the names that scripts rely on."""
    from meshwright.cli.step_view import memory_figures, step_figures
    from meshwright.ir import metrics

    figures: dict[str, Any] = {
        "span": metrics.span_s(trace),
        "device_time": metrics.device_time_s(trace),
        "bubble": metrics.bubble(trace),
        "peak_activations": _peak_activations(trace),
        "label": subject.label,
        **(subject.counts or {}),
        "idle": metrics.idle_s(trace),
        "period": metrics.period_s(trace),
        "engine": trace.engine,
        "num_instructions": trace.program.num_rows,
        "digest": trace.digest,
        **step_figures(trace),
    }
    if subject.memory is not None:
        figures["memory"] = memory_figures(subject.memory)
        figures["peak_bytes"] = [device.allocated_bytes for device in subject.memory.devices]
        figures["assumptions"] = list(subject.assumptions)
    if trace.memory and subject.plan is not None:
        figures["peak_bytes"] = [metrics.peak_bytes(trace, d) for d in range(trace.program.num_lists)]
    return figures


def trace_forms(trace: Trace) -> dict[str, Any]:
    """The files that a trace can become."""
    from meshwright.ir.text import to_text
    from meshwright.reports.perfetto import write_perfetto
    from meshwright.reports.svg import write_timeline_svg

    return {
        ".npz": trace.save,
        ".perfetto.json": lambda path: write_perfetto(trace, path),
        ".svg": lambda path: write_timeline_svg(trace, path),
        ".program": lambda path: path.write_text(to_text(trace.program), encoding="utf-8"),
    }


def check(
    out: Output,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN | MODEL]", help="What `simulate` takes, or a model, before its cluster."
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="Where a model or plan runs: 8x8xH100.")
    ] = None,
    schedule: ScheduleName = None,
    stages: Stages = None,
    microbatches: Microbatches = None,
    chunks: Chunks = None,
    split: Split = False,
    recompute: Recompute = False,
    cluster: ClusterName = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of a device, such as 80GB.")] = None,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="Of a model: sequences of a step.")
    ] = None,
    seq: Annotated[int | None, typer.Option("--seq", help="Of a model: tokens of a sequence.")] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", help="Of a model: what is decided already: tp=8,pp=4.")
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Of a schedule: execute it here, too, each gradient beside one process's."
        ),
    ] = False,
) -> Result:
    """Prove a plan, program or schedule: legal, free of deadlock, gradients whole, and that it fits; with advice for GPUs.

    MODEL CLUSTER checks the fastest plan. Exit 3 where something is refused, with the grid around the instruction.
    """
    from meshwright import api
    from meshwright.cli.advice_view import EXPLAINED, advice_figures, advice_view
    from meshwright.cli.fixing import fixed_of
    from meshwright.cli.schedule_run import with_execution
    from meshwright.cli.step_view import memory_figures
    from meshwright.specs.error import SpecError
    from meshwright.specs.units import parse_bytes

    if where is not None and cluster is not None:
        raise SpecError(f"both {where} and --cluster {cluster} were given", allowed="one cluster")
    if where is not None and not api.loading.is_data_file(str(what)) and global_batch is None:
        raise SpecError(
            f"{what} on {where} without a batch", next="add --global-batch N --seq N, or give a plan's file"
        )
    proof = api.check(
        _one_of(what, schedule), stages=stages, microbatches=microbatches, chunks=chunks, split=split,
        recompute=recompute, cluster=where or cluster, memory_bytes=None if memory is None else parse_bytes(memory),
        global_batch=global_batch, seq=seq, fix=fixed_of(fix or ()),
    )  # fmt: skip
    data = {
        "label": proof.label,
        "accepted": proof.is_accepted,
        "legal": proof.legal,
        "deadlock_free": proof.deadlock_free,
        "gradients_whole": proof.gradients_whole,
        "fits": proof.fits,
        "num_instructions": proof.num_instructions,
        "peak_bytes": proof.peak_bytes,
        "capacity_bytes": proof.capacity_bytes,
        **({} if proof.memory is None else {"memory": memory_figures(proof.memory)}),
        **advice_figures(proof),
        "train_refusal": proof.train_refusal or None,
        "error": None
        if proof.error is None
        else {"kind": type(proof.error).__name__, "message": str(proof.error)},
    }
    peaks = "peaks bound every legal order of the instructions, so a measured peak lies below them"
    if proof.memory is not None:
        peaks = "memory is an estimate of what PyTorch allocates; it fits where that and the context do, fragmentation aside"
    explained = [
        "one iteration is replayed at zero cost; a program whose first iteration has no cycle never has one",
        peaks,
        *(EXPLAINED if proof.advice else ()),
    ]
    code = DONE if proof.is_accepted else REFUSED
    found = Result(data, [*_verdict_view(proof), *advice_view(proof)], explanation=explained, exit_code=code)
    if not run or not proof.is_accepted:
        return found
    if what is not None or schedule is None:
        raise SpecError(f"{what} with --run", allowed="--schedule NAME or ./mine.py:FUNCTION")
    counts = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    return with_execution(found, out, schedule, **counts, split=split, recompute=recompute)


def _verdict_view(proof: Check) -> list[Any]:
    from rich.text import Text

    from meshwright.cli.step_view import memory_line, memory_rows
    from meshwright.specs.units import format_bytes

    about = f"{proof.label}: {proof.num_instructions} instructions" if proof.num_instructions else proof.label
    lines: list[Any] = [Text(about, style="bold")]
    colours = {True: "green", False: "bold red", None: "dim"}
    for name, verdict in (
        ("legal", proof.legal),
        ("free of deadlock", proof.deadlock_free),
        ("gradients whole", proof.gradients_whole),
        ("fits", proof.fits),
    ):
        lines.append(Text(f"  {name:<18}").append(VERDICTS[verdict], style=colours[verdict]))
    if proof.fits and not proof.fits_at_worst:
        lines[-1].append(", but not in the worst case", style="yellow")
    if proof.memory is not None:
        lines.append(Text("  " + memory_line(proof.memory, proof.capacity_bytes)))
        if proof.fits is not False:  # a refusal names the holders itself
            lines.append(table_of(memory_rows(proof.memory)))
    elif proof.peak_bytes:
        room = "" if proof.capacity_bytes is None else f" of {format_bytes(proof.capacity_bytes)}"
        lines.append(Text(f"  {'memory at most':<18}{format_bytes(max(proof.peak_bytes))}{room}"))
    if proof.train_refusal:
        lines.append(Text(f"  {'trained':<18}no: {proof.train_refusal}", style="yellow"))
    if proof.error is not None:
        lines += [Text(""), Text(f"{type(proof.error).__name__}: {proof.error}")]
    return lines


def _trace_page(trace: Trace, subject: Subject) -> Any:
    from meshwright.cli.step_view import part_rows
    from meshwright.ir import metrics
    from meshwright.reports.quantity import quantity
    from meshwright.reports.report import DataTable, Figure, Report

    step = trace.metadata.get("step") or {}
    ends = f"{quantity(step.get('low'), 's')} to {quantity(step.get('high'), 's')}, {step.get('basis')}"
    figures = [
        *([Figure("step", quantity(step["value"], "s"), ends)] if step else []),
        Figure("span", quantity(metrics.span_s(trace), "s")),
        Figure("device time", quantity(metrics.device_time_s(trace), "s")),
        Figure("bubble", quantity(metrics.bubble(trace), "share")),
    ]
    facts = {
        key: value for key, value in trace_figures(trace, subject).items() if isinstance(value, str | int)
    }
    parts = trace.metadata.get("parts")
    return Report(
        subject.label, "simulated", figures, plan=[facts], predicted=trace, capacity_bytes=subject.capacity_bytes,
        tables=[DataTable("Where the step goes", part_rows(parts, step["value"]))] if parts else [],
        assumptions=_trace_explanation(trace, subject),
    )  # fmt: skip


def _trace_explanation(trace: Trace, subject: Subject) -> list[str]:
    from meshwright.ir import metrics

    lines = list(subject.assumptions)
    if subject.plan is None:
        seconds = metrics.seconds_by_name(trace)
        lines += ["seconds by name: " + ", ".join(f"{name} {value:g}" for name, value in seconds.items())]
        lines += [
            "a message between devices takes its latency and occupies nothing; the host issues everything at once"
        ]
    why = {"max-plus": "nothing was over-subscribed, so a worklist sufficed", "event": "links were contended"}
    if subject.pricing is not None:
        why["max-plus"] = "what exchanges lose to each other is in their fitted times"
    return [*lines, f"engine {trace.engine}: {why.get(trace.engine, 'as recorded')}"]


def _peak_activations(trace: Trace) -> list[float]:
    from meshwright.ir import metrics

    return (
        metrics.peak_alive(trace) if any(k.name == "saved" for k in trace.program.tables.value_kinds) else []
    )


def _activations(peaks: Sequence[float]) -> str:
    """Short: the numbers of up to eight devices, otherwise their range."""
    texts = [f"{peak:g}" for peak in peaks]
    return " ".join(texts) if len(texts) <= 8 else f"{min(peaks):g} to {max(peaks):g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _counts_text(counts: Mapping[str, int]) -> str:
    words = {"stages": "devices", "microbatches": "microbatches", "chunks": "chunks a device"}
    return ", ".join(
        f"{count} {words[name]}" for name, count in counts.items() if name != "chunks" or count > 1
    )


def _one_of(what: str | None, schedule: str | None) -> str:
    """The one thing that was given."""
    from meshwright.specs.error import SpecError

    if (what is None) == (schedule is None):
        problem = "nothing was given" if what is None else f"both {what} and --schedule {schedule} were given"
        raise SpecError(
            problem, allowed="a file, or --schedule NAME", next="`meshwright list schedules` names them"
        )
    return str(schedule if what is None else what)


def _times(text: str | None) -> tuple[float, ...] | None:
    from meshwright.specs.error import SpecError

    if text is None:
        return None
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if len(times) != 3:
        raise SpecError(f"--times {text}", allowed="three numbers with commas: F,I,W, such as 1,1.2,0.9")
    return times
