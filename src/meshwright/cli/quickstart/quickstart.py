"""`meshwright quickstart`: measure this machine, simulate every plan, train with the best, predicted beside measured."""

from __future__ import annotations

import datetime
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from meshwright import api
from meshwright.api import Training
from meshwright.cli.frame.output import DONE, INTERRUPTED, Output, Result, table_of
from meshwright.cli.frame.progress import TrainingLine, live_line
from meshwright.cli.quickstart.plan_trials import run_every_plan
from meshwright.cli.quickstart.report import TRAINED, Reached, quickstart_page, typical_iteration, write_files
from meshwright.cli.view.profile_view import profile_view
from meshwright.cli.view.training_view import comparison_view, training_figures, training_sentence
from meshwright.executor.measure.measure import device_name
from meshwright.planner.search.plans import NUM_SHOWN, Plans
from meshwright.prediction.predicted import Predicted
from meshwright.reports.chart.quantity import quantity
from meshwright.specs import Cluster, ModelSpec
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile, kept
from meshwright.specs.error import SpecError
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.units import interval_text

COMMAND = "meshwright"
PROCESSES = 2
SECONDS = 100.0
# A decoder of bytes that falls below the unigram entropy (3.2 nats) within half a minute on two slow cores.
LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH = 4, 256, 4, 128, 16
LEARNING_RATE = 2e-3
MAX_AGE = datetime.timedelta(days=1)  # of a profile that is taken as it is
HELD_OUT_SEQUENCES = 64
PROMPT = "def "
TEMPERATURE, TOP_K = 0.8, 40  # what it says is drawn, for a model of bytes repeats itself otherwise


def command_name() -> str:
    """How this command is called again: by its name where the shell finds it, else as it was."""
    return COMMAND if shutil.which(COMMAND) else sys.argv[0]


def quickstart(
    out: Output,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to train.")] = SECONDS,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate", help="Measure this machine even if a profile is a day old or less."),
    ] = False,
    compares: Annotated[
        bool, typer.Option("--compare", help="Run every plan in interleaved rounds instead of training.")
    ] = False,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of --compare.")] = 3,
    folder: Annotated[
        Path, typer.Option("--folder", help="Where report, traces and plan are written.")
    ] = Path("runs/quickstart"),
) -> Result:
    """The whole loop in under three minutes: measure, plan, train, and predicted beside measured.

    Ctrl-C ends it with what was reached.
    """
    if not seconds > 0 or rounds < 1:
        raise SpecError(
            f"--seconds {seconds:g} --rounds {rounds}", allowed="seconds above 0, 1 round or more"
        )
    profile = find_profile(out, recalibrate)
    cluster = Cluster.detect(PROCESSES)
    model = ModelSpec.decoder(LAYERS, HIDDEN, HEADS, max_sequence_length=SEQUENCE, name="byte decoder")
    out.note(
        f"2. {model.num_parameters:,} parameters, {LAYERS} layers, on the Python standard library's sources as bytes"
    )
    out.note(f"3. simulating every plan for {PROCESSES} processes")
    ranking = api.plan(
        model, cluster, global_batch=BATCH, seq=SEQUENCE, profile=profile, fix={"split_backward": False}
    )
    if compares:
        return run_every_plan(out, ranking, cluster, profile, rounds)
    show_now(out, plan_table(ranking))
    return _train(out, ranking, cluster, profile, model, seconds, folder)


def find_profile(out: Output, recalibrate: bool) -> Profile:
    """The profile of this machine: the kept one where it is young and of as many processes, else a new one."""
    profile = None if recalibrate else kept()
    if profile is not None and _is_young(profile):
        out.note(f"1. this machine was measured {profile.measured} (--recalibrate measures it again)")
    else:
        out.note(f"1. measuring this machine with {PROCESSES} processes, about 20 s")
        with live_line(out) as line:
            profile = api.calibrate(
                PROCESSES, progress=lambda what, share: line.say(f"   {100 * share:3.0f} %  {what}")
            )
    for renderable in profile_view(profile):
        if not out.is_quiet:
            out.stderr.print(renderable)
    return profile


def _is_young(profile: Profile) -> bool:
    """Is a kept profile of this machine, of as many processes, and at most a day old?"""
    if profile.num_processes != PROCESSES or profile.device != device_name() or not profile.measured:
        return False
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(profile.measured)
    return abs(age) <= MAX_AGE


def show_now(out: Output, renderable: Any) -> None:
    """A part of the result that people should see before the rest is there; JSON comes as one object at the end."""
    if not out.is_json:
        out.stdout.print(renderable)


def plan_table(ranking: Plans) -> Any:
    """The fastest plans, and the slowest; --json and the page have all."""
    left_out = len(ranking) - NUM_SHOWN - 1
    shown = [*enumerate(ranking)][: NUM_SHOWN if left_out > 0 else None]
    rows = [_plan_row(place, candidate) for place, candidate in shown]
    if left_out > 0:
        rows += [{"plan": f"   ... {left_out} more, down to"}, _plan_row(len(ranking), ranking[-1])]
    return table_of(rows, f"{len(ranking)} plans for {PROCESSES} processes, predicted")


