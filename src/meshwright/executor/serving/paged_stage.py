"""PagedStage: some layers of a served model on one rank, perhaps the embedding or the head, and their pages.

Shapes: T new tokens, E hidden size, R rows whose logits are asked for, V rows of the vocabulary here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.ops.attention.rotary import frequencies
from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.packed_step import PackedStep, Reads, Rotary, adapter_tokens, slots_of
from meshwright.executor.serving.page.flash_infer import FlashInferPages, has_flash_infer
from meshwright.executor.serving.page.key_value_blocks import KeyValueBlocks
from meshwright.executor.serving.page.paged_attention import paged_reads
from meshwright.executor.serving.paged_layer import PagedLayer, Sum
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.stage_weights import EMBEDDING, HEAD, StageWeights
from meshwright.serving.engine.runner import StepInputs
from meshwright.specs.model.model import ModelSpec


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
    """Reads its weights and makes its blocks when it is made."""

    def __init__(
        self, served: ServedModel, place: StagePlace, options: RunnerOptions
    ) -> None:  # fmt: skip
        model, traits = served.model, served.traits
        self.model, self.traits, self.place, self.options = model, traits, place, options
        self.dtype, self.device = options.torch_dtype, torch.device(options.device)
        weights = StageWeights(
            served, place.layers, place.shard, self.dtype, self.device, place.has_embedding, place.has_head
        )  # fmt: skip
        degree, attention = place.shard.degree, model.attention
        self.blocks = KeyValueBlocks(
            len(place.layers), options.num_blocks, options.block_tokens, attention.num_kv_heads // degree, attention.head_dim,
            self.dtype, self.device, options.num_host_blocks,
        )  # fmt: skip
        self.layers = [
            PagedLayer(model, traits, number, at, degree, weights, self.blocks, place.total)
            for at, number in enumerate(place.layers)
        ]
        self.num_weight_bytes = weights.num_bytes
        self.embedding = weights.tensor(EMBEDDING) if place.has_embedding else None
        self.positions = weights.optional("positions")
        self.final_norm = weights.norm("final_norm") if place.has_head else None
        head = EMBEDDING if model.has_tied_embeddings else HEAD
        self.head = weights.tensor(head) if place.has_head else None
        has_kernels = has_flash_infer(self.dtype, self.device)
        self._kernels = FlashInferPages(self.device) if has_kernels else None
        self._windows = {layer.attention.window for layer in self.layers}
        self._embedding_scale = torch.tensor(traits.embedding_scale, dtype=self.dtype, device=self.device)
        self._frequencies = {
            each: frequencies(attention.head_dim, *each).to(self.device)
            for each in {layer.rotary for layer in self.layers if layer.rotary}
        }

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
        return torch.polar(torch.ones_like(angles), angles).to(wide)[:, None]

    def forward(self, step: PackedStep, hidden_TE: Tensor | None = None) -> Tensor:
        """From tokens with the embedding, else from what the stage before gave: logits [R, V] with the head, else [T, E]."""
        x_TE = self._embedded(step) if hidden_TE is None else hidden_TE
        for layer in self.layers:
            x_TE = layer(x_TE, step)
        if self.final_norm is None or self.head is None:
            return x_TE
        return F.linear(self.final_norm(x_TE.index_select(0, step.rows_R)), self.head)

    def load_adapter(self, number: int, adapter: AdapterFolder) -> None:
        """Let sequences with this number have what the adapter adds here."""
        matrices = dict(zip(self.place.layers, (layer.matrices() for layer in self.layers), strict=True))
        for layer, target, addition in adapter.additions(
            self.place.layers, self.place.shard, self.dtype, self.device
        ):
            matrices[layer][target].additions[number] = addition

    def drop_adapter(self, number: int) -> None:
        """Forget what it adds."""
        for layer in self.layers:
            for matrix in layer.matrices().values():
                matrix.additions.pop(number, None)

    def _embedded(self, step: PackedStep) -> Tensor:
        assert self.embedding is not None, "a stage without the embedding is given hidden states"
        low, high = self.place.shard.rows(self.model.vocabulary_size)
        if high - low == self.model.vocabulary_size:
            x_TE = F.embedding(step.tokens_T, self.embedding)
        else:
            is_here_T = (step.tokens_T >= low) & (step.tokens_T < high)
            places_T = torch.where(is_here_T, step.tokens_T - low, 0)
            x_TE = self.place.total(F.embedding(places_T, self.embedding) * is_here_T[:, None])
        if self.traits.embedding_scale != 1.0:
            x_TE = x_TE * self._embedding_scale
        return x_TE if self.positions is None else x_TE + F.embedding(step.positions_T, self.positions)
