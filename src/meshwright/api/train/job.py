"""The job that a plan, a recipe, data and a checkpoint make."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.train.recipe import Checkpoints, Recipe, Source
from meshwright.ir.program import Program
from meshwright.lowering.sharding.gradient_norm import clip_norm
from meshwright.lowering.transfer.stage_edge import architecture_of
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.stage.mesh import data_axes
from meshwright.stage.piece import executed_pieces, piece_layers

if TYPE_CHECKING:
    from meshwright.executor.training.learning_rate import LearningRate

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

    Raises SpecError where it is not whole, and as `Checkpoints.newest`.
    """
    found = None if checkpoints is None else checkpoints.newest(is_first)
    if found is None:
        return Resumed(first_step, seed, is_asked=checkpoints is not None and checkpoints.resumes)
    from meshwright.executor.checkpoint.index import read_index

    info = read_index(found).info
    if is_first:
        _require_whole(found)
    if seed not in (0, info.seed):
        logger.warning("%s began with seed %d, which is kept; %d is not used", found, info.seed, seed)
    return Resumed(info.step, info.seed, found, info.samples, info.tokens, True)


def _require_whole(checkpoint: Path) -> None:
    """Going on with damaged numbers would never be noticed. Raises SpecError that names the files."""
    from meshwright.executor.checkpoint.verify import problems

    wrong = problems(checkpoint)
    if wrong:
        raise SpecError(
            f"{checkpoint} is not whole: {'; '.join(wrong)}",
            allowed="a checkpoint as it was written",
            next=f"put the file back, or move {checkpoint} away to go on from the checkpoint before it "
            "(`meshwright checkpoint verify` says which are whole)",
        )


def job_of(
    plan: Plan, program: Program, iterations: int, recipe: Recipe, rates: LearningRate, source: Source,
    checkpoints: Checkpoints | None, resumed: Resumed, measures_memory: bool, is_launched: bool = False,
) -> Any:  # fmt: skip
    """The plan's program as a job. One that is launched on several hosts keeps its parameters in checkpoints only.

    Raises ExecutionError where it has more ranks than a machine has processes for.
    """
    from meshwright.executor.job.job import Job
    from meshwright.executor.training.tensor_layout import TensorLayout
    from meshwright.executor.training.training_job import TrainingConfig

    edges, num_encoder_layers = architecture_of(plan)
    layers = tuple(piece.num_blocks for piece in piece_layers(plan.stages(), executed_pieces(plan)))
    told = TrainingConfig(
        plan.model, layers, plan.workload.sequence_length, recipe.optimizer(clip_norm(plan)),
        seed=resumed.seed, first_step=resumed.step, layer_edges=edges, num_encoder_layers=num_encoder_layers,
        layout=TensorLayout.of(plan), data_axes=data_axes(plan),
        learning_rate=rates, evaluate_every=source.evaluate_every, num_evaluated=source.num_evaluated,
        first_sample=resumed.samples, records_parameters=not is_launched,
        text_field=source.text_field, document_mask=source.document_mask, **_source_fields(source),
    )  # fmt: skip
    kept: dict[str, Any] = (
        {} if checkpoints is None else {"checkpoints": checkpoints.config(resumed.path, plan)}
    )
    job = Job.of(
        program, iterations, training=told, dtype=plan.dtype, measures_memory=measures_memory, **kept
    )
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
    from meshwright.executor.data.data_source import STANDARD_LIBRARY
    from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
    from meshwright.executor.training.training_job import RANDOM

    training = job.training.prepared(
        progress=lambda share: said(
            f"making tokens of {job.training.data}, {share:.0%} (once: they are kept)"
        )
    )
    words = training.model.vocabulary_size
    if job.training.data != RANDOM and not training.source.has_shards and words > NUM_BYTE_VALUES:
        logger.warning(
            "no tokenizer is named, so text is read as bytes: %d of the model's %d tokens are used",
            NUM_BYTE_VALUES,
            words,
        )
    if job.training.data not in (RANDOM, STANDARD_LIBRARY):
        training.source.check_bytes(training.sequence_length)
    if job.checkpoints is not None:
        job.checkpoints.check_data(training, job.training.data, warns=False)


def _source_fields(source: Source) -> dict[str, Any]:
    """Fields of `TrainingConfig` that say where what is read lies. Weights that come with a tokenizer were trained
    on its tokens, so it is taken where none is named.
    """
    from meshwright.executor.data.token_shard import has_shards

    tokenizer = source.tokenizer
    if (
        tokenizer is None
        and source.weights is not None
        and (source.data is None or not has_shards(Path(source.data)))
    ):
        theirs = Path(source.weights) / TOKENIZER_FILE
        tokenizer = theirs if theirs.is_file() else None
    given = {
        "data": source.data, "tokenizer": tokenizer, "initial": source.weights, "modules": source.modules or None,
    }  # fmt: skip
    return {name: os.fspath(path) for name, path in given.items() if path is not None}
