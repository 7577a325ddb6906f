"""Corrections of routers' choices on one rank: which experts tokens went to, and what a step makes of that.

Shapes: T tokens, K experts a token, X experts, L layers with experts in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshwright.executor.layout.piece import Piece
from meshwright.executor.models.block import Block
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.ops.expert.routing import HALF_DTYPES
from meshwright.specs.model.model import ModelSpec

CORRECTION = ".mixture.correction"


class CorrectedRouter(NamedTuple):
    """A router here: its layer in the whole model, the parameter group that has its weights, and what it adds to scores."""

    layer: int
    group: int
    correction_X: Tensor


class RouterCorrections:
    """Of all routers of a rank that have one. Formats of 16 bits would lose a step of 0.001, so it has 32 at least.

    ``rate``: what a step adds to a correction or takes from it; 0: they are constants, and nothing is counted.
    ``group_of``: the parameter group of a stage's parameter, by its name in the whole model.
    """

    def __init__(
        self,
        model: ModelSpec,
        stages: Mapping[int, DecoderStage],
        group_of: Callable[[int, str], int],
        rate: float,
    ) -> None:
        experts = {
            layer: block.experts.num_experts for layer, block in enumerate(model.layers) if block.experts
        }
        self.rate, self._row = rate, {layer: row for row, layer in enumerate(experts)}
        self._num_columns = max(experts.values(), default=0)
        self.routers: list[CorrectedRouter] = []
        self._counts: dict[int, Tensor] = {}
        for number, stage in stages.items() if experts else ():  # modules of a user have no layers of ours
            for layer, block in stage.layers.items():
                if not isinstance(block, Block) or block.mixture is None or block.mixture.correction is None:
                    continue
                mixture, correction_X = block.mixture, block.mixture.correction
                if correction_X.dtype in HALF_DTYPES:
                    correction_X = mixture.correction = nn.Buffer(correction_X.to(torch.float32))
                group = group_of(number, f"layers.{layer}.mixture.router.weight")
                self.routers.append(CorrectedRouter(int(layer), group, correction_X))
                if rate:
                    mixture.listeners.append(partial(self._chosen, int(layer)))

    def begin(self) -> None:
        """Nothing is counted of an iteration."""
        self._counts = {}

    def _chosen(self, layer: int, experts_TK: Tensor) -> None:
        if not torch.is_grad_enabled():  # nothing is learned, or it is computed once more
            return
        row = self._row[layer]
        counts_X = torch.bincount(experts_TK.flatten(), minlength=self._num_columns).to(torch.float64)
        self._counts[row] = self._counts[row] + counts_X if row in self._counts else counts_X

    def counted(self, groups: Collection[int], device: torch.device) -> Tensor:
        """Tokens of every expert in this iteration, [L, X], in the rows of layers whose routers are in these groups."""
        counts_LX = torch.zeros(len(self._row), self._num_columns, dtype=torch.float64, device=device)
        for router in self.routers:
            row = self._row[router.layer]
            if router.group in groups and row in self._counts:
                counts_LX[row] = self._counts[row]
        return counts_LX

    def correct(self, groups: Collection[int], counts_LX: Tensor) -> None:
        """Step the routers of these groups by what all devices counted: rate times the sign of mean less own tokens."""
        for router in self.routers:
            if router.group in groups:
                counts_X = counts_LX[self._row[router.layer], : len(router.correction_X)]
                below_X = torch.sign(counts_X.sum() - len(counts_X) * counts_X)  # whole numbers: exact
                router.correction_X.add_(below_X.to(router.correction_X.dtype), alpha=self.rate)

    def pieces(self) -> Iterator[Piece]:
        """Views of all, each whole."""
        for router in self.routers:
            whole = tuple(router.correction_X.shape)
            yield Piece(f"layers.{router.layer}{CORRECTION}", whole, (0,), router.correction_X)


def has_corrections(names: Collection[str]) -> bool:
    """Are there any among tensors of these names?"""
    return any(name.endswith(CORRECTION) for name in names)
