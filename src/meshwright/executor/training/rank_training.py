"""What the handlers of training share on one rank: stages, parameters by group, gradients, data, sums of an iteration.

Shapes: B samples of a microbatch, S tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.executor.layout.piece import Piece
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.models.chain.stage_segment import StageSegment, stage_segments
from meshwright.executor.models.chain.step_data import MicrobatchData
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_cut import ModuleCut
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.models.encoder_decoder import EncoderDecoderStage
from meshwright.executor.models.part.mixture import MixtureOfExperts
from meshwright.executor.models.sequential import load_modules
from meshwright.executor.models.skip_decoder import SkipStage
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.models.vocabulary_shard import VocabularyShard
from meshwright.executor.models.weights.initialisation import parameter_source
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.expert.capacity import RouterCapacity
from meshwright.executor.ops.expert.router_loss import RouterLoss
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.ops.token_places import own_tokens
from meshwright.executor.rank.handler import Row, ValueName
from meshwright.executor.routing.router_correction import RouterCorrections
from meshwright.executor.routing.routing_record import RoutingRecord
from meshwright.executor.state.canonical_sum import Contribution
from meshwright.executor.state.contribution import last_contributions, most_contributions
from meshwright.executor.state.division import Division
from meshwright.executor.state.frozen_shard import FrozenShard
from meshwright.executor.state.group_pieces import group_pieces
from meshwright.executor.state.group_state import GroupState
from meshwright.executor.team.rank_team import RankTeam
from meshwright.executor.team.transport import Transport
from meshwright.executor.training.group_data import GroupData
from meshwright.executor.training.rank_batches import RankData
from meshwright.executor.training.stage_modules import build_stages, group_of, is_table_elsewhere
from meshwright.executor.training.tensor_layout import BRANCH_NORMS, PARTIAL_MODULES, SHARDS
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.executor.training.visited_share import visited_shares
from meshwright.ir.core_vocabulary import HOST_STATE, MASTER_COPY, STORE_STATE, UNSHARD
from meshwright.ir.program import Program
from meshwright.lowering.sequence.group_offload import stored_segments
from meshwright.specs.model.adaptation import LORA_A, LORA_B
from meshwright.specs.model.layers import stage_layers
from meshwright.stage.chain.parameters import is_of_experts
from meshwright.stage.group.parameter_group import OF_EXPERTS

GATHERED = UNSHARD.writes[0].kind


class TrainingState:
    """Stages, parameters, gradients and data of one rank.

    ``data``: its part of every batch. ``groups``: by number in the program's table, those of the stages here.
    """

    def __init__(
        self,
        training: TrainingConfig,
        program: Program,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        inside: Transport | None = None,
    ) -> None:
        """`inside`: by which devices that share a user's modules exchange within these (`inner_ranks`)."""
        self.training, self.program = training.prepared(), program
        self.cut: ModuleCut | None = None
        self.rank, coordinates = rank, program.coordinates(rank)
        self.coordinates, self.formats = coordinates, training.layout.formats(dtype)
        self.parallel = self._parallel(inside)
        self.pipeline = coordinates.get(program.axes[0].name, 0)
        self.data = self._data()
        self.segments = self._segments()
        own = range(int(program.offsets[rank]), int(program.offsets[rank + 1]))
        names = [program.tables.effects[e].name for e in program.columns.effect[own.start : own.stop]]
        stages = [int(s) for s in program.columns.stage[own.start : own.stop]]
        self.source = parameter_source(training.model, training.seed, training.source.weights)
        self.shard = self._shard(program, names, dtype, device)
        held = sorted({self.stage_of(stage) for stage in stages})
        self.stages = build_stages(
            self.training, held, dtype, device, has_tables=self.shard is None, parallel=self.parallel, source=self.source,
            cut=self.cut,
        )  # fmt: skip
        self.router_losses, self.capacities = self._router_losses(), self._capacities()
        edges = training.stage_edges()
        # of every stage that others read beside the path: which of its outputs each edge reads
        self.outputs_of_edges = {s: tuple(e.part for e in edges if e.source == s) for s in self.stages}
        reduced = {
            program.tables.groups_of_stage[stage][int(program.columns.part[i])]
            for i, name, stage in zip(own, names, stages)
            if name == "REDUCE_GRAD"
        }
        self.groups = self._groups(reduced)
        self.corrections = RouterCorrections(
            training.model,
            self.stages,
            partial(self._group_of, is_table_shared=False),
            training.correction_rate,
        )
        self.stored = stored_segments(program, rank)
        self.closed = last_contributions(program, own, self._stages_of)
        self.visited = visited_shares(program)
        self.loss: Tensor | None
        self._known: dict[tuple[int, int], MicrobatchData] = {}
        self.routing: RoutingRecord | None = None
        self.begin_iteration(0)
        self.recorded: list[list[Piece]] = []

    def record_routing(self, num_steps: int, every: int = 1) -> None:
        """Keep which experts the tokens of the last so many steps went to, of those whose number `every` divides."""
        self.routing = RoutingRecord(num_steps, self._tensor_team.number, every)
        self.routing.watch(self.stages.values())

    def _data(self) -> RankData | GroupData:
        """This rank's part of every batch of the program."""
        training, groups = self.training, self.training.groups
        if groups is None:
            return RankData(training, self.program, self.coordinates)
        return GroupData(training, self.program, groups, training.sequences(len(groups.lengths)))

    def _router_losses(self) -> list[RouterLoss]:
        """One for every router here, where the training has such losses."""
        training, program = self.training, self.program
        if not training.router:
            return []
        replicas = prod(axis.size for axis in program.axes if axis.name in training.replica_axes)
        num_tokens = sum(microbatch.tokens for microbatch in program.tables.microbatches) * replicas
        found = []
        for mixture in self._mixtures():
            mixture.losses = RouterLoss(training.router, training.sequence_length, num_tokens)
            found.append(mixture.losses)
        return found

    def _capacities(self) -> list[RouterCapacity]:
        """One for every router here, where experts have a capacity."""
        found = []
        for mixture in self._mixtures() if self.training.capacity else ():
            mixture.capacity = RouterCapacity(self.training.capacity, self.training.sequence_length)
            found.append(mixture.capacity)
        return found

    def _mixtures(self) -> Iterator[MixtureOfExperts]:
        modules = (each for stage in self.stages.values() for each in stage.modules())
        return (each for each in modules if isinstance(each, MixtureOfExperts))

    def adopt(self, training: TrainingConfig, program: Program) -> None:
        """Go on with another program of the same parameters: other microbatches, in other segments. ``training``: with its
        groups, prepared as the one before is."""
        self.training = replace(training, source=self.training.source)
        self.program = program
        assert isinstance(self.data, GroupData) and training.groups is not None, "only groups change by step"
        self.data = GroupData(self.training, program, training.groups, self.data.source)
        self.segments, self.stored = self._segments(), stored_segments(program, self.rank)
        own = range(int(program.offsets[self.rank]), int(program.offsets[self.rank + 1]))
        self.closed = last_contributions(program, own, self._stages_of)
        self.visited = visited_shares(program)

    def _parallel(self, inside: Transport | None) -> TensorParallel | None:
        """This rank's part of every matrix; None where it has all, or its modules see to their parts themselves."""
        layout, team = self.training.layout, self._tensor_team
        self.tensor_shard: TensorShard
        if inside is not None:
            source, model = self.training.source, self.training.model
            whole = load_modules(source.modules, model, self.training.seed)
            self.cut = ModuleCut.of(whole, source.tensor_rules, InnerTeam(team.number, team.degree, inside))
            self.tensor_shard = self.cut.shard(model)
            return None
        experts = layout.expert_shard(self.program, self.coordinates)
        if team.degree == 1 and experts.is_whole:
            self.tensor_shard = TensorShard(self.training.model)
            return None
        self.tensor_shard = TensorShard(self.training.model, team.degree, team.number, experts)
        self.tensor_shard.check()
        return TensorParallel(self.tensor_shard, team, layout.sequence_parallel)

    def _segments(self) -> tuple[StageSegment, ...]:
        """What every stage of the program is, where stages are chains of segments."""
        degrees = self.training.inner_degrees
        if not degrees.has_segments:
            return ()
        layers = stage_layers(self.training.layers_per_stage)
        return stage_segments(self.training.model, layers, degrees, self.program, self._tensor_team)

    @property
    def _tensor_team(self) -> RankTeam:
        """With whom this rank shares values of a tensor-parallel group: with nobody where it is alone."""
        return RankTeam.along(self.program, self.training.layout.tensor_axes, self.rank)

    def stage_of(self, stage: int) -> int:
        """The stage of the training that a stage of the program is, or is a segment of."""
        return self.segments[stage].stage if self.segments else stage

    @property
    def _stages_of(self) -> list[int]:
        """Of every stage of the program, the stage of the training."""
        return [self.stage_of(stage) for stage in range(self.program.tables.num_stages)]

    def microbatch_data(self, microbatch: int, part: int, device: torch.device) -> MicrobatchData:
        """What the steps of segments know of a part of a microbatch. Segments of one follow each other: those of the last
        microbatch are kept."""
        if all(known != microbatch for known, _ in self._known):
            self._known.clear()
        if (microbatch, part) not in self._known:
            self._known[microbatch, part] = self._microbatch_data(microbatch, part, device)
        found = self._known[microbatch, part]
        if self.routing is not None:
            self.routing.at(microbatch, part, found.tokens_BS.numel())
        return found

    def _microbatch_data(self, microbatch: int, part: int, device: torch.device) -> MicrobatchData:
        layout = self.training.layout
        rows = layout.part_samples(self.data.counts[microbatch], part)
        own, chunk = slice(rows.start, rows.stop), layout.chunk(self.training.sequence_length, part)
        tokens_BS, targets_BS = (own_tokens(x, chunk) for x in self.data.tokens(microbatch, device))
        documents_BS = self.data.documents(microbatch, device)
        mask = None if documents_BS is None else DocumentMask(documents_BS[own])
        # of an encoder-decoder the tokens that it reads, and those that it goes on with
        tokens, targets = (
            each[own].chunk(self.training.tokens_per_target, -1) for each in (tokens_BS, targets_BS)
        )
        return MicrobatchData(
            tokens[0], targets[-1], mask, self.data.keys(microbatch, own, chunk), self.data.token_weight(microbatch),
            chunk or self.data.part_of(microbatch), continued_BS=tokens[-1], is_packed=self.data.is_packed(microbatch),
        )  # fmt: skip

    def _shard(
        self, program: Program, names: Sequence[str], dtype: torch.dtype, device: torch.device
    ) -> VocabularyShard | None:
        """This device's rows of a split vocabulary; with two barriers its T sums the input's gradient."""
        self.has_one_barrier = "SUM_OUTPUT_GRAD" not in names
        if "S" not in names:
            return None
        options = (program.axes[0].size, self.training.seed, dtype, device)
        return VocabularyShard(self.training.model, self.pipeline, *options, source=self.source)

    def apply(
        self, stage: int, microbatch: int, x: Tensor, received: Sequence[Tensor], device: torch.device
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output of a stage (logits with the head), and what stages beside the path read of it."""
        module, keys = self.stages[stage], self.data.keys(microbatch)
        if self.routing is not None:
            self.routing.at(microbatch, 0, x.shape[0] * x.shape[1])
        if isinstance(module, EncoderDecoderStage):
            return module.of_windows(x, keys, self.data.tokens(microbatch, device)[0]), ()
        documents_BS = self.data.documents(microbatch, device)
        if isinstance(module, SkipStage):
            return module.with_edges(x, keys, received, documents_BS)
        return module(x, keys, documents_BS), ()

    def loss_of(self, logits_BSV: Tensor, targets_BS: Tensor, weight: float) -> Tensor:
        """Sum of the tokens' losses, each with this weight."""
        # a module of the user's may keep its output for its own backward
        is_consumed = not self.training.source.modules
        return token_cross_entropy(logits_BSV, targets_BS, weight, is_consumed=is_consumed)

    def count_loss(self, loss: Tensor) -> None:
        """Add a microbatch's loss to this rank's share; of those that find the same one, the first."""
        if self.tensor_shard.number == 0:
            self.loss = loss if self.loss is None else self.loss + loss

    def _groups(self, reduced: set[int]) -> dict[int, GroupState]:
        """Every parameter that trains of every stage here in exactly one group."""
        parts: dict[int, dict[str, nn.Parameter]] = {g: {} for s in self.stages for g in self.groups_held(s)}
        elsewhere = self.shard is None and is_table_elsewhere(self.training, self.program, self.pipeline)
        for stage, name, parameter in self._held():
            if parameter.requires_grad:
                parts[self._group_of(stage, name, is_table_shared=elsewhere)][name] = parameter
        frozen = self._frozen_shards()
        return {
            g: self._group(g, found, g in reduced, frozen.get(g))
            for g, found in parts.items()
            if found or g in frozen
        }

    def _held(self) -> Iterator[tuple[int, str, nn.Parameter]]:
        """Stage, name in the whole model, and parameter of all that is here; a split vocabulary is the first stage's."""
        held: list[tuple[int, DecoderStage | VocabularyShard]] = [*self.stages.items()]
        held += [] if self.shard is None else [(min(self.stages), self.shard)]
        for stage, module in held:
            yield from ((stage, name, parameter) for name, parameter in module.global_parameters().items())

    def _frozen_shards(self) -> dict[int, FrozenShard]:
        """Of every group here what does not train, where parameters are gathered; made while all of them are there."""
        parts: dict[int, dict[str, nn.Parameter]] = {}
        for stage, name, parameter in self._held():
            if not parameter.requires_grad:
                # a frozen table that stages share is in the group of each
                group = self._group_of(stage, name, is_table_shared=False)
                parts.setdefault(group, {})[name] = parameter
        divisions = {g: self._division(g) for g in parts}
        return {
            g: FrozenShard(parts[g], division.values, self.formats.parameters)
            for g, division in divisions.items()
            if division is not None and division.is_gathered
        }

    def _division(self, group: int) -> Division | None:
        """How a group is divided among ranks."""
        return self.training.layout.division(self.program, self.rank, of_experts=self._is_of_experts(group))

    def _is_of_experts(self, group: int) -> bool:
        """Has it the experts of a stage, which are divided?"""
        return self.program.tables.groups[group].name.endswith(OF_EXPERTS)

    def _group(
        self,
        number: int,
        parameters: Mapping[str, nn.Parameter],
        is_reduced: bool,
        frozen: FrozenShard | None = None,
    ) -> GroupState:
        """One group, its partial gradients (`is_partial`) in front, so that they are one piece of its buffers."""
        layout, row = self.training.layout, self.program.tables.groups[number]
        ordered = dict(sorted(parameters.items(), key=lambda item: not self.is_partial(item[0])))
        assert any(map(self.is_partial, ordered)) == bool(row.partial), f"{row.name}: what its program sums"
        made = GroupState(
            row, ordered, self.training.optimizer, self.formats,
            is_reduced=is_reduced or any(map(self.is_partial, ordered)), division=self._division(number),
            num_apart=most_contributions(self.program, number, self._stages_of) if layout.is_canonical else 0,
            frozen=frozen,
        )  # fmt: skip
        if any(effect.name == STORE_STATE.name for effect in self.program.tables.effects):
            made.moments.store()  # between two steps it is on the host
        return made

    def is_partial(self, name: str) -> bool:
        """Is a parameter whole on every device of a tensor-parallel group, and its gradient there of a part of the tokens, of
        the heads, or of what an addition reads or gives? Then it is summed over them."""
        if self.parallel is None or self.parallel.team.degree == 1 or not self.tensor_shard.is_whole(name):
            return False
        if is_of_experts(name):  # whole ones have gradients of other rows, which their own group sums
            return False
        branches = BRANCH_NORMS if self.training.model.has_parallel_branches else ()
        is_of_part = name.split(".")[-2] in (*PARTIAL_MODULES, *branches, LORA_A, LORA_B)
        return self.parallel.divides_sequence or is_of_part

    def _group_of(self, stage: int, name: str, *, is_table_shared: bool) -> int:
        own, groups = self.groups_held(stage), self.program.tables.groups
        if any(self._is_of_experts(g) for g in own):
            own = tuple(g for g in own if self._is_of_experts(g) == is_of_experts(name))
        tied = [g for g in own if len({self.stage_of(s) for s in groups[g].stages}) > 1]
        return group_of(self.program, own, tied, stage, name, is_table_shared=is_table_shared)

    def groups_of(self, stage: int) -> tuple[int, ...]:
        """Parameter groups that a stage of the program uses."""
        return self.program.tables.groups_of_stage[stage]

    def groups_held(self, stage: int) -> tuple[int, ...]:
        """Parameter groups of a stage of the training, all of its segments'."""
        own = (s for s in range(self.program.tables.num_stages) if self.stage_of(s) == stage)
        return tuple(dict.fromkeys(g for s in own for g in self.groups_of(s)))

    def begin_gradients(self, stage: int) -> None:
        """Gradients of a stage's groups are about to be added to."""
        for g in self.groups_of(stage):
            if g in self.groups:
                self.groups[g].begin()

    def contributed(self, row: Row) -> None:
        """A compute has added to the gradients of its stage's groups, and is the last to do so of some."""
        for g in self.closed.get(row.number, ()):
            if g in self.groups:
                which = Contribution(self.data.replica, row.microbatch, self.stage_of(row.stage))
                self.groups[g].contributed(which)

    @contextlib.contextmanager
    def reading(self, row: Row, inputs: Sequence[Any]) -> Iterator[None]:
        """Parameters that were gathered for a compute are there within the block."""
        bound = []
        for names, values in zip(row.reads, inputs):
            if names and names[0].kind == GATHERED:
                flat = values if isinstance(values, tuple) else (values,)
                bound += [
                    (self.groups[name.index], value) for name, value in zip(names, flat) if value is not None
                ]
        for group, value in bound:
            group.bind(value)
        try:
            yield
        finally:
            for group, _ in bound:
                group.unbind()

    def is_home(self, group: int) -> bool:
        """Does this rank count and return its part of the group? Each element once, whatever its copies."""
        first = min(self.program.tables.groups[group].stages)
        is_first = self.program.tables.devices_of_stage[first][0] == self.pipeline
        if not is_first and self.program.axes[0].name not in self._held_axes(group):
            return False
        return self._is_first_along(
            axis.name for axis in self.program.axes[1:] if axis.name not in self._held_axes(group)
        )

    def _held_axes(self, group: int) -> tuple[str, ...]:
        """Axes along which ranks have other parts of a group; along all others they have copies."""
        layout, is_of_experts = self.training.layout, self._is_of_experts(group)
        shards = layout.divided_axes(of_experts=is_of_experts)[SHARDS] if self.groups[group].division else ()
        return (*shards, *layout.held_axes(of_experts=is_of_experts))

    def _is_first_along(self, axes: Iterable[str]) -> bool:
        return all(self.coordinates[name] == 0 for name in axes)

    def is_counted(self, name: str) -> bool:
        """Does this rank count and return a parameter that it has? What every device of a tensor-parallel group has is the
        first one's."""
        return self.tensor_shard.number == 0 or not self.tensor_shard.is_whole(name)

    def begin_iteration(self, iteration: int) -> None:
        """Forget the data and sums of the iteration before."""
        self.data.begin(self.training.first_step + iteration)
        self._known.clear()
        if self.routing is not None:
            self.routing.begin(self.data.step)
        self.loss = None
        self.corrections.begin()
        for each in self.router_losses:
            each.total = None
        for capacity in self.capacities:
            capacity.num_dropped = None
        self.squared_norm: Tensor | None = None
        self.num_undone = 0  # groups whose step was skipped or taken back
        self.copies: list[Piece] = []

    def end_iteration(self) -> dict[str, float]:
        """Sums of this rank: its share of loss, routers' losses, dropped choices, and squared gradient norm."""
        for number, group in self.groups.items():
            if group.is_live:  # a program without STEP
                self.finish_gradients(number)
                group.end()
        if self.training.records_gradients:
            self.recorded.append(self.copies)
        if self.routing is not None:
            self.routing.end()
        return {
            "loss": 0.0 if self.loss is None else float(self.loss),
            "router_loss": sum(float(each.total) for each in self.router_losses if each.total is not None),
            "num_dropped": sum(
                float(each.num_dropped) for each in self.capacities if each.num_dropped is not None
            ),
            "squared_norm": 0.0 if self.squared_norm is None else float(self.squared_norm),
            "num_undone": self.num_undone,
        }

    def finish_gradients(self, number: int) -> None:
        """Nothing more is added to a group's gradients: to the optimizer, to the norm, and among the records where they are
        asked for."""
        norm = self.squared_norm_of(number)
        if not self.is_home(number):
            return
        self.squared_norm = norm if self.squared_norm is None else self.squared_norm + norm
        if self.training.records_gradients:
            self.copies += [
                replace(piece, tensor=piece.tensor.detach().clone())
                for piece in self._pieces(number, "gradient")
            ]

    def squared_norm_of(self, number: int) -> Tensor:
        """Sum of squares of a group's finished gradients that this rank counts."""
        group = self.groups[number]
        group.finish(self.visited[number])
        # along axes of sums of norms; along others all have the same norm
        summed = (name for layout in (False, True) for name in self._summed_axes(of_experts=layout))
        is_first = self._is_first_along(name for name in summed if name not in self._held_axes(number))
        return group.step.squared_norm(
            [is_first and self.is_counted(one.segment.name) for one in group.trained]
        )

    def _summed_axes(self, *, of_experts: bool) -> tuple[str, ...]:
        """Axes along which ranks have other parts of anything, of experts or of all else."""
        layout = self.training.layout
        return (*layout.divided_axes(of_experts=of_experts)[SHARDS], *layout.held_axes(of_experts=of_experts))

    def _pieces(self, number: int, which: str) -> list[Piece]:
        shard = self.tensor_shard if self.shard is None else self.shard.tables
        pieces = group_pieces(self.groups[number], shard, which)
        return [piece for piece in pieces if self.is_counted(piece.name)]

    @property
    def learning_rate(self) -> float | None:
        """Of this step; None: the optimizer's own."""
        rate = self.training.learning_rate
        return None if rate is None else rate.at(self.data.step)

    def initial_values(self) -> dict[ValueName, Any]:
        """Parameters and optimizer states as they are before the first iteration."""
        return {
            ValueName(kind, g): self.groups.get(g)
            for g in {g for s in self.stages for g in self.groups_held(s)}
            for kind in ("parameter", "optimizer_state", HOST_STATE.name, MASTER_COPY.name)
        }

    def parameters(self) -> list[Piece]:
        """The parameters that this rank returns, copies of them; with corrections of routers, where steps change these."""
        found = [
            replace(piece, tensor=piece.tensor.to(self.formats.master, copy=True))
            for number in self.groups
            if self.is_home(number)
            for piece in self._pieces(number, "parameter")
        ]
        corrections = self.corrections.pieces() if self.corrections.rate else ()
        return [*found, *(replace(piece, tensor=piece.tensor.clone()) for piece in corrections)]

    def tensors(self) -> list[Tensor]:
        """All parameters here and what is kept of them, for counting memory (their gradients count with them)."""
        modules = [*self.stages.values(), *([] if self.shard is None else [self.shard])]
        kept = [t for group in self.groups.values() for t in (group.values, group.master) if t is not None]
        frozen = [group.frozen.values for group in self.groups.values() if group.frozen is not None]
        return [*(p for module in modules for p in module.parameters()), *kept, *frozen]
