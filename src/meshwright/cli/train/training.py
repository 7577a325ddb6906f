"""`meshwright train`: running a plan, for as long as a real training takes."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.frame.command import command
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.trace_view import TRACE_FORMS
from meshwright.cli.train.report import training_result
from meshwright.cli.train.slowed import SlowLink, SlowProcess, slowing_of
from meshwright.cli.train.trained_part import LoraAlpha, LoraRank, LoraTargets, Trained, trained_part

if TYPE_CHECKING:
    from meshwright.api.train.recipe import Checkpoints, Recipe, Source
    from meshwright.specs.cluster.profile import Profile

LOOP = "The loop"
LENGTH, OPTIMIZER, DATA, LOOKING, KEEPING = (
    *("How long", "Optimizer", "What is read", "What is seen", "What is kept"),
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "train", LOOP, TRACE_FORMS)(train)


def train(
    out: Output,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan (.toml).")],
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", help="Steps since the very first (20).", rich_help_panel=LENGTH),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", help="The same in tokens: 2e9.", rich_help_panel=LENGTH),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Stop by the clock.", rich_help_panel=LENGTH)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="The peak (0.001).", rich_help_panel=OPTIMIZER)
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", help="Steps up to the peak (1 in 100).", rich_help_panel=OPTIMIZER),
    ] = None,
    final_lr: Annotated[
        float | None,
        typer.Option(
            "--final-lr", help="Share of the peak at the end of the cosine (0.1).", rich_help_panel=OPTIMIZER
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option("--weight-decay", help="Of matrices, not of norms (0.1).", rich_help_panel=OPTIMIZER),
    ] = None,
    betas: Annotated[
        str | None, typer.Option("--betas", help="Of AdamW (0.9,0.95).", rich_help_panel=OPTIMIZER)
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option("--clip", help="Largest norm of all gradients (the plan's).", rich_help_panel=OPTIMIZER),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Text, a folder or a file, or token shards (Python's own sources).",
            rich_help_panel=DATA,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", help="A `tokenizers` file for text (that of --from; bytes).", rich_help_panel=DATA
        ),
    ] = None,
    text_field: Annotated[
        str | None,
        typer.Option("--text-field", help="Of JSON lines, what holds the text (text).", rich_help_panel=DATA),
    ] = None,
    no_document_mask: Annotated[
        bool,
        typer.Option(
            "--no-document-mask", help="Documents in a sequence see each other.", rich_help_panel=DATA
        ),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--from", help="Begin with the weights of this folder.", rich_help_panel=DATA),
    ] = None,
    evaluate_every: Annotated[
        int,
        typer.Option("--evaluate-every", help="Steps between held-out losses.", rich_help_panel=LOOKING),
    ] = 0,
    evaluate_batches: Annotated[
        int | None,
        typer.Option("--evaluate-batches", help="Global batches of each (4).", rich_help_panel=LOOKING),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", help="A file of JSON lines, one a step.", rich_help_panel=LOOKING),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="A folder of event files.", rich_help_panel=LOOKING)
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="A folder: save at the end, Ctrl-C too.", rich_help_panel=KEEPING),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", help="Steps between two.", rich_help_panel=KEEPING)
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", help="How many of the last (3).", rich_help_panel=KEEPING)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the newest, by any plan.", rich_help_panel=KEEPING),
    ] = False,
    other_data: Annotated[
        bool,
        typer.Option("--other-data", help="Also with other text than it had.", rich_help_panel=KEEPING),
    ] = False,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    trained: Trained = None,
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

    -o writes .npz (the measured trace), .perfetto.json, .svg. Ctrl-C ends it at a whole step, and saves where --checkpoints
    says. Started by torchrun or srun, on one host or several, this process is one rank of the job.
    """
    from meshwright import api
    from meshwright.cli.frame.progress import TrainingLine, live_line
    from meshwright.executor.job.launch import launch_of

    launch = launch_of(os.environ)
    count = None if tokens is None else _whole(tokens)
    part = trained_part(lora_rank, lora_alpha, lora_targets, trained)
    with live_line(out) as line, ending_like_interrupted(launch is None):
        line.stage("checking the plan and predicting its step")
        done = api.run_training(
            part.of_plan(plan) if part.is_asked else plan, iterations=iterations, tokens=count,
            seconds=seconds, seed=out.seed,
            recipe=_recipe(learning_rate, warmup, final_lr, weight_decay, betas, clip),
            source=_source(
                data, tokenizer, weights, evaluate_every, evaluate_batches, text_field, not no_document_mask
            ),
            checkpoints=_checkpoints(checkpoints, checkpoint_every, keep, resume, other_data),
            metrics=metrics, tensorboard=tensorboard, cluster=cluster, profile=read_profile(profile),
            progress=TrainingLine(line), slowing=slowing_of(slow_link, slow_process),
            launch=launch, said=line.stage,
        )  # fmt: skip
    return training_result(done, launch, checkpoints)


