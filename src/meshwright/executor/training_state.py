"""What the handlers of training share on one rank: stages, parameters by group, gradients, data, sums of an iteration.

Shapes: B samples of a microbatch, S tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.executor.handler import ValueName
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, Stage, build_stage
from meshwright.executor.models.encoder_decoder import EncoderDecoderStage, build_encoder_decoder_stage
from meshwright.executor.models.skip_decoder import SkipStage, build_skip_stage
from meshwright.executor.models.vocabulary_shard import VocabularyShard
from meshwright.executor.ops.optimizer_step import OptimizerStep
from meshwright.executor.randomness import SampleKeys
from meshwright.executor.training import Batches, Training
from meshwright.executor.visited_share import visited_shares
from meshwright.ir.program import Program
from meshwright.ir.table import ParameterGroup
from meshwright.specs.error import ExecutionError
from meshwright.specs.layers import stage_layers


class GroupGradient:
    """The gradients of one parameter group on one rank: the `.grad` of its parameters.

    Where they will be reduced they are views of one flat buffer, so that the reduction is one message and no copy.
    """

    def __init__(
        self, group: ParameterGroup, parameters: Mapping[str, nn.Parameter], is_reduced: bool
    ) -> None:
        self.group, self.parameters, self.is_reduced = group, dict(parameters), is_reduced
        self.flat: Tensor | None = None
        self.is_live = self.is_mean = False

    def begin(self) -> None:
        """The first contribution of an iteration is about to come."""
        if self.is_live:
            return
        self.is_live, self.is_mean = True, False
        if not self.is_reduced:
            return
        first = next(iter(self.parameters.values()))
        self.flat = torch.zeros(
            sum(p.numel() for p in self.parameters.values()), dtype=first.dtype, device=first.device
        )
        pieces = torch.split(self.flat, [p.numel() for p in self.parameters.values()])
        for parameter, piece in zip(self.parameters.values(), pieces):
            parameter.grad = piece.view_as(parameter)

    def divide(self, visited: float) -> None:
        """Into the mean over what visited the group, where that is not the whole iteration; once in an iteration."""
        if 0.0 < visited < 1.0 and not self.is_mean:
            self.is_mean = True
            torch._foreach_div_([p.grad for p in self.parameters.values() if p.grad is not None], visited)

    def end(self) -> None:
        """The step has used them."""
        self.flat, self.is_live = None, False
        for parameter in self.parameters.values():
            parameter.grad = None

    def copies(self) -> dict[str, Tensor]:
        """The gradients as they are, by name in the whole model."""
        return {name: p.grad.detach().clone() for name, p in self.parameters.items() if p.grad is not None}


class TrainingState:
    """Stages, parameters, gradients and data of one rank.

    ``replica``: which part of the data. ``groups``: by number in the program's table, those of the stages here.
    """

    def __init__(
        self, training: Training, program: Program, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.training, self.program = training, program
        coordinates = program.coordinates(rank)
        self.pipeline = coordinates.get(program.axes[0].name, 0)
        self._place_in_data(coordinates)
        own = range(int(program.offsets[rank]), int(program.offsets[rank + 1]))
        names = [program.tables.effects[e].name for e in program.columns.effect[own.start : own.stop]]
        stages = [int(s) for s in program.columns.stage[own.start : own.stop]]
        self.shard = self._shard(program, names, dtype, device)
        self.stages = self._build(sorted(set(stages)), dtype, device)
        edges = training.stage_edges()
        # of every stage that others read beside the path: which of its outputs each edge reads
        self.outputs_of_edges = {s: tuple(e.part for e in edges if e.source == s) for s in self.stages}
        reduced = {
            program.tables.groups_of_stage[stage][int(program.columns.part[i])]
            for i, name, stage in zip(own, names, stages)
            if name == "REDUCE_GRAD"
        }
        self.gradients = self._gradients(reduced)
        self.steps = {
            g: OptimizerStep(x.parameters.values(), training.optimizer) for g, x in self.gradients.items()
        }
        self.visited = visited_shares(program)
        self.batches: Batches | None = None
        self.begin_iteration(0)
        self.recorded: list[dict[str, Tensor]] = []

    def _place_in_data(self, coordinates: Mapping[str, int]) -> None:
        """Which replica this is, and where its samples begin in the global batch."""
        self.replica, self.num_replicas = 0, 1
        for axis in self.program.axes:
            if axis.name in self.training.data_axes:
                self.replica = self.replica * axis.size + coordinates[axis.name]
                self.num_replicas *= axis.size
        self.counts = self.training.sample_counts(self.program)
        self.is_home_replica = all(coordinates[a.name] == 0 for a in self.program.axes[1:])

    def _shard(
        self, program: Program, names: Sequence[str], dtype: torch.dtype, device: torch.device
    ) -> VocabularyShard | None:
        """This device's rows of a split vocabulary; with two barriers its T sums the input's gradient."""
        self.has_one_barrier = "SUM_OUTPUT_GRAD" not in names
        if "S" not in names:
            return None
        options = (program.axes[0].size, self.training.seed, dtype, device)
        return VocabularyShard(self.training.model, self.pipeline, *options)

    def _build(self, stages: Sequence[int], dtype: torch.dtype, device: torch.device) -> dict[int, Stage]:
        """The modules of this rank; a table that two of them share is one parameter."""
        training, options = self.training, (dtype, self.training.seed, self.training.dropout, device)
        built: dict[int, Stage] = {}
        layers = stage_layers(training.layers_per_stage)
        for s in stages:
            first, count, has_embedding, has_head = layers[s]
            blocks = range(first, first + count)
            built[s] = self._build_stage(blocks, has_embedding, has_head, options)
        tables = [
            p for x in built.values() for n, p in x.global_parameters().items() if n == EMBEDDING_WEIGHT
        ]
        for stage in built.values():
            if tables and training.model.has_tied_embeddings:
                stage.use_table(tables[0])
        return built

    def _build_stage(
        self,
        blocks: range,
        has_embedding: bool,
        has_head: bool,
        options: tuple[torch.dtype, int, float, torch.device],
    ) -> Stage:
        """A stage of the architecture that is trained."""
        training, model = self.training, self.training.model
        if training.num_encoder_layers:
            number = training.num_encoder_layers
            return build_encoder_decoder_stage(model, blocks, has_embedding, has_head, number, *options)
        if training.layer_edges:
            return build_skip_stage(model, blocks, has_embedding, has_head, training.layer_edges, *options)
        has_tables = self.shard is None
        return build_stage(model, blocks, has_embedding, has_head, *options, has_tables=has_tables)

    def apply(
        self, stage: int, microbatch: int, x: Tensor, received: Sequence[Tensor], device: torch.device
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output of a stage (logits with the head), and what stages beside the path read of it."""
        module, keys = self.stages[stage], self.keys(microbatch)
        if isinstance(module, EncoderDecoderStage):
            y, given = module.with_edges(x, keys, received, self.data(microbatch, device)[0])
            return y, given if self.outputs_of_edges[stage] else ()  # the next stage has it from the path
        if isinstance(module, SkipStage):
            return module.with_edges(x, keys, received)
        return module(x, keys), ()

    def _gradients(self, reduced: set[int]) -> dict[int, GroupGradient]:
        """Every parameter of every stage here in exactly one group."""
        parts: dict[int, dict[str, nn.Parameter]] = {g: {} for s in self.stages for g in self.groups_of(s)}
        for number, stage in self.stages.items():
            for name, parameter in stage.global_parameters().items():
                parts[self._group_of(number, name)][name] = parameter
        if self.shard is not None:
            for name, parameter in self.shard.global_parameters().items():
                parts[self._group_of(min(self.stages), name)][name] = parameter
        groups = self.program.tables.groups
        return {g: GroupGradient(groups[g], found, g in reduced) for g, found in parts.items() if found}

    def _group_of(self, stage: int, name: str) -> int:
        """A group by name: one that two stages use has the tied table; else the group named like the parameter; else the
        only one left.

        Raises:
            ExecutionError: no group, or several, could have it.
        """
        groups = self.program.tables.groups
        own = self.groups_of(stage)
        tied = [g for g in own if len(groups[g].stages) > 1]
        if name == EMBEDDING_WEIGHT and tied:
            return tied[0]
        if name == EMBEDDING_WEIGHT and self._is_used_elsewhere():
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

    def _is_used_elsewhere(self) -> bool:
        """Do stages of other ranks use the tied table?"""
        training, paths = self.training, self.program.tables.paths
        if not training.model.has_tied_embeddings or self.shard is not None:
            return False
        starts = [layers[0] for layers in stage_layers(training.layers_per_stage)]
        users = {0, len(starts) - 1} | {s for s, at in enumerate(starts) if at == training.num_encoder_layers}
        return any(hop.stage in users and hop.device != self.pipeline for path in paths for hop in path)

    def groups_of(self, stage: int) -> tuple[int, ...]:
        """Parameter groups that a stage uses."""
        return self.program.tables.groups_of_stage[stage]

    def live_gradients(self, stage: int) -> tuple[GroupGradient | None, ...]:
        """Gradients of a stage's groups, ready to be added to."""
        found = tuple(self.gradients.get(g) for g in self.groups_of(stage))
        for gradient in found:
            if gradient is not None:
                gradient.begin()
        return found

    def is_home(self, group: int) -> bool:
        """Does this rank count and return the group? Each parameter once, whatever its copies."""
        first = min(self.program.tables.groups[group].stages)
        device = next(hop.device for path in self.program.tables.paths for hop in path if hop.stage == first)
        return self.is_home_replica and device == self.pipeline

    def begin_iteration(self, iteration: int) -> None:
        """Forget the data and sums of the iteration before."""
        self.step = self.training.first_step + iteration
        self.loss: Tensor | None = None
        self.squared_norm: Tensor | None = None
        self.num_undone = 0  # groups whose step was taken back
        self._data: dict[int, tuple[Tensor, Tensor]] = {}
        self.copies: dict[str, Tensor] = {}

    def end_iteration(self) -> dict[str, float]:
        """Sums of this rank: its share of the loss, and of the squared gradient norm."""
        for group, gradient in self.gradients.items():
            if gradient.is_live:  # a program without STEP
                gradient.divide(self.visited[group])
                self.count(group)
                gradient.end()
        if self.training.records_gradients:
            self.recorded.append(self.copies)
        return {
            "loss": 0.0 if self.loss is None else float(self.loss),
            "squared_norm": 0.0 if self.squared_norm is None else float(self.squared_norm),
            "num_undone": self.num_undone,
        }

    def count(self, group: int) -> None:
        """Add a group to the norm, and keep its gradients where they are asked for."""
        if not self.is_home(group):
            return
        own = self.steps[group].squared_norm()
        self.squared_norm = own if self.squared_norm is None else self.squared_norm + own
        if self.training.records_gradients:
            self.copies.update(self.gradients[group].copies())

    def samples(self, microbatch: int) -> tuple[int, ...]:
        """Numbers of a microbatch's samples in the global batch."""
        first = self.replica * sum(self.counts) + sum(self.counts[:microbatch])
        return tuple(range(first, first + self.counts[microbatch]))

    def data(self, microbatch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS of a microbatch in this iteration."""
        if microbatch not in self._data:
            if self.batches is None:
                self.batches = self.training.batches()
            tokens_BS, targets_BS = self.batches.batch(
                self.training.seed, self.step, self.samples(microbatch), self.training.sequence_length
            )
            self._data[microbatch] = (tokens_BS.to(device), targets_BS.to(device))
        return self._data[microbatch]

    def token_weight(self, microbatch: int) -> float:
        """Weight of one token's loss: those of all tokens of all replicas sum to one."""
        row = self.program.tables.microbatches[microbatch]
        return row.weight / row.tokens / self.num_replicas * self.training.tokens_per_target

    def keys(self, microbatch: int) -> SampleKeys | None:
        """Names of the draws of a microbatch; None without dropout."""
        if not self.training.dropout:
            return None
        return SampleKeys(self.training.seed, self.step, self.samples(microbatch))

    def initial_values(self) -> dict[ValueName, Any]:
        """Parameters and optimizer states as they are before the first iteration."""
        return {
            ValueName(kind, g): self.gradients.get(g)
            for g in {g for s in self.stages for g in self.groups_of(s)}
            for kind in ("parameter", "optimizer_state")
        }

    def parameters(self) -> dict[str, Tensor]:
        """Parameters that this rank returns."""
        return {
            name: parameter.detach().clone()
            for g, gradient in self.gradients.items()
            if self.is_home(g)
            for name, parameter in gradient.parameters.items()
        }

    def tensors(self) -> list[Tensor]:
        """All parameters here, for counting memory (their gradients count with them)."""
        modules = [*self.stages.values(), *([] if self.shard is None else [self.shard])]
        return [p for module in modules for p in module.parameters()]
