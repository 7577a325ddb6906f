"""`train`: running a plan on processes, with what a real training needs: length, recipe, data, metrics, checkpoints."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from meshwright.api.subjects.keywords import check_keywords
from meshwright.api.subjects.loading import is_data_file, load
from meshwright.api.subjects.routing import keep_routing, recording, with_placed_experts
from meshwright.api.subjects.subject import Subject, subject
from meshwright.api.trainings.grouped_steps import GroupedSteps, check_grouped
from meshwright.api.trainings.job import in_their_folder, prepare, with_recipe
from meshwright.api.trainings.metrics import StepMetrics
from meshwright.api.trainings.place import Wanted, place_of
from meshwright.api.trainings.ready import ReadyTraining, ready_training
from meshwright.evidence.sent_bytes import OF_TOKENS, SENT
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.utilisation import StepFlops, Utilisation
from meshwright.specs.routing.expert_placement import ExpertPlacement
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import LEARNING_RATE, Length, Recipe
from meshwright.specs.training.sinks import ROUTING_STEPS, Sinks
from meshwright.specs.training.source import PathLike, Source
from meshwright.stage.mesh import device_order

if TYPE_CHECKING:
    from meshwright.executor.job.gather import Iteration, JobResult
    from meshwright.executor.job.launch import Launch
    from meshwright.executor.job.pool import Pool

__all__ = ["LEARNING_RATE", "Training", "run_training", "train"]

Keywords = ParamSpec("Keywords")
logger = logging.getLogger(__name__)
# how many predicted steps a rank may stand still, and at least how long
TIMEOUT_STEPS, LEAST_TIMEOUT_S = 20.0, 30.0


@dataclass(frozen=True, eq=False)
class Training:
    """What a training gave: the measured trace and the plan's iterations; `result` holds the parameters.

    ``flops``: of a step on a device. ``first_step``: steps that were done before it began, by a training that it went on
    with. ``metrics``: of every step.
    """

    plan: Plan
    predicted: Trace
    result: JobResult
    flops: StepFlops
    first_step: int = 0
    metrics: Sequence[StepMetrics] = ()

    @property
    def trace(self) -> Trace | None:
        """The measured trace; None where the job was ended by force."""
        return self.result.trace

    @property
    def iterations(self) -> Sequence[Iteration]:
        """Loss, tokens and seconds of every iteration."""
        return self.result.iterations

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all iterations but the first (it holds the start of the job) over their seconds."""
        counted = self.iterations[1:] or self.iterations
        seconds = sum(iteration.seconds for iteration in counted)
        return sum(iteration.tokens for iteration in counted) / seconds if seconds > 0 else 0.0

    @property
    def used(self) -> Utilisation:
        """Model FLOPs a second of one device, and their share of its peak; of the iterations that `tokens_per_s` is of."""
        rate = self.tokens_per_s
        return self.flops.used(self.plan.workload.tokens_per_step / rate if rate > 0 else 0.0)

    @property
    def held_out_losses(self) -> dict[int, float]:
        """Steps done -> held-out loss, nats a token."""
        found = {one.number + 1: one.held_out_loss for one in self.metrics}
        return {step: loss for step, loss in found.items() if loss is not None}


