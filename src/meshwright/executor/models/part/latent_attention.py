"""Latent attention (DeepSeek's MLA, arXiv 2405.04434): keys and values of all heads from a few numbers of a token.

Shapes: B samples, S tokens of a sequence, s of a device, E hidden size, H heads, D numbers of a query and a key, of
which the last R turn, V numbers of a value, L of a latent.

A query's part that turns is its head's own, a key's is one for all heads and comes straight from the hidden state. Rows of
matrices are as checkpoints have them: neighbouring numbers turn together there as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.head_attention import head_attention
from meshwright.executor.ops.attention.rotary import Rotation, rotate
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.norm.rms_norm import SplitRMSNorm
from meshwright.specs.model.block import Attention, LatentRanks
from meshwright.specs.model.rotary_scaling import RotaryScaling

NORM_EPSILON = 1e-6  # of the latents' norms, in published code whatever the model's other norms have


class LatentAttention(nn.Module):
    """Of a normed input, in front of the output projection. `degree` devices have equal parts of the heads each; what narrows
    is on all of them, and its gradient there is of their own heads: a part of it.
    """

    def __init__(
        self, hidden_size: int, attention: Attention, latent: LatentRanks, degree: int = 1,
        scaling: RotaryScaling | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention, self.latent, self.num_heads = attention, latent, attention.num_heads // degree
        self.scale = attention.head_dim**-0.5 * (scaling.latent_score_factor if scaling else 1.0)
        has_bias, query_size = attention.has_qkv_bias, self.num_heads * attention.head_dim
        self.unturned = attention.head_dim - latent.rotary_head_dim
        if latent.query_rank:
            self.narrow_query = SplitLinear(hidden_size, latent.query_rank, bias=has_bias)
            self.narrow_query_norm = SplitRMSNorm(latent.query_rank, eps=NORM_EPSILON)
            self.widen_query = SplitLinear(latent.query_rank, query_size, bias=False)
        else:
            self.query = SplitLinear(hidden_size, query_size, bias=False)
        narrow = latent.key_value_rank + latent.rotary_head_dim
        self.narrow_key_value = SplitLinear(hidden_size, narrow, bias=has_bias)
        self.narrow_key_value_norm = SplitRMSNorm(latent.key_value_rank, eps=NORM_EPSILON)
        widened = self.num_heads * (self.unturned + latent.value_head_dim)
        self.widen_key_value = SplitLinear(latent.key_value_rank, widened, bias=False)

    def forward(self, x_BSE: Tensor, turn: Rotation | None, documents: DocumentMask | None = None) -> Tensor:
        """[B, S, E] -> [B, S, H V]. `turn` has the positions of R numbers, or with documents those of `turned_at`."""
        assert turn is not None, "latent attention is of families with rotary positions"
        query_BHSD, (key_BHSD, value_BHSV) = self._queries(x_BSE, turn), self._keys_and_values(x_BSE, turn)
        documents = within_window(self.attention.window, x_BSE.shape[1], x_BSE.device, documents)
        return head_attention(query_BHSD, key_BHSD, value_BHSV, documents)

    def by_heads(self, x_BsE: Tensor, turn: Rotation) -> Tensor:
        """Of every head its query, scaled, its key, both turned, and its value, side by side: [B, s, H (2 D + V)]."""
        parts = (self._queries(x_BsE, turn), *self._keys_and_values(x_BsE, turn))
        return torch.cat(parts, -1).transpose(1, 2).flatten(2)

    def query_and_block(self, x_BsE: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
        """Queries [B, s, H, D], and the block of keys and values of `PartAttention`, [1, B, s, H, D + V]."""
        block_BHsW = torch.cat(self._keys_and_values(x_BsE, turn), -1)
        query_BsHD = self._queries(x_BsE, turn).transpose(1, 2).contiguous()
        return query_BsHD, block_BHsW.transpose(1, 2)[None].contiguous()

    def query_and_block_of(self, heads_BsW: Tensor) -> tuple[Tensor, Tensor]:
        """What `query_and_block` gives, of some heads as `by_heads` gives them."""
        head_dim, width = self.attention.head_dim, self.latent.value_head_dim
        heads_BshW = torch.unflatten(heads_BsW, -1, (-1, 2 * head_dim + width))
        query_BshD, block_BshW = torch.split(heads_BshW, [head_dim, head_dim + width], -1)
        return query_BshD.contiguous(), block_BshW[None].contiguous()

    def attend(self, heads_BSW: Tensor, documents: DocumentMask | None = None) -> Tensor:
        """Attention of whole sequences to some heads as `by_heads` gives them: [B, S, h V]."""
        head_dim, width = self.attention.head_dim, self.latent.value_head_dim
        heads_BhSW = torch.unflatten(heads_BSW, -1, (-1, 2 * head_dim + width)).transpose(1, 2)
        query, key, value = torch.split(heads_BhSW, [head_dim, head_dim, width], -1)
        documents = within_window(self.attention.window, heads_BSW.shape[1], heads_BSW.device, documents)
        return head_attention(query, key, value, documents)

    def _queries(self, x_BSE: Tensor, turn: Rotation) -> Tensor:
        """Turned and scaled, [B, H, S, D]."""
        if self.latent.query_rank:
            query = self.widen_query(self.narrow_query_norm(self.narrow_query(x_BSE)))
        else:
            query = self.query(x_BSE)
        plain, turned = torch.split(self._by_heads(query), [self.unturned, self.latent.rotary_head_dim], -1)
        query_BHSD: Tensor = torch.cat((plain, rotate(turned.contiguous(), turn.key)), -1) * self.scale
        return query_BHSD

    def _keys_and_values(self, x_BSE: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
        """Turned keys [B, H, S, D], values [B, H, S, V]."""
        narrow = self.narrow_key_value(x_BSE)
        latent_BSL, turned_BSR = torch.split(
            narrow, [self.latent.key_value_rank, self.latent.rotary_head_dim], -1
        )
        widened = self._by_heads(self.widen_key_value(self.narrow_key_value_norm(latent_BSL.contiguous())))
        plain, value_BHSV = torch.split(widened, [self.unturned, self.latent.value_head_dim], -1)
        turned_B1SR = rotate(turned_BSR.contiguous()[:, None], turn.key)
        return torch.cat((plain, turned_B1SR.expand(-1, self.num_heads, -1, -1)), -1), value_BHSV

    def _by_heads(self, x: Tensor) -> Tensor:
        """[B, S, H d] -> [B, H, S, d]."""
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)