@contextlib.contextmanager
def ending_like_interrupted(is_ours: bool = True) -> Iterator[None]:
    """SIGTERM, by which schedulers and `kill` end a process, is a Ctrl-C: it ends the training at a step, and saves.

    ``is_ours``: False where somebody else listens. Nothing is changed outside of the main thread, which alone may.
    """
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_profile(path: Path | None) -> Profile | None:
    """A profile's file, where one is named; None: the user's own."""
    from meshwright.specs.cluster.profile import Profile

    return None if path is None else Profile.load(path)


def _recipe(
    learning_rate: float | None,
    warmup: int | None,
    final_lr: float | None,
    weight_decay: float | None,
    betas: str | None,
    clip: float | None,
) -> Recipe:
    """The recipe with what was given, and its own defaults."""
    from meshwright.api.train.recipe import Recipe

    given = {
        "learning_rate": learning_rate,
        "warmup": warmup,
        "final_share": final_lr,
        "weight_decay": weight_decay,
        "betas": None if betas is None else _betas(betas),
        "clip": clip,
    }
    return Recipe(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _whole(tokens: float) -> int:
    """A number of tokens. Raises SpecError for one that is none."""
    from meshwright.specs.error import SpecError

    if not math.isfinite(tokens) or tokens < 1:
        raise SpecError(f"--tokens {tokens:g}", allowed="1 or more, such as 2e9")
    return int(tokens)


def _betas(text: str) -> tuple[float, float]:
    """Two numbers with a comma between them."""
    from meshwright.specs.error import SpecError

    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"--betas {text}", allowed="two numbers from 0 to below 1: 0.9,0.95") from None
    return first, second


def _source(
    data: Path | None,
    tokenizer: Path | None,
    weights: Path | None,
    evaluate_every: int,
    evaluate_batches: int | None,
    text_field: str | None,
    document_mask: bool,
) -> Source:
    """What is read."""
    from meshwright.api.train.recipe import Source

    chosen = Source(data, tokenizer, weights, evaluate_every, document_mask=document_mask)
    given = {"num_evaluated": evaluate_batches, "text_field": text_field}
    return replace(chosen, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _checkpoints(
    folder: Path | None, every: int | None, keep: int | None, resumes: bool, accepts_other_data: bool
) -> Checkpoints | None:
    """Where it is kept; None without a folder."""
    from meshwright.api.train.recipe import Checkpoints
    from meshwright.specs.error import SpecError

    if folder is None:
        if every is not None or keep is not None or resumes or accepts_other_data:
            raise SpecError(
                "--checkpoint-every, --keep, --resume or --other-data is given without a folder",
                allowed="--checkpoints FOLDER beside them",
            )
        return None
    given = {"every": every, "keep": keep}
    counts = {name: count for name, count in given.items() if count is not None}
    return Checkpoints(folder, resumes=resumes, accepts_other_data=accepts_other_data, **counts)
