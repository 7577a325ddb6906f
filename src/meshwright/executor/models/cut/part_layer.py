"""Layers of which a device has a part: linear ones and convolutions, tables, and torch's own attention.

Shapes: B samples, S tokens, E width, V vocabulary (with padding), H heads here, D numbers of a head.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_tree import CONVOLUTIONS, is_reversed
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.tensor_rule import TensorRule


class PartLinear(nn.Module):
    """A device's part of a linear layer or a convolution, by its rule: parameters of `layer` are those here already."""

    def __init__(
        self, layer: nn.Module, path: str, rule: TensorRule, num_outputs: int, team: InnerTeam
    ) -> None:
        super().__init__()
        self.path, self.rule, self.num_outputs, self.team = path, rule, num_outputs, team
        # outside the tree: its parameters are this module's
        object.__setattr__(self, "layer", layer)
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)
        self.dim = -1 - len(layer.kernel_size) if isinstance(layer, CONVOLUTIONS) else -1

    def forward(self, x: Tensor) -> Tensor:
        """Column and gathered: outputs of this device, or all; row: the sum; shared: whole, gradients summed."""
        weight, bias = cast(Tensor, self.weight), cast("Tensor | None", self.bias)
        if self.rule.cut == "row":
            total = self.team.summed(self._product(x, weight), self.path)
            return total if bias is None else total + bias.view(-1, *[1] * (-1 - self.dim))
        if self.rule.is_shared:
            weight, bias = self.team.copied(weight), None if bias is None else self.team.copied(bias)
        part = self._product(self.team.copied(x), weight, bias)
        if self.rule.cut != "gathered":
            return part
        return self.team.gathered(part, self.dim).narrow(self.dim, 0, self.num_outputs)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        layer = cast(Any, self.layer)
        if isinstance(layer, CONVOLUTIONS):
            return cast(Tensor, layer._conv_forward(x, weight, bias))
        return F.linear(x, weight.T if is_reversed(layer) else weight, bias)


class PartTable(nn.Module):
    """A device's rows of a lookup; as a tied head, its share of the logits, gathered."""

    def __init__(self, table: nn.Embedding, path: str, num_rows: int, team: InnerTeam) -> None:
        super().__init__()
        self.path, self.num_rows, self.team = path, num_rows, team
        self.weight, self.padding = table.weight, table.padding_idx

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Rows of all tokens: those that other devices have come by the sum. What stands for padding is not trained."""
        local = tokens_BS - self.team.number * len(self.weight)
        is_here = (local >= 0) & (local < len(self.weight))
        rows = self.weight[local.where(is_here, 0)] * is_here[..., None]
        if self.padding is not None:
            rows = torch.where((tokens_BS == self.padding)[..., None], rows.detach(), rows)
        return self.team.summed(rows, self.path)

    def logits(self, x_BSE: Tensor) -> Tensor:
        """Of all rows but the padding."""
        return self.team.gathered(self.team.copied(x_BSE) @ self.weight.T)[..., : self.num_rows]


class CutAttention(nn.Module):
    """A device's heads of torch's own attention. Weights of tokens are not given: the second output is None."""

    def __init__(self, whole: nn.MultiheadAttention, team: InnerTeam) -> None:
        super().__init__()
        if whole.bias_k is not None or whole.add_zero_attn or whole.dropout:
            raise ExecutionError(
                "a MultiheadAttention with dropout, bias_k or add_zero_attn, cut over devices", allowed="none"
            )
        self.head_dim, self.is_batch_first, self.team = whole.head_dim, whole.batch_first, team
        self.in_proj_weight, self.in_proj_bias = whole.in_proj_weight, whole.in_proj_bias
        self.out_proj = whole.out_proj

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As torch's: [B, S, E], or [S, B, E] without batch_first.

        Raises ExecutionError for masks of padding or of samples.
        """
        if (
            key_padding_mask is not None
            or query.dim() != 3
            or (attn_mask is not None and attn_mask.dim() != 2)
        ):
            raise ExecutionError(
                "a cut MultiheadAttention with masks of samples, or without a batch",
                allowed="three dimensions, an attn_mask [S, S] or none",
            )
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = {id(x): self.team.copied(x) for x in (query, key, value)}
        q, k, v = (
            self._heads(F.linear(inputs[id(x)], weight, bias))
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask  # torch's function has it the other way round
        mixed_BHSD = F.scaled_dot_product_attention(
            q, k, v, attn_mask, is_causal=is_causal and attn_mask is None
        )
        mixed_BSE = mixed_BHSD.transpose(1, 2).flatten(2)
        return self.out_proj(mixed_BSE if self.is_batch_first else mixed_BSE.transpose(0, 1)), None

    def _heads(self, x: Tensor) -> Tensor:
        x_BSE = x if self.is_batch_first else x.transpose(0, 1)
        return x_BSE.view(*x_BSE.shape[:2], -1, self.head_dim).transpose(1, 2)
