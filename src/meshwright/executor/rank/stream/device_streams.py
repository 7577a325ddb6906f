"""Which streams a device gets: threads beside a host that computes, or CUDA's own."""

from __future__ import annotations

import torch

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.rank_list import RankList
from meshwright.executor.rank.stream.cuda_streams import CudaStreams
from meshwright.executor.rank.stream.host_streams import HostStreams
from meshwright.executor.rank.stream.rank_streams import RankStreams
from meshwright.executor.rank.watchdog import Position


def is_asynchronous(device: str | torch.device) -> bool:
    """Does the device run behind the host, which issues all of a list ahead? How the list is compiled depends on it."""
    return torch.device(device).type == "cuda"


def streams_of(ranked: RankList, context: Context, position: Position) -> RankStreams:
    """The streams of a rank, as its list was compiled for."""
    if ranked.is_asynchronous:
        return CudaStreams(ranked, context, position)
    return HostStreams(ranked, context, position)
