"""Blocks of weights in a sliding window from disk, tensor-parallel over edge devices whose sums go through a master."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.serving.weight.fetched_step import TimedBlock, fetched_step_s, window_bytes
from meshwright.serving.weight.weight_place import (
    EMBEDDING,
    HEAD,
    LEAST_WINDOW,
    WeightSource,
    block_of,
    stage_blocks,
)
from meshwright.specs.cluster.summing import STAR, sum_s
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import block_parameters
from meshwright.specs.model.parameter_name import executed_name
from meshwright.specs.option import option

SATA_BYTES_PER_S = 600e6  # 6 Gb/s in symbols of 10 bits for 8 (Serial ATA 3.0)
FLOAT_BYTES, FILE_BYTES = 4, 2  # it computes in float32; published files have 16 bits a number


@dataclass(frozen=True)
class StreamedWeights:
    """Every block of weights comes from disk for every step; a window of them is on a device."""

    window: int = option(
        LEAST_WINDOW, "Blocks that are on a device: one computes, the others come.", least=LEAST_WINDOW
    )
    disk_bytes_per_s: float = option(
        SATA_BYTES_PER_S, "On paper: the rate of each device's disk; an engine takes what it gets.", above=0
    )

    @property
    def source(self) -> WeightSource:
        """Files of the model."""
        return WeightSource("disk", self.disk_bytes_per_s)

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        """All of them."""
        return blocks


@dataclass(frozen=True)
class EdgeDevices:
    """Equal devices on one network. ``disk_bytes_per_s``, ``memory_bytes_per_s``: of each; the link's latency, and its
    rate in one direction."""

    number: int
    disk_bytes_per_s: float
    memory_bytes_per_s: float
    latency_s: float = 1e-3
    link_bytes_per_s: float = 125e6


def master_numbers(model: ModelSpec, num_devices: int) -> dict[str, float]:
    """Numbers of every block on the master, in the order of their use: its part of each layer, and both tables whole."""
    blocks = stage_blocks(range(model.num_layers), True, True)
    found = dict.fromkeys(blocks, 0.0)
    for number in range(model.num_layers):
        for each in block_parameters(model, number):
            block = block_of(executed_name(model.architecture, each.name))
            found[block] += each.num_elements / (1 if len(each.shape) == 1 else num_devices)
    table = float(model.vocabulary_size * model.hidden_size)
    return {**found, EMBEDDING: table, HEAD: table + model.num_norm_parameters}


def master_bytes(model: ModelSpec, num_devices: int) -> float:
    """Of all blocks of the master in float32: what it holds without a window, and reads for a token with one."""
    return FLOAT_BYTES * sum(master_numbers(model, num_devices).values())


def peak_bytes(model: ModelSpec, num_devices: int, window: int) -> float:
    """The most that the master has of weights: the largest window in float32, and the file's own format of the largest block
    while that is read and converted."""
    numbers = list(master_numbers(model, num_devices).values())
    return FLOAT_BYTES * window_bytes(numbers, window) + FILE_BYTES * max(numbers)


def token_s(model: ModelSpec, devices: EdgeDevices, window: int) -> float:
    """Seconds of the master for one token: reading its memory once, a star behind every part of a layer, and what it
    waits for its disk."""
    summed_s = sum_s(
        STAR, FLOAT_BYTES * model.hidden_size, devices.number, devices.latency_s, devices.link_bytes_per_s
    )
    timed = []
    for block, numbers in master_numbers(model, devices.number).items():
        is_end = block in (EMBEDDING, HEAD)
        read_s = 0.0 if block == EMBEDDING else FLOAT_BYTES * numbers / devices.memory_bytes_per_s
        load_s = FLOAT_BYTES * numbers / devices.disk_bytes_per_s
        timed.append(TimedBlock(read_s + (0.0 if is_end else summed_s), load_s))
    return fetched_step_s(timed, window)
