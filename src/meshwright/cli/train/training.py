"""`meshwright train`: running a plan, for as long as a real training takes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from meshwright import api
from meshwright.api.exchange.adapting import TrainedPart
from meshwright.api.exchange.variant import ModelVariant
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.progress import TrainingLine, live_line
from meshwright.cli.view.trace_view import TRACE_FORMS
from meshwright.cli.view.training_view import training_result
from meshwright.executor.checkpoint.folder import folder_and_name
from meshwright.executor.job.launch import launch_of
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import Length, Recipe
from meshwright.specs.training.sinks import Sinks
from meshwright.specs.training.source import Source

if TYPE_CHECKING:
    from meshwright.api.trainings.place import Wanted


@writes(*TRACE_FORMS)
def train(
    out: Output,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan (.toml).")],
    length: Length,
    recipe: Recipe,
    source: Source,
    part: TrainedPart,
    other: ModelVariant,
    sinks: Sinks,
    checkpoints: Checkpoints | None = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where the plan runs: a file or a name.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="What `calibrate -o` wrote, for the prediction.")
    ] = None,
    device: Annotated[
        str,
        typer.Option("--device", help="cuda, cpu, or auto: GPUs for a plan of GPUs, where they are there."),
    ] = "auto",
    slowing: Slowing | None = None,
    sequence_groups: Annotated[
        str,
        typer.Option(
            "--sequence-groups",
            help="What puts sequences into groups of ranks that change by step (meshwright list sequence_groups).",
        ),
    ] = "",
    expert_placement: Annotated[
        Path | None,
        typer.Option(
            "--expert-placement",
            help="Which device has which experts, as `place -o` wrote it; without copies.",
        ),
    ] = None,
) -> Result:
    """Train by a plan on this machine, its GPUs or processes of its cores: the very program that `simulate` runs.

    -o writes .npz (the measured trace), .perfetto.json, .svg. Ctrl-C ends it at a whole step, and saves where --checkpoints
    says. Started by torchrun or srun, on one host or several, this process is one rank of the job.
    """
    launch = launch_of(os.environ)
    chosen = part.of_plan(plan) if part.is_asked else plan
    chosen = other.of_plan(chosen) if other.variant else chosen
    with live_line(out) as line, ending_like_interrupted(launch is None):
        line.stage("checking the plan and predicting its step")
        done = api.run_training(
            chosen, **asdict(length), seed=out.seed, recipe=recipe,
            source=source, checkpoints=checkpoints, **asdict(sinks), cluster=cluster,
            profile=read_profile(profile), progress=TrainingLine(line), slowing=slowing, launch=launch,
            device=cast("Wanted", device), said=line.stage, sequence_groups=sequence_groups,
            expert_placement=expert_placement,
        )  # fmt: skip
    return training_result(
        done, launch, None if checkpoints is None else folder_and_name(checkpoints.folder)[0]
    )


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
    return None if path is None else Profile.load(path)
