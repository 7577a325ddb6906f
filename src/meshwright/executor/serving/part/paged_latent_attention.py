"""Latent attention over packed tokens (DeepSeek's MLA, arXiv 2405.04434): pages hold the latent, not keys and values.

A head's plain scores are q' (W c) = (W' q)' c with c a token's normed latent, so queries are narrowed in place of every key
widened; and its result is W_v of the latents' weighted sum (section 2.1.2 of the paper: absorbed matrices). All heads then
attend to one "key" of a token, the latent beside the numbers that turn, whose first L numbers are its value as well.

Shapes: T new tokens, E hidden size, H query heads here, P numbers of a query and a key that do not turn, R that do, V of a
value, L of a latent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meshwright.executor.models.part.latent_attention import NORM_EPSILON
from meshwright.executor.ops.attention.rotary import rotate
from meshwright.executor.serving.matrix import Matrix, Norm
from meshwright.executor.serving.packed_step import PackedStep, Rotary
from meshwright.executor.serving.page.key_value_blocks import KeyValueBlocks
from meshwright.executor.serving.weight.stage_weights import StageWeights
from meshwright.specs.model.block import Attention, LatentRanks
from meshwright.specs.model.model import ModelSpec


class PagedLatentAttention:
    """That of layer `number` of a model, whose pages are the `place`-th here; every tensor-parallel rank has the latent of
    all tokens, and its heads' queries and results."""

    def __init__(
        self,
        model: ModelSpec,
        latent: LatentRanks,
        number: int,
        place: int,
        degree: int,
        blocks: KeyValueBlocks,
        total: Callable[[Tensor], Tensor],
        weights: StageWeights,
    ) -> None:
        self.attention: Attention = model.layers[number].attention
        self.latent, self.place, self.blocks, self.total = latent, place, blocks, total
        self.num_heads, scaling = self.attention.num_heads // degree, model.rotary_scaling
        self.plain = self.attention.head_dim - latent.rotary_head_dim
        self.scale = self.attention.head_dim**-0.5 * (scaling.latent_score_factor if scaling else 1.0)
        self.rotary: Rotary = model.rope_theta, scaling
        name = f"layers.{number}"
        own = f"{name}.latent_attention"
        self.norm, self.output = (
            weights.norm(f"{name}.attention_norm"),
            weights.matrix(f"{name}.attention_output"),
        )
        if latent.query_rank:
            self.narrow_query = weights.matrix(f"{own}.narrow_query")
            self.narrow_query_norm = Norm(weights.tensor(f"{own}.narrow_query_norm"), None, NORM_EPSILON)
        self.query = weights.matrix(f"{own}.widen_query" if latent.query_rank else f"{own}.query")
        self.narrow_key_value = weights.matrix(f"{own}.narrow_key_value")
        self.latent_norm = Norm(weights.tensor(f"{own}.narrow_key_value_norm"), None, NORM_EPSILON)
        widen_HwL = torch.unflatten(weights.tensor(f"{own}.widen_key_value"), 0, (self.num_heads, -1))
        self.key_HPL, self.value_HVL = widen_HwL[:, : self.plain], widen_HwL[:, self.plain :]

    def __call__(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """[T, E] -> [T, E]; new latents are in their slots."""
        normed_TE = self.norm(x_TE)
        turn = step.turns[self.rotary]
        self.blocks.write(self.place, step.slots_T, self._latents(normed_TE, turn))
        latents = self.blocks.of_layer(self.place)
        query_T1HD = self._queries(normed_TE, turn)[:, None]
        attended = step.reads[self.attention.window].attend(query_T1HD, *latents, self.scale)
        summed_THL = attended.view(len(x_TE), self.num_heads, -1)[..., : self.latent.key_value_rank]
        value_THV = torch.einsum("thl,hvl->thv", summed_THL, self.value_HVL)
        result = self.total(self.output.product(value_THV.flatten(1), step.adapters))
        return x_TE + (result if self.output.bias is None else result + self.output.bias)

    def _queries(self, x_TE: Tensor, turn: Tensor) -> Tensor:
        """Narrowed to the latent, beside what turns: [T, H, L + R]."""
        x = self.narrow_query_norm(self.narrow_query(x_TE)) if self.latent.query_rank else x_TE
        query_THD = torch.unflatten(self.query(x), 1, (self.num_heads, -1))
        plain_THP, turned_THR = query_THD[..., : self.plain], query_THD[..., self.plain :]
        narrowed_THL = torch.einsum("thp,hpl->thl", plain_THP, self.key_HPL)
        return torch.cat((narrowed_THL, rotate(turned_THR.contiguous(), turn)), -1)

    def _latents(self, x_TE: Tensor, turn: Tensor) -> Tensor:
        """What pages keep of new tokens: [T, 1, L + R]."""
        narrow = self.narrow_key_value(x_TE)
        latent_TL, turned_TR = (
            narrow[:, : self.latent.key_value_rank],
            narrow[:, self.latent.key_value_rank :],
        )
        turned_T1R = rotate(turned_TR.contiguous()[:, None], turn)
        return torch.cat((self.latent_norm(latent_TL.contiguous())[:, None], turned_T1R), -1)

    def matrices(self) -> dict[str, Matrix]:
        """Those that adapters may add to: what narrows and widens is none of their targets."""
        return {"attention_output": self.output}
