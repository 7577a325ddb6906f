"""Capacity of experts: which choices of a sequence's tokens are kept, and how many were not.

Shapes: T tokens, X experts, K experts a token, B sequences, S tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.executor.ops.expert.told_choices import ToldTokens, experts_and_gates, told
from meshwright.specs.training.expert_capacity import PROBABILITY, ExpertCapacity


@dataclass
class RouterCapacity:
    """Of one block's router on one device. ``num_dropped``: choices of this iteration, of tokens that several devices have a
    share each; where gradients are made, so that what is computed once more counts once."""

    capacity: ExpertCapacity
    sequence_length: int
    num_dropped: Tensor | None = None

    def kept(self, gates_TK: Tensor, experts_TK: Tensor, num_experts: int, num_copies: float) -> Tensor:
        """True for choices [T, K] that are sent. ``num_copies``: devices that have these very tokens."""
        by_gate = gates_TK.detach() if self.capacity.drop == PROBABILITY else None
        return self._counted(self._kept(experts_TK, num_experts, by_gate), num_copies)

    def told(self, gates_TK: Tensor, experts_TK: Tensor) -> Tensor:
        """What devices that have other tokens of the same sequences have to know of these: [T, F]."""
        return told(experts_TK, gates_TK if self.capacity.drop == PROBABILITY else None)

    def kept_of_told(
        self, all_MF: Tensor, tokens: ToldTokens, num_per_token: int, num_experts: int, num_copies: float
    ) -> Tensor:
        """As `kept`, of what all devices that share these sequences have told; ``tokens``: those that are here."""
        experts_TK, gates_TK = experts_and_gates(tokens.sequences(all_MF), num_per_token)
        return self._counted(tokens.own(self._kept(experts_TK, num_experts, gates_TK)), num_copies)

    def _kept(self, experts_TK: Tensor, num_experts: int, gates_TK: Tensor | None) -> Tensor:
        most = self.capacity.of_sequence(self.sequence_length, num_experts, experts_TK.shape[1])
        return kept_choices(experts_TK, num_experts, self.sequence_length, most, gates_TK)

    def _counted(self, kept_TK: Tensor, num_copies: float) -> Tensor:
        if torch.is_grad_enabled():
            dropped = (~kept_TK).sum() / num_copies
            self.num_dropped = dropped if self.num_dropped is None else self.num_dropped + dropped
        return kept_TK


def kept_choices(
    experts_TK: Tensor, num_experts: int, sequence_length: int, most: int, gates_TK: Tensor | None = None
) -> Tensor:
    """True for the first ``most`` choices of every expert in each sequence; with gates for those of the largest."""
    shape = (-1, sequence_length, num_experts)
    chosen_TX = torch.zeros(len(experts_TK), num_experts, dtype=torch.bool, device=experts_TK.device)
    chosen_BSX = chosen_TX.scatter_(1, experts_TK, True).view(shape)
    if gates_TK is None:
        rank_BSX = chosen_BSX.cumsum(1) - 1
    else:
        lowest_TX = gates_TK.new_full(chosen_TX.shape, -torch.inf)
        weights_BSX = lowest_TX.scatter_(1, experts_TK, gates_TK).view(shape)
        rank_BSX = weights_BSX.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank_BSX < most).flatten(0, 1).gather(1, experts_TK)
