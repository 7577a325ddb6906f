"""The two parts of a decoder's layer over packed tokens, its keys and values in pages: attention, and what stands behind it.

Shapes: T new tokens, E hidden size, H query heads here, K key-value heads here, G of a group (H = K G), D numbers of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention.rotary import rotate
from meshwright.executor.ops.expert.dispatch import combine, dispatch
from meshwright.executor.ops.expert.expert_mlp import ExpertBiases, expert_mlp
from meshwright.executor.ops.expert.routing import gates_of
from meshwright.executor.serving.family_traits import FamilyTraits
from meshwright.executor.serving.matrix import Matrix, gated
from meshwright.executor.serving.packed_step import PackedStep, Rotary
from meshwright.executor.serving.page.key_value_blocks import KeyValueBlocks
from meshwright.executor.serving.part.held_experts import HeldExperts
from meshwright.executor.serving.weight.expert_places import ExpertPlaces
from meshwright.executor.serving.weight.stage_weights import StageWeights
from meshwright.specs.model.block import Attention, Experts, FeedForward
from meshwright.specs.model.model import ModelSpec

Sum = Callable[[Tensor], Tensor]  # of a term that every tensor-parallel rank has: the same on all


class PagedAttention:
    """The attention of layer `number` of a model. ``place``: which of the layers here it is, as its pages are counted."""

    def __init__(
        self,
        model: ModelSpec,
        traits: FamilyTraits,
        number: int,
        place: int,
        degree: int,
        blocks: KeyValueBlocks,
        total: Sum,
        weights: StageWeights,
    ) -> None:
        name, attention = f"layers.{number}", model.layers[number].attention
        self.attention, self.place, self.blocks, self.total = attention, place, blocks, total
        self.num_kv_heads = attention.num_kv_heads // degree
        self.group_size = attention.num_heads // attention.num_kv_heads
        self.rotary = rotary_of(model, traits, attention)
        self.scale = (traits.scored_dim or attention.head_dim) ** -0.5
        self.norm, self.result_norm = (
            weights.norm(f"{name}.attention_norm"),
            weights.optional_norm(f"{name}.attention_result_norm"),
        )
        self.qkv, self.output = weights.matrix(f"{name}.qkv"), weights.matrix(f"{name}.attention_output")
        has_norms = attention.has_query_key_norm
        sinks_H = weights.optional(f"{name}.sinks")
        self.sinks_KG = None if sinks_H is None else sinks_H.view(-1, self.group_size)
        self.query_norm = weights.norm(f"{name}.query_norm") if has_norms else None
        self.key_norm = weights.norm(f"{name}.key_norm") if has_norms else None

    def __call__(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """[T, E] -> [T, E]; new keys and values are in their slots."""
        attended = self.attend(self.qkv(self.norm(x_TE), step.adapters), step)
        result = _whole(self.total, self.output, self.output.product(attended, step.adapters))
        return x_TE + (result if self.result_norm is None else self.result_norm(result))

    def attend(self, qkv: Tensor, step: PackedStep) -> Tensor:
        """Queries, keys and values [T, (H + 2 K) D], not yet turned -> [T, H D]."""
        num_heads, num_kv_heads = self.num_kv_heads * self.group_size, self.num_kv_heads
        heads = qkv.view(len(qkv), -1, self.attention.head_dim)
        query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], 1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            turned = rotate(torch.cat((query, key), 1), step.turns[self.rotary])
            query, key = torch.split(turned, [num_heads, num_kv_heads], 1)
        self.blocks.write(self.place, step.slots_T, key, value)
        keys, values = self.blocks.of_layer(self.place)
        query_TKGD = query.reshape(len(qkv), num_kv_heads, self.group_size, -1)
        return step.reads[self.attention.window].attend(query_TKGD, keys, values, self.scale, self.sinks_KG)

    def matrices(self) -> dict[str, Matrix]:
        """Those that adapters may add to."""
        return {"qkv": self.qkv, "attention_output": self.output}


class PagedFeedForward:
    """What stands behind the attention of layer `number` of a model."""

    def __init__(
        self, model: ModelSpec, traits: FamilyTraits, number: int, total: Sum, held: HeldExperts | None,
        places: ExpertPlaces | None, weights: StageWeights,
    ) -> None:  # fmt: skip
        name, feed_forward = f"layers.{number}", model.layers[number].feed_forward
        self.total = total
        self.norm, self.result_norm = (
            weights.norm(f"{name}.mlp_norm"),
            weights.optional_norm(f"{name}.mlp_result_norm"),
        )
        self.inner: PagedMlp | PagedExperts
        if isinstance(feed_forward, Experts):
            assert held is not None, "of every layer with experts"
            self.inner = PagedExperts(model, feed_forward, held, places, weights)
        else:
            self.inner = PagedMlp(model, traits, feed_forward, name, weights)

    def __call__(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """[T, E] -> [T, E]."""
        result = _whole(self.total, self.inner.down, self.inner.term(self.norm(x_TE), step))
        return x_TE + (result if self.result_norm is None else self.result_norm(result))

    def matrices(self) -> dict[str, Matrix]:
        """Those that adapters may add to."""
        inner = self.inner
        return {"gate_up": inner.gate_up, "down": inner.down} if isinstance(inner, PagedMlp) else {}


def _whole(total: Sum, last: Matrix | None, term: Tensor) -> Tensor:
    """The sum of all ranks' terms, and the bias of the matrix behind which they stand."""
    found = total(term)
    return found if last is None or last.bias is None else found + last.bias


