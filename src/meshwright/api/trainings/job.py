"""The job that a plan, a recipe, data and a checkpoint make."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.trainings.place import TrainingPlace
from meshwright.executor.checkpoint.folder import (
    BEST,
    checkpoint_at,
    folder_and_name,
    latest_checkpoint,
    steps_in,
)
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.checkpoint.verify import problems
from meshwright.lowering.sequence.group_plan import plan_of_rank
from meshwright.lowering.sharding.gradient_norm import Clipping, clip_norm
from meshwright.lowering.sharding.router_correction import RouterCorrection, correction_rate
from meshwright.lowering.transfer.stage_edge import layer_edges
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import SHARE_CHOICES, PassOption, Plan
from meshwright.specs.slot import TRUST
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.expert_capacity import PROBABILITY
from meshwright.specs.training.learning_rate import LearningRate
from meshwright.specs.training.recipe import Recipe
from meshwright.specs.training.router_losses import sees_whole_sequences
from meshwright.specs.training.source import Source
from meshwright.stage.mesh import data_axes
from meshwright.stage.piece import executed_pieces, piece_layers

if TYPE_CHECKING:
    from meshwright.executor.job.changing.controller import ControlledStep

logger = logging.getLogger(__name__)
TOKENIZER_FILE = "tokenizer.json"
MAX_RANKS = 64  # processes on one machine; more is a plan for a cluster, given to the wrong machine


@dataclass(frozen=True)
class Resumed:
    """Where a training goes on: steps done, the seed it began with, the checkpoint (None: it begins).

    ``samples`` and ``tokens``: consumed so far, whatever the batches were; None: as many as so many steps take.
    ``is_asked``: was it asked to go on, whether there is a checkpoint or not?
    """

    step: int = 0
    seed: int = 0
    path: Path | None = None
    samples: int | None = None
    tokens: int | None = None
    is_asked: bool = False


def resumed_from(
    checkpoints: Checkpoints | None, first_step: int, seed: int, is_first: bool = True
) -> Resumed:
    """What the newest checkpoint says, or what was given where there is none to go on from. The first of several processes
    reads all of it before anything starts.

    Raises SpecError where it is not whole, and as `newest`.
    """
    found = None if checkpoints is None else newest(checkpoints, is_first)
    if found is None:
        return Resumed(first_step, seed, is_asked=checkpoints is not None and checkpoints.resumes)
    info = read_index(found).info
    if is_first:
        _require_whole(found)
    if seed not in (0, info.seed):
        logger.warning("%s began with seed %d, which is kept; %d is not used", found, info.seed, seed)
    return Resumed(info.step, info.seed, found, info.samples, info.tokens, True)


def in_their_folder(checkpoints: Checkpoints | None) -> Checkpoints | None:
    """The same, with "runs/best" told apart: kept in runs, begun with the best there."""
    if checkpoints is None:
        return None
    folder, name = folder_and_name(checkpoints.folder)
    return replace(checkpoints, folder=folder, begins_with=name) if name == BEST else checkpoints


def newest(checkpoints: Checkpoints, is_first: bool = True) -> Path | None:
    """The checkpoint to go on from, None where there is none. Of several processes the first puts the folder in order.

    Raises SpecError where there is one and it is not to be resumed.
    """
    folder = Path(checkpoints.folder)
    if is_first:
        found = latest_checkpoint(folder, checkpoints.begins_with)
    else:
        found = checkpoint_at(folder / checkpoints.begins_with) if steps_in(folder) else None
    if found is not None and not checkpoints.resumes:
        raise SpecError(
            f"{checkpoints.folder} holds a training already, its newest checkpoint is {found.name}",
            allowed="an empty folder, or --resume to go on with it",
        )
    return found


def with_recipe(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with the optimizer and with the passes that clip and that correct routers, where these are given; and with the
    one by which devices that share sequences agree on what is balanced, or dropped."""
    if recipe.optimizer:
        TRUST.allow(recipe.optimizer)
        plan = plan.changed(optimizer=recipe.optimizer)
    if recipe.clip is not None:
        plan = _with_pass(plan, Clipping.name, max_norm=float(recipe.clip))
    if recipe.router_bias_update_rate is not None:
        plan = _with_pass(plan, RouterCorrection.name, rate=float(recipe.router_bias_update_rate))
    is_counted = bool(recipe.capacity) or recipe.balance_loss > 0
    if is_counted and plan.divides_routed_sequences and not (plan.has_chunks or _sees_whole(plan)):
        return _with_pass(plan, SHARE_CHOICES, gates=bool(recipe.capacity) and recipe.drop == PROBABILITY)
    return plan


def _sees_whole(plan: Plan) -> bool:
    """Do routers see whole sequences, with nothing told?"""
    return sees_whole_sequences(
        plan.changed(passes=tuple(each for each in plan.passes if each.name != SHARE_CHOICES))
    )


