"""Machine: what planning, prediction and prices ask of a kind of device; its numbers are the data sheet's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Host = Literal["asynchronous", "in_order"]
HOSTS: tuple[Host, ...] = ("asynchronous", "in_order")
MemoryRule = Literal["estimate", "bound"]


class Machine(Protocol):
    """A kind of device.

    Attributes:
        unit: what people call one.
        host: "asynchronous" issues everything ahead, "in_order" waits for each instruction and computes itself.
        memory_rule: by what a plan fits: "estimate", tensors by moments of a step with allocator and driver beside them;
            "bound", tensors alone, as many bytes as no legal order exceeds.
        price_model: the name under which `costs.pricing` knows what its steps take.
        has_streams: do exchanges run on streams of their own beside computes, so that what they slow is in the price
            model? Otherwise computes and messages share cores and links, and meet there while they are simulated.
        has_data_sheet: is its peak rate a published number, so that a share of it (MFU) means something?
        is_here: are these the processes that `train` starts on this machine?
    """

    @property
    def unit(self) -> str: ...
    @property
    def host(self) -> Host: ...
    @property
    def memory_rule(self) -> MemoryRule: ...
    @property
    def price_model(self) -> str: ...
    @property
    def has_streams(self) -> bool: ...
    @property
    def has_data_sheet(self) -> bool: ...
    @property
    def is_here(self) -> bool: ...


@dataclass(frozen=True)
class Gpu:
    """A GPU, whose host issues ahead."""

    unit: str = "GPU"
    host: Host = "asynchronous"
    memory_rule: MemoryRule = "estimate"
    price_model: str = "step"
    has_streams: bool = True
    has_data_sheet: bool = True
    is_here: bool = False


@dataclass(frozen=True)
class CpuProcess:
    """A process on CPU cores, which is its own host."""

    unit: str = "process"
    host: Host = "in_order"
    memory_rule: MemoryRule = "bound"
    price_model: str = "profile"
    has_streams: bool = False
    has_data_sheet: bool = False
    is_here: bool = True


# By what a device's file says of its host.
MACHINES: Mapping[Host, Machine] = {"asynchronous": Gpu(), "in_order": CpuProcess()}