def _plan_row(place: int, candidate: Predicted) -> dict[str, Any]:
    return {
        "plan": ("-> " if place == 0 else "   ") + candidate.description,
        "step": quantity(candidate.step.value, "s"),
        "interval": interval_text(quantity(candidate.step.low, "s"), quantity(candidate.step.high, "s")),
        "tokens/s": f"{candidate.tokens_per_s:,.0f}",
        "bubble": quantity(candidate.bubble, "share"),
        "peak": quantity(candidate.peak_bytes, "B"),
    }


def plan_rows(candidates: Sequence[Predicted]) -> list[dict[str, Any]]:
    """The same for --json."""
    return [
        {
            "plan": candidate.description,
            "step_s": candidate.step.value,
            "step_low_s": candidate.step.low,
            "step_high_s": candidate.step.high,
            "basis": candidate.step.basis,
            "tokens_per_s": candidate.tokens_per_s,
            "bubble": candidate.bubble,
            "peak_bytes": candidate.peak_bytes,
        }
        for candidate in candidates
    ]


def _train(
    out: Output,
    ranking: Plans,
    cluster: ClusterSpec,
    profile: Profile,
    model: ModelSpec,
    seconds: float,
    folder: Path,
) -> Result:
    best = ranking[0]
    out.note(f"training with {best.description} for about {seconds:g} s (Ctrl-C keeps what was reached)")
    with (
        tempfile.TemporaryDirectory() as trained
    ):  # the user's folder, which may be in the way, is written at the end
        with live_line(out) as line:
            done = api.run_training(
                best.plan, seconds=seconds, seed=out.seed, learning_rate=LEARNING_RATE, cluster=cluster,
                profile=profile, progress=TrainingLine(line), checkpoints=Checkpoints(trained, keep=1),
            )  # fmt: skip
        code = INTERRUPTED if done.result.interrupted else DONE
        if done.trace is None or not done.trace.num_iterations:
            return Result(training_figures(done), [training_sentence(done)], exit_code=code)
        out.note("4. reading the held-out files, and serving what was trained")
        reached = _reached(done, model, Path(trained), out.seed)
        return _result(out, done, ranking, reached, profile, folder, code)


def _reached(done: Training, model: ModelSpec, trained: Path, seed: int) -> Reached:
    from meshwright.executor.data.corpus import Corpus
    from meshwright.executor.training.held_out import held_out_loss, trained_model

    corpus = Corpus.standard_library()
    loss = held_out_loss(trained_model(model, done.result.parameters), corpus, HELD_OUT_SEQUENCES, SEQUENCE)
    with api.LLM(trained) as served:
        answers = served.generate(
            PROMPT, max_tokens=SEQUENCE - len(PROMPT), seed=seed, temperature=TEMPERATURE, top_k=TOP_K
        )
    return Reached(loss, corpus.unigram_entropy(), PROMPT + answers[0].text, corpus.num_files, trained)


def _result(
    out: Output,
    done: Training,
    ranking: Plans,
    reached: Reached,
    profile: Profile,
    folder: Path,
    code: int,
) -> Result:

    trace = done.trace
    assert trace is not None, "without a trace there is no result"
    comparison = api.compare(done.predicted, trace)
    typical = typical_iteration(trace)
    is_below = reached.held_out_loss < reached.entropy
    loss = (
        f"held-out loss {reached.held_out_loss:.3f} nats a byte, "
        f"{'below' if is_below else 'not below'} the unigram entropy of {reached.entropy:.3f}"
    )
    files = write_files(done, typical, comparison, ranking, reached, profile, folder)
    view: list[Any] = [
        Text(training_sentence(done)),
        Text(loss, style="bold green" if is_below else "bold yellow"),
        Text(f"what it says behind {PROMPT!r}:", style="dim"),
        Padding(Text(reached.sample), (0, 0, 0, 4)),
        *comparison_view(comparison, done.predicted, typical),
    ]
    view += [Text(f"{name:<16}{path}", style="dim") for name, path in files.items()]
    if TRAINED in files:
        view.append(Text(f"serve it: {command_name()} serve {files[TRAINED]}"))
    data = {
        **training_figures(done),
        "plans": plan_rows(ranking),
        "held_out_loss": reached.held_out_loss,
        "unigram_entropy": reached.entropy,
        "sample": reached.sample,
        "comparison": comparison.to_dict(),
        "profile": {"device": profile.device, "measured": profile.measured},
        "files": {name: str(path) for name, path in files.items()},
    }
    return Result(
        data, view, report=lambda: quickstart_page(done, typical, comparison, ranking, reached, profile),
        explanation=_explained(done), exit_code=code,
    )  # fmt: skip


def _explained(done: Training) -> list[str]:
    return [
        *done.predicted.metadata.get("assumptions", ()),
        "the interval of a step: all costs at their lowest, and all at their highest",
        "measured is the median over all iterations but the first; the timeline shows the one of median span",
        "peak memory is measured on live tensors in one more iteration after the last",
    ]