def _with_pass(plan: Plan, name: str, **options: float) -> Plan:
    """The plan with this pass alone of its name; without it where a router's correction has the rate 0."""
    others = tuple(each for each in plan.passes if each.name != name)
    is_off = name == RouterCorrection.name and not options["rate"]
    return plan.changed(passes=others if is_off else (*others, PassOption(name, options)))


def _require_whole(checkpoint: Path) -> None:
    """Going on with damaged numbers would never be noticed. Raises SpecError that names the files."""
    wrong = problems(checkpoint)
    if wrong:
        raise SpecError(
            f"{checkpoint} is not whole: {'; '.join(wrong)}",
            allowed="a checkpoint as it was written",
            next=f"put the file back, or move {checkpoint} away to go on from the checkpoint before it "
            "(`meshwright checkpoint verify` says which are whole)",
        )


def job_of(
    plan: Plan, place: TrainingPlace, iterations: int, recipe: Recipe, rates: LearningRate, source: Source,
    checkpoints: Checkpoints | None, resumed: Resumed, measures_memory: bool, is_launched: bool = False,
    first: ControlledStep | None = None,
) -> Any:  # fmt: skip
    """A plan's program as a job. One that is launched on several hosts keeps its parameters in checkpoints only. ``first``:
    the first step, where sequences are in groups that change; its program is then the job's.

    Raises ExecutionError where it has more ranks than a machine has processes for.
    """
    from meshwright.executor.checkpoint.config import CheckpointConfig
    from meshwright.executor.job.job import Job
    from meshwright.executor.ops.optimizer_step import OptimizerConfig
    from meshwright.executor.training.tensor_layout import TensorLayout
    from meshwright.executor.training.training_job import TrainingConfig

    own = plan if first is None else plan_of_rank(plan, first.groups)
    layers = tuple(piece.num_blocks for piece in piece_layers(own.stages(), executed_pieces(own)))
    told = TrainingConfig(
        plan.model, layers, plan.workload.sequence_length, OptimizerConfig.of(recipe, plan.optimizer, clip_norm(plan)),
        seed=resumed.seed, first_step=resumed.step, layer_edges=layer_edges(plan),
        layout=TensorLayout.of(own), data_axes=data_axes(own), groups=None if first is None else first.groups,
        learning_rate=rates, first_sample=resumed.samples, records_parameters=not is_launched,
        source=with_their_tokenizer(source), router=recipe.router, correction_rate=correction_rate(plan),
        capacity=recipe.capacity,
    )  # fmt: skip
    files, path = {"plan.toml": plan_text(plan)}, str(resumed.path or "")
    program = place.whole_stages() if told.exchanges_inside else place.program
    program = program if first is None else first.program
    job = Job.of(
        program, iterations, training=told, dtype=plan.dtype, device=place.device,
        measures_memory=measures_memory and first is None,
        checkpoints=None if checkpoints is None else CheckpointConfig(checkpoints, path, files),
    )  # fmt: skip
    if not is_launched and job.num_ranks > MAX_RANKS:
        raise ExecutionError(
            f"the plan has {job.num_ranks} devices, each would be a process of this machine",
            allowed=f"up to {MAX_RANKS}",
            next="train a plan for `this computer`",
        )
    return job


def prepare(job: Any, said: Callable[[str], None]) -> None:
    """Read, check and tokenise the data before any process starts, and tell how far that is.

    Raises SpecError, ExecutionError where the data are none, too little, or not those of the checkpoint.
    """
    from meshwright.executor.data.data_source import check_bytes, is_sharded, told_packing
    from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
    from meshwright.executor.training.resuming import check_same_data

    if job.training.is_random:
        return
    source = job.training.source
    training = job.training.prepared(
        progress=lambda share: said(f"making tokens of {source.name}, {share:.0%} (once: they are kept)")
    )
    words = training.model.vocabulary_size
    if not is_sharded(training.source) and words > NUM_BYTE_VALUES:
        logger.warning(
            "no tokenizer is named, so text is read as bytes: %d of the model's %d tokens are used",
            NUM_BYTE_VALUES,
            words,
        )
    packed, lost = told_packing(training.source, training.sequence_length)
    if packed:
        said(packed)
    if lost:
        logger.warning("%s", lost)
    if source.data is not None:
        check_bytes(training.source, training.sequence_length)
    if job.checkpoints is not None:
        check_same_data(job.checkpoints, training, source.name, warns=False)


def with_their_tokenizer(source: Source) -> Source:
    """Weights that come with a tokenizer were trained on its tokens, so it is taken where none is named."""
    from meshwright.executor.data.data_source import is_sharded

    if source.tokenizer is not None or source.weights is None or is_sharded(source):
        return source
    theirs = Path(source.weights) / TOKENIZER_FILE
    return replace(source, tokenizer=theirs) if theirs.is_file() else source
