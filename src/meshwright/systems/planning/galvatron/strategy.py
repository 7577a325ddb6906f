"""Galvatron's strategies: how one layer may be spread over the devices, and the corners in which they are searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from meshwright.systems.planning.galvatron.profile import Job

Sharding = Literal["none", "zero2", "zero3"]


@dataclass(frozen=True, order=True)
class Strategy:
    """How one layer is spread: stages of the pipeline, tensor or Ulysses degree, replicas, sharding, recompute.

    Ordered field by field, as the repository orders its candidates: among equals the first one is taken.
    """

    pp: int
    tp: int
    sp: int
    dp: int
    sharding: Sharding = "none"
    is_recomputed: bool = False

    @property
    def width(self) -> int:
        """Devices that share the work of one sample: the tensor degree or the Ulysses degree."""
        return max(self.tp, self.sp)

    @property
    def replicas(self) -> int:
        """Devices with the same parameters: data parallel and Ulysses, over which gradients are reduced."""
        return self.dp * self.sp

    def __str__(self) -> str:
        """As the repository writes it: "1-4*-2f-c" is one stage, degree 4, two replicas in ZeRO-3, recomputed."""
        width = f"{self.width}*" if self.width > 1 else "1"
        zero3, recomputed = "f" * (self.sharding == "zero3"), "-c" * self.is_recomputed
        return f"{self.pp}-{width}-{self.dp}{zero3}{recomputed}{'-sp' * (self.sp > 1)}"


Candidates = tuple[Strategy, ...]


@dataclass(frozen=True)
class Space:
    """One corner of the search: a depth, the widest degree, and which of tensor parallelism and Ulysses may be used."""

    num_stages: int
    max_degree: int
    has_tp: bool
    has_sp: bool


def strategies(job: Job, space: Space) -> Candidates:
    """Every strategy of a layer in a corner, sorted: powers of two whose product is the number of devices."""
    found = set()
    devices = job.hardware.num_devices // space.num_stages
    for width in _powers(1, min(space.max_degree, devices)):
        dp = devices // width
        if dp > job.microbatch_samples:
            continue
        shardings: tuple[Sharding, ...] = ("zero2", "zero3") if dp > 1 else ("none",)
        degrees = {(width, 1)} if space.has_tp else set()
        degrees |= {(1, width)} if space.has_sp else set()
        found |= {
            Strategy(space.num_stages, tp, sp, dp, sharding, is_recomputed)
            for tp, sp in degrees
            for sharding in shardings
            for is_recomputed in (False, True)
        }
    return tuple(sorted(found))


def spaces(job: Job) -> Iterator[Space]:
    """The corners in the repository's order: no more stages than microbatches or layers."""
    for num_stages in _powers(1, job.hardware.num_devices):
        if num_stages > min(job.num_microbatches, job.model.num_layers):
            continue
        widest = job.hardware.num_devices // num_stages
        narrowest = widest // min(job.microbatch_samples, widest)
        degrees = [degree for degree in _powers(1, widest) if degree >= narrowest]
        yield from (Space(num_stages, degree, True, False) for degree in degrees)
        yield Space(num_stages, widest, False, True)
        yield from (Space(num_stages, degree, True, True) for degree in degrees)


def _powers(first: int, last: int) -> list[int]:
    """Powers of two from first, itself one, to last."""
    return [2**i for i in range(first.bit_length() - 1, last.bit_length())]
