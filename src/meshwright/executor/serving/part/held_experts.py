"""HeldExperts: which rows of a layer of experts a rank computes, with which of its matrices, and how many these were.

Every rank of a tensor-parallel group has all tokens and routes them alike, so none is sent: each computes the rows of the
experts that it holds, and the sum that ends the layer adds up what all of them have computed. Where an expert stands on
several devices its rows take turns among them, in the order of the tokens.

Shapes: T tokens, K experts a token, X experts of the layer, C the most copies of one, S slots of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.executor.layout.tensor_shard import ExpertShard
from meshwright.executor.ops.expert.once import NOT_THERE
from meshwright.serving.weight.expert_loads import SlotRows


class HeldExperts:
    """Those of one rank. ``num_slots``: its matrices of a kind. ``num_rows_S``: that came to each so far; where ranks share
    experts each of them counts all of their rows."""

    def __init__(self, shard: ExpertShard, layer: int, num_experts: int, device: torch.device) -> None:
        self.layer, self.shard = layer, shard
        self.experts = tuple(shard.here(layer, num_experts))
        self.num_slots = len(self.experts)
        self.num_rows_S = torch.zeros(self.num_slots, dtype=torch.int64, device=device)
        self._has_all = shard.degree == 1
        if not self._has_all:
            slots = _slots_of_copies(shard, layer, num_experts)
            self._copies_X = torch.tensor([len(own) for own in slots], device=device)
            most = max(map(len, slots))
            table = [[*own, *[NOT_THERE] * (most - len(own))] for own in slots]
            self._slots_XC = torch.tensor(table, device=device)

    def slots(self, experts_TK: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of every choice the slot here that takes it, [T, K], and which are taken here (None: all); of others no slot."""
        if self._has_all:
            return experts_TK, None
        if self._slots_XC.shape[1] == 1:
            slots_TK = self._slots_XC[:, 0][experts_TK]
        else:
            turns_TK = _place_among_its_rows(experts_TK, len(self._copies_X))
            slots_TK = self._slots_XC[experts_TK, turns_TK % self._copies_X[experts_TK]]
        return slots_TK, slots_TK != NOT_THERE

    def count(self, rows_S: Tensor) -> None:
        """So many came in a step."""
        self.num_rows_S += rows_S

    def slot_rows(self) -> SlotRows:
        """What has come so far."""
        return SlotRows(self.layer, self.shard.number, self.experts, tuple(self.num_rows_S.tolist()))


def _slots_of_copies(shard: ExpertShard, layer: int, num_experts: int) -> list[list[int]]:
    """Of every expert the slots of its copies, in the order of devices; `NOT_THERE` of those on others."""
    by_slot: Sequence[int] = shard.by_slot(layer, num_experts)
    each = len(by_slot) // shard.degree
    found: list[list[int]] = [[] for _ in range(num_experts)]
    for number, expert in enumerate(by_slot):
        device, slot = divmod(number, each)
        found[expert].append(slot if device == shard.number else NOT_THERE)
    return found


def _place_among_its_rows(experts_TK: Tensor, num_experts: int) -> Tensor:
    """Of every choice how many before it, in the order of tokens, were of the same expert: [T, K]."""
    flat_N = experts_TK.reshape(-1)
    order_N = flat_N.argsort(stable=True)
    counts_X = torch.bincount(flat_N, minlength=num_experts)
    first_X = counts_X.cumsum(0) - counts_X
    places_N = torch.empty_like(flat_N)
    places_N[order_N] = torch.arange(len(flat_N), device=flat_N.device) - first_X[flat_N[order_N]]
    return places_N.view_as(experts_TK)
