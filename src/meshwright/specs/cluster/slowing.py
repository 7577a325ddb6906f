"""Slowing: links and processes of this machine made slower on purpose, to try a plan where a machine is not even."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.units import parse_bandwidth

# What may leave at once after a pause: as much as the socket buffers of a usual kernel take.
BURST_BYTES = 64 << 10
_LINK = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*=\s*(\S+)\s*")
_PROCESS = re.compile(r"\s*(\d+)\s*=\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """A token bucket for what process `one` sends to `other`, and another for what comes back.

    A bucket holds `burst_bytes` at most and fills with `bytes_per_s`; a transfer leaves when all its bytes are paid.
    """

    one: int
    other: int
    bytes_per_s: float
    burst_bytes: float = BURST_BYTES

    def __post_init__(self) -> None:
        if min(self.one, self.other) < 0 or self.one == self.other:
            raise SpecError(
                f"a link between processes {self.one} and {self.other}",
                allowed="two different numbers from 0",
            )
        if not (0 < self.bytes_per_s < math.inf and 0 <= self.burst_bytes < math.inf):
            raise SpecError(
                f"link {self.one}-{self.other}: {self.bytes_per_s!r} bytes/s, burst of {self.burst_bytes!r} bytes",
                allowed="a rate above 0 and a burst from 0",
            )


def _link(text: str) -> LinkLimit:
    found = _LINK.fullmatch(text)
    if found is None:
        raise SpecError(f"slowed link {text!r}", allowed="A-B=RATE, such as 0-1=50MB/s")
    return LinkLimit(int(found[1]), int(found[2]), parse_bandwidth(found[3]))


def _process(text: str) -> tuple[int, float]:
    found = _PROCESS.fullmatch(text)
    if found is None:
        raise SpecError(f"slowed process {text!r}", allowed="NUMBER=FACTOR, such as 1=2 (twice as long)")
    return int(found[1]), float(found[2])


def _links(given: Sequence[str]) -> tuple[LinkLimit, ...]:
    return tuple(map(_link, given))


def _processes(given: Sequence[str]) -> tuple[tuple[int, float], ...]:
    return tuple(map(_process, given))


@dataclass(frozen=True, slots=True)
class Slowing:
    """What is slowed: `links`, and `processes` as (number, how many times as long each of its computes takes).

    Raises SpecError where a link or a process is named twice, or a factor is below 1.
    """

    links: tuple[LinkLimit, ...] = option(
        (), "Slow a link by a token bucket: 0-1=50MB/s.", "--slow-link", repeats=True, parse=_links
    )
    processes: tuple[tuple[int, float], ...] = option(
        (),
        "Make computes of a process take longer: 1=2 (twice).",
        "--slow-process",
        repeats=True,
        parse=_processes,
    )

    def __post_init__(self) -> None:
        links = [f"link {min(each.one, each.other)}-{max(each.one, each.other)}" for each in self.links]
        given = links + [f"process {number}" for number, _ in self.processes]
        if twice := [what for what in given if given.count(what) > 1]:
            raise SpecError(f"{twice[0]} is slowed twice", allowed="each once")
        for number, factor in self.processes:
            if number < 0 or not 1.0 <= factor < math.inf:
                raise SpecError(
                    f"process {number} is slowed by {factor!r}",
                    allowed="a process from 0 and a factor from 1: how many times as long it takes",
                )

    def factor(self, process: int) -> float:
        """How many times as long a compute of `process` takes."""
        return dict(self.processes).get(process, 1.0)

    def links_of(self, process: int) -> dict[int, LinkLimit]:
        """Other process -> the limit of what `process` sends to it."""
        pairs = [(link.one, link.other, link) for link in self.links]
        pairs += [(other, one, link) for one, other, link in pairs]
        return {other: link for one, other, link in pairs if one == process}

    def check(self, num_processes: int) -> None:
        """Raise SpecError where it names a process that there is not."""
        named = [n for n, _ in self.processes] + [n for link in self.links for n in (link.one, link.other)]
        if named and max(named) >= num_processes:
            raise SpecError(f"process {max(named)} is slowed", allowed=f"0 to {num_processes - 1}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "links": [asdict(link) for link in self.links],
            "processes": [list(p) for p in self.processes],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Slowing:
        """What `to_dict` gave."""
        links = tuple(LinkLimit(**link) for link in data["links"])
        return Slowing(links, tuple((int(number), float(factor)) for number, factor in data["processes"]))

    @staticmethod
    def parse(links: Sequence[str] = (), processes: Sequence[str] = ()) -> Slowing:
        """From words: links as "0-1=50MB/s", processes as "1=2" (twice as long). Raises SpecError."""
        return Slowing(_links(links), _processes(processes))

    def __str__(self) -> str:
        words = [f"link {link.one}-{link.other} at {link.bytes_per_s:.4g} bytes/s" for link in self.links]
        words += [f"process {number} takes {factor:g} times as long" for number, factor in self.processes]
        return ", ".join(words) or "nothing is slowed"
