"""PagedStage: some layers of a served model on one rank, perhaps the embedding or the head, and their pages.

Shapes: T new tokens, E hidden size, R rows whose logits are asked for, V rows of the vocabulary here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.ops.attention.rotary import frequencies
from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.packed_step import PackedStep, Reads, Rotary, adapter_tokens, slots_of
from meshwright.executor.serving.page.flash_infer import FlashInferPages, has_flash_infer
from meshwright.executor.serving.page.key_value_blocks import KeyValueBlocks
from meshwright.executor.serving.page.paged_attention import paged_reads
from meshwright.executor.serving.paged_end import PagedEmbedding, PagedHead
from meshwright.executor.serving.paged_layer import PagedAttention, PagedFeedForward, Sum, rotary_of
from meshwright.executor.serving.part.held_experts import HeldExperts
from meshwright.executor.serving.part.paged_latent_attention import PagedLatentAttention
from meshwright.executor.serving.runner_options import RunnerOptions, kept_heads
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.weight.block_window import BlockWindow
from meshwright.executor.serving.weight.expert_places import ExpertPlaces, expert_reader
from meshwright.executor.serving.weight.peer_blocks import PeerBlocks, peer_of
from meshwright.executor.serving.weight.stage_weights import StageReader, StageWeights
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.weight.expert_loads import SlotRows
from meshwright.serving.weight.expert_place import ExpertCache
from meshwright.serving.weight.weight_place import ATTENTION, DISK, EMBEDDING, FEED_FORWARD, HEAD, PEER
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

Part = PagedEmbedding | PagedAttention | PagedLatentAttention | PagedFeedForward | PagedHead
AdaptedPart = PagedAttention | PagedLatentAttention | PagedFeedForward


@dataclass(frozen=True)
class StagePlace:
    """Which layers of a model a rank has, and which part of each; ``total`` sums the terms of its tensor-parallel group."""

    layers: range
    shard: TensorShard
    total: Sum
    has_embedding: bool = True
    has_head: bool = True

    @staticmethod
    def whole(model: ModelSpec) -> StagePlace:
        """All of it in one process."""
        return StagePlace(range(model.num_layers), TensorShard(model), lambda term: term)


class PagedStage:
    """Reads its weights and makes its blocks when it is made. Blocks of weights that are fetched come in every step, into a
    window, and are parts of the stage while they compute. `cache`: who says which experts are here; None: all are.

    Raises ExecutionError where blocks are to be fetched from where nobody fetches, or from a neighbour that is not there.
    """

    def __init__(
        self, served: ServedModel, place: StagePlace, options: RunnerOptions, cache: ExpertCache | None = None
    ) -> None:
        model, traits = served.model, served.traits
        self.model, self.traits, self.place, self.options = model, traits, place, options
        self.dtype, self.device = options.torch_dtype, torch.device(options.device)
        attention = model.attention
        self.blocks = KeyValueBlocks(
            len(place.layers), options.num_blocks, options.block_tokens, *kept_heads(model, place.shard.degree),
            self.dtype, self.device, options.num_host_blocks, has_values=attention.latent is None,
        )  # fmt: skip
        reader = StageReader(
            served, place.layers, place.shard, self.dtype, self.device, place.has_embedding, place.has_head, cache is not None
        )  # fmt: skip
        self.experts = None if cache is None else _expert_places(served, options, cache)
        self.held = _held_experts(model, place, self.device)
        self._makers = self._part_makers()
        fetched = set(options.fetched.blocks)
        held = reader.read(block for block in reader.blocks if block not in fetched)
        self._num_held_bytes = held.num_bytes
        self.parts: dict[str, Part | None] = {
            block: None if block in fetched else self._makers[block](held) for block in reader.blocks
        }
        self._window = self._opened_window(reader)
        is_plain = attention.latent is None and not model.has_attention_sinks
        has_kernels = is_plain and has_flash_infer(self.dtype, self.device)
        self._kernels = FlashInferPages(self.device) if has_kernels else None
        kinds = [model.layers[number].attention for number in place.layers]
        self._windows = {each.window for each in kinds}
        self._frequencies = {
            each: frequencies(attention.turned_dim, *each).to(self.device)
            for each in {rotary_of(model, traits, own) for own in kinds}
            if each
        }

    def _part_makers(self) -> Mapping[str, Callable[[StageWeights], Part]]:
        """What makes the part of each block of its weights."""
        model, traits, place = self.model, self.traits, self.place
        found: dict[str, Callable[[StageWeights], Part]] = {}
        for at, number in enumerate(place.layers):
            degree, latent = place.shard.degree, model.layers[number].attention.latent
            attention = (
                partial(PagedLatentAttention, model, latent)
                if latent
                else partial(PagedAttention, model, traits)
            )
            found[f"layers.{number}.{ATTENTION}"] = partial(
                attention, number, at, degree, self.blocks, place.total
            )
            found[f"layers.{number}.{FEED_FORWARD}"] = partial(
                PagedFeedForward, model, traits, number, place.total, self.held.get(number), self.experts
            )
        found[EMBEDDING] = partial(PagedEmbedding, model, traits, place.shard, place.total)
        found[HEAD] = partial(PagedHead, model)
        return found

    def _opened_window(self, reader: StageReader) -> BlockWindow | None:
        fetched = self.options.fetched
        order = [block for block in reader.blocks if block in fetched.blocks]
        if not order:
            return None
        if fetched.source == DISK:
            return BlockWindow(lambda block: reader.read((block,), copies=True), order, fetched.window)
        if fetched.source == PEER:
            peer = peer_of(self.device, self.options.num_ranks)
            return BlockWindow(PeerBlocks(reader, order, self.device, peer).read, order, fetched.window)
        raise ExecutionError(
            f"weights are to come from {fetched.source!r}",
            allowed=f"{DISK!r}, the model's files, or {PEER!r}, a neighbour's memory",
        )

    def packed(self, inputs: StepInputs) -> PackedStep:
        """The inputs on the device, and what follows from them for all layers."""
        tokens, positions, rows = (
            torch.from_numpy(given).to(self.device)
            for given in (inputs.token_ids, inputs.positions, inputs.rows)
        )
        size = self.options.block_tokens
        reads = {window: self._reads(inputs, window) for window in self._windows}
        turns = {each: self._turn(each, positions) for each in self._frequencies}
        slots = torch.from_numpy(slots_of(inputs, size)).to(self.device)
        return PackedStep(tokens, positions, slots, rows, turns, reads, adapter_tokens(inputs, self.device))

    def _reads(self, inputs: StepInputs, window: int) -> Reads:
        if self._kernels is not None:
            return self._kernels.reads(inputs, window, self.options.block_tokens)
        return paged_reads(inputs, window, self.options.block_tokens, self.dtype, self.device)

    def _turn(self, rotary: Rotary, positions_T: Tensor) -> Tensor:
        """How positions turn, by angles in float64: [T, 1, D / 2]."""
        angles = torch.outer(positions_T.to(torch.float64), self._frequencies[rotary])
        wide = torch.complex128 if self.dtype == torch.float64 else torch.complex64
        _, scaling = rotary
        grown = torch.full_like(angles, scaling.turned_factor if scaling else 1.0)
        return torch.polar(grown, angles).to(wide)[:, None]

    def forward(self, step: PackedStep, hidden_TE: Tensor | None = None) -> Tensor:
        """From tokens with the embedding, else from what the stage before gave: logits [R, V] with the head, else [T, E]."""
        (x,) = self.forward_in_turns((step,), None if hidden_TE is None else (hidden_TE,))
        return x

    def forward_in_turns(
        self, steps: Sequence[PackedStep], hidden: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """`forward` of several steps, of which each runs a part of a layer before the next one does: later ones may read what
        earlier ones write into the same blocks."""
        xs = [step.tokens_T for step in steps] if hidden is None else list(hidden)
        for block, part in self.parts.items():
            xs = self._fetched(block, xs, steps) if part is None else _in_turns(part, xs, steps)
        return xs

    def _fetched(self, block: str, xs: Sequence[Tensor], steps: Sequence[PackedStep]) -> list[Tensor]:
        """Of a part that is there while it computes."""
        assert self._window is not None, "some blocks are fetched"
        return self._window.use(block, lambda weights: _in_turns(self._makers[block](weights), xs, steps))

    def slot_rows(self) -> list[SlotRows]:
        """Of the experts here; of ranks that share them the first one tells, as all of them have counted the same rows."""
        if self.place.shard.experts.inner_number:
            return []
        return [held.slot_rows() for held in self.held.values()]

    @property
    def num_weight_bytes(self) -> int:
        """That are here now."""
        own = self.experts.counts.live_bytes if self.experts else 0
        return self._num_held_bytes + own + (self._window.resident_bytes if self._window else 0)

    @property
    def peak_weight_bytes(self) -> int:
        """That were here at once so far, at most."""
        own = self.experts.counts.peak_bytes if self.experts else 0
        return self._num_held_bytes + own + (self._window.peak_bytes if self._window else 0)

    def close(self) -> None:
        """Fetch no more."""
        if self._window is not None:
            self._window.close()
        if self.experts is not None:
            self.experts.close()

    def load_adapter(self, number: int, adapter: AdapterFolder) -> None:
        """Let sequences with this number have what the adapter adds here. Raises ExecutionError where weights are fetched."""
        if self._window is not None:
            raise ExecutionError(
                "adapters add to weights that stay, and those of this model are fetched",
                next="serve it with weights that are resident",
            )
        for layer, target, addition in adapter.additions(
            self.place.layers, self.place.shard, self.dtype, self.device
        ):
            part = ATTENTION if target in ("qkv", "attention_output") else FEED_FORWARD
            found = self.parts[f"layers.{layer}.{part}"]
            assert isinstance(found, AdaptedPart)
            found.matrices()[target].additions[number] = addition

    def drop_adapter(self, number: int) -> None:
        """Forget what it adds."""
        for part in self.parts.values():
            if isinstance(part, AdaptedPart):
                for matrix in part.matrices().values():
                    matrix.additions.pop(number, None)


def _held_experts(model: ModelSpec, place: StagePlace, device: torch.device) -> dict[int, HeldExperts]:
    """Of the layers here that have experts. They stay, whether the matrices do or come for every step."""
    counts = {number: model.layers[number].experts for number in place.layers}
    return {
        number: HeldExperts(place.shard.experts, number, experts.num_experts, device)
        for number, experts in counts.items()
        if experts is not None
    }


def _expert_places(served: ServedModel, options: RunnerOptions, cache: ExpertCache) -> ExpertPlaces:
    """Raises ExecutionError where there are no experts to come, or ranks would have parts of them."""
    if not served.model.num_experts:
        raise ExecutionError(
            f"experts are to be fetched, and {served.model.name} has none",
            allowed="a mixture of experts",
            next="serve it with weights that are resident, or whose blocks are fetched",
        )
    if served.model.has_expert_bias:
        raise ExecutionError(
            f"experts are to be fetched, and those of {served.model.name} have biases",
            allowed="experts of matrices alone",
            next="serve it with weights that are resident, or whose blocks are fetched",
        )
    if options.num_ranks > 1:
        raise ExecutionError(
            f"experts are to be fetched by {options.num_ranks} ranks",
            allowed="tp=1, pp=1: one process has the cache",
        )
    return ExpertPlaces(cache, expert_reader(served, options.torch_dtype, torch.device(options.device)))


def _in_turns(part: Part, xs: Sequence[Tensor], steps: Sequence[PackedStep]) -> list[Tensor]:
    """One part of all steps, one behind the other."""
    return [part(x, step) for x, step in zip(xs, steps, strict=True)]
