"""PeerBlocks: blocks of weights in the memory of a neighbour, whence they are copied when a step needs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshwright.executor.serving.weight.stage_weights import StageReader, StageWeights
from meshwright.specs.error import ExecutionError


class PeerBlocks:
    """Reads the blocks once; `read` gives a copy on the device that computes."""

    def __init__(
        self, reader: StageReader, blocks: Sequence[str], device: torch.device, peer: torch.device
    ) -> None:
        self._device = device
        self._held = {block: reader.read((block,), copies=True).copied(peer) for block in blocks}

    def read(self, block: str) -> StageWeights:
        """The block, in memory of its own."""
        return self._held[block].copied(self._device)


def peer_of(device: torch.device, num_ranks: int) -> torch.device:
    """Whose memory a rank's blocks lie in: the device that stands as far behind it as there are ranks, none of whom
    computes there; of a CPU the host's memory. Raises ExecutionError where there is no such device."""
    if device.type == "cpu":
        return device
    number = (device.index or 0) + num_ranks
    if number >= torch.cuda.device_count():
        raise ExecutionError(
            f"weights are to lie on device {number}, and {torch.cuda.device_count()} are there",
            allowed="a device for each rank, and a neighbour for each",
            next="fewer ranks, or weights from disk",
        )
    return torch.device("cuda", number)
