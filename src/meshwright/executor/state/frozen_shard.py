"""Parameters of a group that do not train, where a rank keeps a shard of them and gathers all for the computes (ZeRO-3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meshwright.executor.layout.flat_layout import FlatLayout
from meshwright.executor.team.rank_team import RankTeam


class FrozenShard:
    """This rank's equal part of the parameters, one behind the other; in no other format, for nothing steps them.

    ``values``: the part, flat. The parameters have a shape and no memory until `bind` gives them some.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], team: RankTeam, dtype: torch.dtype) -> None:
        self.parameters = dict(parameters)
        self.layout = FlatLayout({name: tuple(p.shape) for name, p in parameters.items()}, team.degree)
        whole = self.layout.packed(self.parameters, dtype, next(iter(self.parameters.values())).device)
        low, high = self.layout.shard(team.number)
        self.values: Tensor = whole[low:high].clone()

    def bind(self, whole: Tensor) -> None:
        """Let the parameters be views of a buffer that all shards were gathered into."""
        for name, view in self.layout.views(whole).items():
            self.parameters[name].data = view
