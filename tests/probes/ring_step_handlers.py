"""What the names of the ring step do: attention over the halves that have arrived, with a running softmax.

T queries of this device, K keys of a half, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.rank.handler import Handlers, Row


def full_attention(q_TD: Tensor, k_KD: Tensor, v_KD: Tensor) -> Tensor:
    """What the ring has to equal."""
    return torch.softmax(q_TD @ k_KD.T / q_TD.shape[1] ** 0.5, dim=1) @ v_KD


def split(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Two halves of the own keys and values, [2, K, D] each, and an empty state: [T, D + 2] of sum, weight, maximum."""
    left_2KD, right_2KD = inputs[0].chunk(2, dim=1)
    num_queries, size = inputs[0].shape[1], inputs[0].shape[2]
    state = torch.zeros(num_queries, size + 2, dtype=inputs[0].dtype)
    state[:, -1] = -torch.inf
    return left_2KD.contiguous(), right_2KD.contiguous(), state


def attend(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Add both halves to the running sum; rescale where the maximum grows."""
    q_TD, left_2KD, right_2KD, state = inputs
    k_KD, v_KD = torch.cat([left_2KD, right_2KD], dim=1)
    scores_TK = q_TD @ k_KD.T / q_TD.shape[1] ** 0.5
    sum_TD, weight_T1, old_T1 = state[:, :-2], state[:, -2:-1], state[:, -1:]
    new_T1 = torch.maximum(old_T1, scores_TK.max(dim=1, keepdim=True).values)
    scale_T1, p_TK = torch.exp(old_T1 - new_T1), torch.exp(scores_TK - new_T1)
    weight_T1 = weight_T1 * scale_T1 + p_TK.sum(dim=1, keepdim=True)
    return (torch.cat([sum_TD * scale_T1 + p_TK @ v_KD, weight_T1, new_T1], dim=1),)


def finish(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The sum over its weight."""
    return (inputs[0][:, :-2] / inputs[0][:, -2:-1],)


HANDLERS: Handlers = {
    "split": split,
    "attend": attend,
    "finish": finish,
}