def run_training(
    what: Any,
    *,
    data: PathLike | None = None,
    iterations: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    recipe: Recipe | None = None,
    source: Source | None = None,
    checkpoints: Checkpoints | None = None,
    metrics: PathLike | None = None,
    tensorboard: PathLike | None = None,
    wandb: str | None = None,
    mlflow: str | None = None,
    profiler: PathLike | None = None,
    record_routing: PathLike | None = None,
    routing_steps: int = ROUTING_STEPS,
    routing_every: int = 1,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    progress: Callable[[StepMetrics], None] | None = None,
    pool: Pool | None = None,
    first_step: int = 0,
    measures_memory: bool = True,
    slowing: Slowing | None = None,
    launch: Launch | None = None,
    device: Wanted = "auto",
    said: Callable[[str], None] | None = None,
    sequence_groups: str = "",
    expert_placement: PathLike | ExpertPlacement | None = None,
) -> Training:
    """`train` with everything that it gives: prediction, parameters, losses, metrics.

    Args:
        data: a folder or file of text, read as bytes; None: the Python standard library's sources. More in `source`.
        iterations, tokens, seconds: how long: steps or tokens since the very first step (20 steps), or by the clock.
        seed: keys parameters, data and everything drawn; a training that is gone on with keeps its own.
        learning_rate, recipe: the peak alone, or all of AdamW and its rates.
        source: data, tokenizer, first weights, how often the held-out loss is found.
        checkpoints: where the training is kept, and whether it goes on from there under this plan.
        metrics, tensorboard, wandb, mlflow: who is told every step, as of `Sinks`.
        profiler: a folder of torch.profiler's traces, as of `Sinks`; `compare_profile` sets them beside the prediction.
        record_routing, routing_steps, routing_every: a file of which experts tokens went to, and which steps, as of `Sinks`.
        cluster, profile: what the prediction rests on, as in `subject`; a plan for GPUs on processes is predicted for these.
        progress: called after every step.
        pool: processes to run on; None: as many as the plan has devices, ended afterwards.
        first_step: number of the first step, which keys the data; a checkpoint says its own.
        slowing: links and processes slowed on purpose; `profile` is then one that was measured under it.
        launch: this process is one rank of a job on several hosts (`executor.launch.launch_of`); rank 0 gives the trace.
        device: "cuda", "cpu" (processes of this machine's cores), or "auto": GPUs for a plan of GPUs, where they are there.
        sequence_groups: which algorithm puts the sequences of a step into groups of ranks (a name of `list sequence_groups`):
            a sample is then a whole document, cut at the plan's sequence length; the plan's dp x cp ranks share them, in
            other groups every step. Empty: documents are packed, and every step has the plan's degrees.
        expert_placement: which device of an expert-parallel group has which experts, or the file of it; without copies. The
            model, its losses and checkpoints are the same; None: neighbouring experts. The prediction is the plan's.
        said: called with what is being done before the first step, where that may take a while.

    Raises ExecutionError, OutOfMemoryError, SpecError, and what `subject` raises.
    """
    length, recipe = Length(iterations, tokens, seconds), _recipe(recipe, learning_rate)
    checkpoints = in_their_folder(checkpoints)
    wanted, said = source or Source(data), said or _nothing
    if sequence_groups:
        check_grouped(sequence_groups, length, wanted, launch, profiler, record_routing)
    chosen = (
        _as_read(_with_recipe(what, recipe), wanted) if not sequence_groups else _with_recipe(what, recipe)
    )
    place = place_of(chosen, cluster, profile, device, None if launch is None else 1)
    ready = ready_training(
        place, length, recipe, wanted, checkpoints, first_step, seed, launch, sequence_groups, said
    )
    job = ready.job(measures_memory, is_launched=launch is not None)
    if profiler is not None:
        job = replace(job, profile_folder=_folder(profiler))
    job = with_placed_experts(job, place.plan, expert_placement)
    job = recording(job, record_routing, routing_steps, routing_every)
    if launch is None:
        prepare(job, said)
        said(f"starting {job.num_ranks} processes" + " on GPUs" * (place.device == "cuda"))
    seen: list[StepMetrics] = []
    with ready.told(Sinks(metrics, tensorboard, wandb, mlflow), progress, launch, seen) as tell:
        result = _run(
            job, place.plan, pool, launch, slowing, timeout_s=max(LEAST_TIMEOUT_S, TIMEOUT_STEPS * ready.step_s),
            progress=ready.meter(job).follow(tell), duration_s=seconds, controller=ready.grouped,
        )  # fmt: skip
    keep_routing(result, record_routing, said)
    return _trained(ready, result, seen)


def _as_read(made: Plan | Subject, source: Source) -> Plan | Subject:
    """What is trained, without lengths of documents where the data have none that attention stays within: its prediction
    would be of another step."""
    from meshwright.api.trainings.job import with_their_tokenizer
    from meshwright.executor.data.data_source import masks_documents

    plan = made if isinstance(made, Plan) else made.plan
    if plan is None or not plan.workload.lengths or masks_documents(with_their_tokenizer(source)):
        return made
    logger.warning(
        "the plan has lengths of documents, and %s has no documents that attention stays within (it is read as bytes, or "
        "--no-document-mask was given): its step is predicted without them",
        source.name,
    )
    return plan.changed(workload=replace(plan.workload, lengths=()))


