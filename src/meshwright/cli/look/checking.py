"""`meshwright check`: a plan, a program or a schedule proved."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api
from meshwright.api import Check
from meshwright.api.plans.request import fixed_of
from meshwright.api.subjects.loading import is_data_file
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result, table_of
from meshwright.cli.look.schedule_run import with_execution
from meshwright.cli.look.subject_option import ScheduleCounts, one_of
from meshwright.cli.view.advice_view import EXPLAINED, advice_figures, advice_view
from meshwright.cli.view.step_view import memory_figures, memory_line, memory_rows
from meshwright.specs.error import SpecError
from meshwright.specs.units import format_bytes, parse_bytes, parse_sequence, parse_whole

VERDICTS = {True: "yes", False: "no", None: "-"}


def check(
    out: Output,
    counts: ScheduleCounts,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN | MODEL]", help="What `simulate` takes, or a model, before its cluster."
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="Where a model or plan runs: 8x8xH100.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="A schedule: a name, ./mine.py:FUNCTION, or FILE.csv.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where a plan runs: 8xH100, or a file.")
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of a device, such as 80GB.")] = None,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", help="Of a model: sequences of a step.", parser=parse_whole),
    ] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", help="Of a model: tokens of a sequence.", parser=parse_sequence)
    ] = None,
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
    if where is not None and cluster is not None:
        raise SpecError(f"both {where} and --cluster {cluster} were given", allowed="one cluster")
    if where is not None and not is_data_file(str(what)) and global_batch is None:
        raise SpecError(
            f"{what} on {where} without a batch", next="add --global-batch N --seq N, or give a plan's file"
        )
    proof = api.check(
        one_of(what, schedule), **asdict(counts), cluster=where or cluster,
        memory_bytes=None if memory is None else parse_bytes(memory),
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
    return with_execution(found, out, schedule, **asdict(counts))


def _verdict_view(proof: Check) -> list[Any]:
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
