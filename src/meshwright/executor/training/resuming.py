"""Whether a training can go on from a checkpoint: before any process starts, its model, optimizer, seed, step and data."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.folder import nearest
from meshwright.executor.checkpoint.index import CheckpointIndex, CheckpointInfo, read_index
from meshwright.executor.routing.router_correction import has_corrections
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.specs.error import SpecError
from meshwright.specs.model.dimension import model_differences
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.slot import Reference
from meshwright.specs.training.source import PathLike

SHOWN_FIELDS = 4  # in which two models differ
_log = logging.getLogger(__name__)


def check_resumable(config: CheckpointConfig, training: TrainingConfig) -> None:
    """Before any process starts: can checkpoints be kept there, and can this training go on from the one that is named?

    Raises:
        SpecError: nothing can be written there; or the checkpoint is none, of another model, optimizer or seed, or the
            training does not begin at its step.
    """
    above = nearest(Path(config.kept.folder))
    if not above.is_dir() or not os.access(above, os.W_OK):
        wrong = "cannot be written to" if above.is_dir() else "is a file"
        raise SpecError(
            f"checkpoints cannot be kept in {config.kept.folder}: {above} {wrong}",
            allowed="a folder of yours",
        )
    if not config.resume_from:
        return
    index = read_index(config.resume_from)
    info = index.info
    for what, there, here in (
        ("model", *_models(info, training.model)),
        (
            "optimizer",
            _rule_name(info.training["optimizer"]["name"]),
            _rule_name(training.optimizer.name),
        ),
        ("seed", info.seed, training.seed),
        ("step", info.step, training.first_step),
    ):
        if there is not None and there != here:
            raise SpecError(
                f"{config.resume_from} has the {what} {there}, the training {here}",
                allowed="to go on with the same model, optimizer and seed, from the checkpoint's step",
                next="`meshwright checkpoint inspect` shows what it is of",
            )
    _check_frozen(index, training)


def check_same_data(
    config: CheckpointConfig, training: TrainingConfig, name: str, warns: bool = True
) -> None:
    """Text may be changed on the way, and seldom is on purpose: the samples that were counted are of other text, and
    with another tokenizer no token means what it did.

    Args:
        training: prepared. name: of its data, as the user gave it.
        warns: of other data that are accepted, and of sequences of another length; one process of a job does.

    Raises:
        SpecError: the data are others, and not accepted.
    """
    if not config.resume_from:
        return
    info = read_index(config.resume_from).info
    is_other = bool(info.data_digest) and info.data_digest != training.data_digest()
    if is_other and not config.kept.accepts_other_data:
        raise SpecError(
            f"{config.resume_from} was trained on other text than {name}, or with another tokenizer",
            allowed="the same as before",
            next=f"--other-data goes on with {name} nevertheless, at sample {info.samples:,}",
        )
    length = info.training.get("sequence_length", training.sequence_length)
    if is_other and warns:
        _log.warning("%s goes on with other data, %s, at sample %d", config.resume_from, name, info.samples)
    if length != training.sequence_length and warns:
        _log.warning(
            "%s was trained on sequences of %d tokens, this plan's have %d: the order of the text is another from "
            "here on, some of it comes again and some later",
            config.resume_from, length, training.sequence_length,
        )  # fmt: skip


def _rule_name(optimizer: str) -> str:
    """Of an optimizer its name, without options, which may change, and without the folder of a user's file."""
    return Reference.of(optimizer).name.rpartition("/")[2]


def _check_frozen(index: CheckpointIndex, training: TrainingConfig) -> None:
    """What is frozen is in no checkpoint, nor are corrections that no step changed, so they must come from where they came
    from before.

    Raises:
        SpecError: it would come from another folder, or be drawn by another seed.
    """
    is_adapted, info = training.model.is_adapted, index.info
    has_constants = training.model.has_router_corrections and not has_corrections(index.tensors)
    if not (is_adapted or has_constants):
        return
    before = (
        _place(info.training.get("source", {}).get("weights")),
        info.training.get("seed", training.seed),
    )
    now = (_place(training.source.weights), training.seed)
    if before[0] != now[0] or (is_adapted and not now[0] and before[1] != now[1]):
        what = "frozen parameters" if is_adapted else "routers' corrections"
        here = f"train with --seed {before[1]}" if is_adapted else "train without --from"
        raise SpecError(
            f"the {what} of this checkpoint are of {before[0] or f'seed {before[1]}'}, those of the job of "
            f"{now[0] or f'seed {now[1]}'}",
            allowed="the same source as before",
            next=f"train with --from {before[0]}" if before[0] else here,
        )


def _place(folder: PathLike | None) -> str:
    return "" if folder is None else str(Path(folder).resolve())


def _models(info: CheckpointInfo, here: ModelSpec) -> tuple[str | None, str]:
    """The models of a checkpoint (None: not known) and of a training in words, which are equal where the models are."""
    fields = info.training.get("model")
    there = None if fields is None else ModelSpec.from_dict(fields)
    if there is None or there.digest == here.digest:
        return (None if there is None else here.digest), here.digest
    shown = list(model_differences(there, here).items())[:SHOWN_FIELDS]
    before, now = (", ".join(f"{name} {values[side]}" for name, values in shown) for side in (0, 1))
    return f"{there.name} ({before})", f"{here.name} ({now})"