def _trained(ready: ReadyTraining, result: JobResult, seen: Sequence[StepMetrics]) -> Training:
    """What it gave; the measured trace says its FLOPs."""
    if result.trace is not None:
        metadata = {**result.trace.metadata, "flops": ready.flops.to_dict(), **_sent(result)}
        result = replace(result, trace=replace(result.trace, metadata=metadata))
    predicted = ready.predicted
    if ready.grouped is not None and result.iterations and (last := result.iterations[-1].groups) is not None:
        predicted = ready.grouped.trace(last)  # beside the measured one, which is of the last step
    return Training(ready.place.plan, predicted, result, ready.flops, ready.resumed.step, tuple(seen))


def _sent(result: JobResult) -> dict[str, dict[str, float]]:
    """What a device sent to experts and back in an iteration, in the mean; nothing where held-out text was sent, too."""
    if any(iteration.held_out_loss is not None for iteration in result.iterations) or not result.iterations:
        return {}
    times = len(result.sent_bytes) * len(result.iterations)
    total = {name: sum(each.get(name, 0.0) for each in result.sent_bytes) for name in OF_TOKENS}
    found = {name: num_bytes / times for name, num_bytes in total.items() if num_bytes}
    return {SENT: found} if found else {}


def _traced(run: Callable[Keywords, Training]) -> Callable[Keywords, Trace]:
    """`run` with the measured trace as its result; its keywords are spelled there."""

    def train(*given: Keywords.args, **choices: Keywords.kwargs) -> Trace:
        """Train by a plan on processes of this machine; the very program that `simulate` runs.

        Args: as of `run_training`, first of all a Plan, its file, or a planner's candidate.

        Returns the measured trace; its metadata hold `losses` and `tokens_per_s`. Ctrl-C ends it with what was reached.

        Raises ExecutionError, OutOfMemoryError, and what `subject` raises.
        """
        check_keywords("train", choices, run)
        done = run(*given, **choices)
        if done.trace is None:
            raise ExecutionError("the training was interrupted twice and left no trace")
        said = {"losses": [it.loss for it in done.iterations], "tokens_per_s": done.tokens_per_s}
        return replace(done.trace, metadata={**done.trace.metadata, **said})

    train.__dict__["__signature__"] = inspect.signature(run).replace(return_annotation="Trace")
    return train


train = _traced(run_training)


def _folder(path: PathLike) -> str:
    """A folder that is there from now on. Raises ExecutionError where it cannot be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExecutionError(
            f"{os.fspath(path)} cannot be made: {error.strerror}", next="choose another folder"
        ) from None
    return os.path.abspath(path)


def _nothing(text: str) -> None:
    """Nobody wants to know."""


def _run(
    job: Any, plan: Plan, pool: Pool | None, launch: Launch | None, slowing: Slowing | None,
    controller: GroupedSteps | None, **limits: Any,
) -> JobResult:  # fmt: skip
    """On processes of our own, or as one of those that were started for us."""
    places = device_order(plan)
    if launch is not None:
        from meshwright.catalog.handlers import load_handlers
        from meshwright.executor.job.launched_run import run_launched

        if slowing is not None:
            raise SpecError(f"{slowing} of a job that {launch.by} started", allowed="on one host, without it")
        return run_launched(job, launch, places=places, load_handlers=load_handlers, **limits)
    from meshwright.executor.job.pool import opened_pool

    with opened_pool(pool, job.num_ranks) as workers:
        return workers.run(job, places=places, slowing=slowing, controller=controller, **limits)


def _recipe(recipe: Recipe | None, learning_rate: float | None) -> Recipe:
    """One recipe of what was given."""
    if learning_rate is None:
        return recipe or Recipe()
    if recipe is not None:
        raise SpecError("learning_rate and recipe are given", allowed="one of them: a recipe says the rate")
    return Recipe(learning_rate)


def _with_recipe(what: Any, recipe: Recipe) -> Plan | Subject:
    """The plan that is trained, or what was made of it already. Raises SpecError for what is none."""
    if isinstance(what, str | os.PathLike) and not is_data_file(what):
        raise SpecError(
            f"{os.fspath(what)} is no plan",
            allowed="the file of one (.toml)",
            next="`meshwright plan MODEL CLUSTER --global-batch N --seq N -o plan.toml` makes one",
        )
    made = load(what) if isinstance(what, str | os.PathLike) else what
    plan = getattr(made, "plan", made)
    if isinstance(plan, Plan):
        wanted = with_recipe(plan, recipe)
        if wanted is not plan or not isinstance(made, Subject):
            return wanted
    return made if isinstance(made, Subject) else subject(made)
