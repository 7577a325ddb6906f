"""MessageSum: the sum of the ranks' terms by messages between two ranks each, as a star or around a ring.

Terms are added in one order: bits are the same on all ranks, and in every run. Messages are the tensors
themselves, whose shapes all ranks know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshwright.specs.cluster.summing import QUICKEST, RING, STAR, quickest_sum
from meshwright.specs.error import SpecError

BACKEND = "backend"  # sums are those of the processes' library
EXECUTED = (BACKEND, RING, STAR, QUICKEST)
ROOT = 0
TAG, PROBE_TAG = 11, 12
PROBES, PROBE_BYTES = 7, 1 << 20  # messages that a link is measured by: of one number, and of so many bytes


def check_executed(sums: str, device: str, link_latency_s: float) -> None:
    """Raise SpecError for ways that are not executed, or not there."""
    if sums not in EXECUTED:
        raise SpecError(f"sums={sums!r}", allowed=", ".join(EXECUTED))
    if sums != BACKEND and not device.startswith("cpu"):
        raise SpecError(f"sums={sums} on {device}", allowed=f"{BACKEND}: its library chooses for every size")
    if link_latency_s < 0 or (link_latency_s and sums == BACKEND):
        raise SpecError(
            f"link_latency_s={link_latency_s!r} with sums={sums}",
            allowed="seconds from 0, and sums by messages: the library's own cannot be delayed",
        )


class MessageSum:
    """Sums over a group of gloo's.

    Args:
        group: torch's.
        way: "star", "ring", or "quickest": by what messages take between the first two ranks, measured here.
        latency_s: that every message takes longer, on purpose: a slow link on one machine. A rank waits so long before
            what it sends in a round, as all of it is on its way at once.

    ``num_rounds``: how often messages of this rank were waited for so.
    """

    def __init__(
        self, group: Any, way: str, latency_s: float = 0.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._group, self._way, self._latency_s, self._sleep = group, way, latency_s, sleep
        self.rank, self.size, self.num_rounds = int(group.rank()), int(group.size()), 0
        self._link = self._measured() if way == QUICKEST else (0.0, 1.0)

    def __call__(self, term: Tensor) -> Tensor:
        """The sum, in the memory of `term` where that is contiguous."""
        term = term.contiguous()
        return self._star(term) if self.way_of(term.nbytes) == STAR else self._ring(term)

    def way_of(self, num_bytes: int) -> str:
        """Of a term of this size."""
        if self._way != QUICKEST:
            return self._way
        return quickest_sum(num_bytes, self.size, *self._link, ways=(RING, STAR))

    def _star(self, term: Tensor) -> Tensor:
        """The root adds what comes in the order of the ranks, whichever comes first."""
        if self.rank != ROOT:
            self._send([(term, ROOT)])
            self._receive(term, ROOT)
            return term
        others = [rank for rank in range(self.size) if rank != ROOT]
        terms = [torch.empty_like(term) for _ in others]
        works = [self._group.recv([each], rank, TAG) for each, rank in zip(terms, others, strict=True)]
        for work, each in zip(works, terms, strict=True):
            work.wait()
            term += each
        self._send([(term, rank) for rank in others])
        return term

    def _ring(self, term: Tensor) -> Tensor:
        """Every part of the term goes around once and is summed, and once more as it is."""
        flat, size = term.view(-1), self.size
        parts = list(flat.tensor_split(size))
        following, preceding = (self.rank + 1) % size, (self.rank - 1) % size
        for step in range(2 * (size - 1)):
            sent = parts[(self.rank - step) % size]
            kept = parts[(self.rank - step - 1) % size]
            come = torch.empty_like(kept)
            work = self._group.recv([come], preceding, TAG) if kept.numel() else None
            self._send([(sent, following)] if sent.numel() else [])
            if work is not None:
                work.wait()
                kept.copy_(come if step >= size - 1 else kept + come)
        return term

    def _send(self, messages: list[tuple[Tensor, int]]) -> None:
        self.num_rounds += 1
        if self._latency_s:
            self._sleep(self._latency_s)
        for work in [self._group.send([each], rank, TAG) for each, rank in messages]:
            work.wait()

    def _receive(self, into: Tensor, rank: int) -> None:
        self._group.recv([into], rank, TAG).wait()

    def _measured(self) -> tuple[float, float]:
        """Seconds of latency and bytes a second between the first two ranks, as all are told: they have to choose alike."""
        found = torch.zeros(2, dtype=torch.float64)
        if self.rank < 2 <= self.size:
            small_s, large_s = (self._probe_s(num_bytes) for num_bytes in (1, PROBE_BYTES))
            # on a busy machine the large one may come sooner: then all of its time counts as that of its bytes
            bytes_s = large_s - small_s if large_s > small_s else large_s
            found[:] = torch.tensor([small_s, PROBE_BYTES / bytes_s], dtype=torch.float64)
        if self.rank == ROOT:
            for work in [self._group.send([found], rank, PROBE_TAG) for rank in range(1, self.size)]:
                work.wait()
        else:
            self._group.recv([found], ROOT, PROBE_TAG).wait()
        return float(found[0]), float(found[1])

    def _probe_s(self, num_bytes: int) -> float:
        """Half of the time there and back, the median of some."""
        message, other = torch.zeros(num_bytes, dtype=torch.uint8), 1 - self.rank
        seconds = []
        for _ in range(PROBES):
            begun_s = time.perf_counter()
            if self.rank == ROOT:
                self._send([(message, other)])
                self._receive(message, other)
            else:
                self._receive(message, other)
                self._send([(message, other)])
            seconds.append((time.perf_counter() - begun_s) / 2)
        return sorted(seconds)[PROBES // 2]