def rotary_of(model: ModelSpec, traits: FamilyTraits, attention: Attention) -> Rotary | None:
    """How positions turn in a layer; None: they are learned."""
    if model.has_learned_positions:
        return None
    if attention.window and traits.window_theta:
        return traits.window_theta, None
    return model.rope_theta, traits.whole_scaling or model.rotary_scaling


class PagedMlp:
    """A dense MLP."""

    def __init__(
        self, model: ModelSpec, traits: FamilyTraits, mlp: FeedForward, name: str, weights: StageWeights
    ) -> None:
        self.gate_up, self.down = weights.matrix(f"{name}.gate_up"), weights.matrix(f"{name}.down")
        self.is_gated, self.has_gelu_gate = model.has_gated_mlp, traits.has_gelu_gate
        self.gelu = "none" if mlp.activation == "gelu" else "tanh"

    def term(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """This rank's term of the result [T, E]."""
        inner = self.gate_up(x_TE, step.adapters)
        inner = gated(inner, self.has_gelu_gate) if self.is_gated else F.gelu(inner, approximate=self.gelu)
        return self.down.product(inner, step.adapters)


class PagedExperts:
    """A mixture of experts, of which a rank has those that it holds; of one that several ranks share each has a part of the
    inner units, and adds as large a part of its last bias. Or some of them are in `places`."""

    down = None  # experts have no bias behind their sum

    def __init__(
        self,
        model: ModelSpec,
        experts: Experts,
        held: HeldExperts,
        places: ExpertPlaces | None,
        weights: StageWeights,
    ) -> None:
        name, self.held, self.places = f"layers.{held.layer}.mixture", held, places
        self.experts, self.routing = experts, experts.routing_in(model.architecture)
        self.router = weights.matrix(f"{name}.router")
        self.correction_X = weights.constant(f"{name}.correction") if self.routing.has_correction else None
        if places is None:
            up, down = weights.matrix(f"{name}.expert_gate_up"), weights.matrix(f"{name}.expert_down")
            self.gate_up_XOE, self.down_XEI, self.biases = up.weight, down.weight, None
            if up.bias is not None and down.bias is not None:
                self.biases = ExpertBiases(up.bias, down.bias, 1 / held.shard.inner_degree)
        has_shared = bool(experts.shared_intermediate_size)
        self.shared_gate_up = weights.matrix(f"{name}.shared.gate_up") if has_shared else None
        self.shared_down = weights.matrix(f"{name}.shared.down") if has_shared else None
        self.shared_gate = weights.optional(f"{name}.shared_gate")

    def term(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """This rank's term of the result [T, E]. Adapters leave experts alone."""
        gates_TK, experts_TK = gates_of(
            self.router(x_TE), self.experts.num_experts_per_token, self.routing, self.correction_X, x_TE.dtype
        )
        slots_TK, here_TK = self.held.slots(experts_TK)
        rows_NE, order_N, counts_X = dispatch(x_TE, slots_TK, self.held.num_slots, here_TK)
        self.held.count(counts_X)
        if self.places is None:
            returned_NE = expert_mlp(rows_NE, counts_X, self.gate_up_XOE, self.down_XEI, biases=self.biases)
        else:
            returned_NE = self.places.through(self.held.layer, rows_NE, counts_X, experts_TK)
        result = combine(returned_NE, gates_TK, order_N)
        if self.shared_gate_up is None or self.shared_down is None:
            return result
        shared = self.shared_down(gated(self.shared_gate_up(x_TE)))
        if self.shared_gate is not None:
            shared = F.linear(x_TE, self.shared_gate).sigmoid() * shared
        return result + shared
