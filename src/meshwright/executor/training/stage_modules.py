"""The modules of a rank's stages, of whatever architecture is trained, and the group of each of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from meshwright.executor.models.cut.module_cut import ModuleCut
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, DecoderStage, build_stage
from meshwright.executor.models.encoder_decoder import build_encoder_decoder_stage
from meshwright.executor.models.sequential import build_sequential_stage, load_modules
from meshwright.executor.models.skip_decoder import build_skip_stage
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.models.weights.initialisation import ParameterSource
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.ir.program import Program
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.layers import StageLayers, begins_decoder, stage_layers

Options = tuple[torch.dtype, int, float, torch.device]  # format of parameters, seed, dropout, device


def build_stages(
    training: TrainingConfig,
    numbers: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_tables: bool,
    parallel: TensorParallel | None,
    source: ParameterSource,
    cut: ModuleCut | None = None,
) -> dict[int, DecoderStage]:
    """The modules of these stages; a table that two of them share is one parameter. Without `has_tables` the vocabulary is
    elsewhere; with `parallel`, of a user's modules with `cut`, they have this device's part of every matrix."""
    options = (dtype, training.seed, training.dropout, device)
    layers, shared = stage_layers(training.layers_per_stage), (parallel, source)
    if training.source.modules:
        return _of_modules(training, {number: layers[number] for number in numbers}, dtype, device, cut)
    built = {number: _built(training, layers[number], options, shared, has_tables) for number in numbers}
    tables = [p for x in built.values() for n, p in x.global_parameters().items() if n == EMBEDDING_WEIGHT]
    for stage in built.values():
        if tables and training.model.has_tied_embeddings:
            stage.use_table(tables[0])
    return built


def _of_modules(
    training: TrainingConfig,
    layers: Mapping[int, StageLayers],
    dtype: torch.dtype,
    device: torch.device,
    cut: ModuleCut | None,
) -> dict[int, DecoderStage]:
    """Stages of a user's modules."""
    model = training.model
    whole = load_modules(training.source.modules, model, training.seed) if cut is None else cut.whole
    return {
        number: build_sequential_stage(
            whole, model, range(own.first_block, own.first_block + own.num_blocks), own.has_embedding, own.has_head,
            dtype, device, cut,
        )
        for number, own in layers.items()
    }  # fmt: skip


def _built(
    training: TrainingConfig,
    layers: StageLayers,
    options: Options,
    shared: tuple[TensorParallel | None, ParameterSource],
    has_tables: bool,
) -> DecoderStage:
    """A stage of whatever architecture is trained."""
    model, blocks = training.model, range(layers.first_block, layers.first_block + layers.num_blocks)
    has_embedding, has_head, (parallel, source) = layers.has_embedding, layers.has_head, shared
    if model.num_encoder_layers:
        return build_encoder_decoder_stage(
            model, blocks, has_embedding, has_head, *options, parallel=parallel, source=source
        )
    if training.layer_edges:
        return build_skip_stage(model, blocks, has_embedding, has_head, training.layer_edges, *options)
    return build_stage(
        model,
        blocks,
        has_embedding,
        has_head,
        *options,
        has_tables=has_tables,
        parallel=parallel,
        source=source,
    )


def group_of(
    program: Program, own: Sequence[int], tied: Sequence[int], stage: int, name: str, *, is_table_shared: bool
) -> int:
    """Which of a stage's `own` groups a parameter is in, by name: one that other stages use, too (`tied`), has the tied
    table; else the group named like the parameter; else the only one left. `is_table_shared`: stages of other ranks use the
    tied table, too.

    Raises:
        ExecutionError: no group, or several, could have it.
    """
    groups = program.tables.groups
    if name == EMBEDDING_WEIGHT and tied:
        return tied[0]
    if name == EMBEDDING_WEIGHT and is_table_shared:
        raise ExecutionError(
            f"stage {stage} uses a table that others use, too, and no parameter group of the program joins them",
            next="give the program a group with all stages that embed tokens or make logits",
        )
    named = [g for g in own if f"{name}.".startswith(f"{groups[g].name}.")]
    rest = [g for g in own if g not in tied]
    if len(named) == 1:
        return named[0]
    if len(rest) == 1:
        return rest[0]
    raise ExecutionError(
        f"stage {stage}: parameter {name} could be in {len(rest)} groups ({', '.join(groups[g].name for g in rest)})",
        allowed="one group for a stage besides tied ones, or groups named like what they hold (layers.3)",
    )


def is_table_elsewhere(training: TrainingConfig, program: Program, pipeline: int) -> bool:
    """Do stages of other devices of the pipeline than `pipeline` use a tied table, on a way that passes it, too?"""
    if not training.model.has_tied_embeddings:
        return False
    stages, number = stage_layers(training.layers_per_stage), training.model.num_encoder_layers
    users = {0, len(stages) - 1} | {s for s, layers in enumerate(stages) if begins_decoder(layers, number)}
    own = (path for path in program.tables.paths if any(hop.device == pipeline for hop in path))
    return any(hop.stage in users and hop.device != pipeline for path in own for hop in path)
