"""SkipPipe as the schedule of a plan: paths through stages where the plan puts them, in the order of the dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.schedules.order import Compute, Orders
from meshwright.schedules.pipeline_times import PipelineTimes
from meshwright.specs.error import CountError, PlanError
from meshwright.specs.option import option
from meshwright.systems.pipeline.skip_pipe.mechanism import Dispatch, Injection, Network, dispatch

TABLE = "a line a stage, with the seconds of a message to every stage"
MESSAGE_SHARE = 0.25  # of a forward, where nobody says what a message takes


@dataclass(frozen=True)
class SkipPipe:
    """Every microbatch leaves out some stages between the first and the last; nodes begin what arrives first.

    As many microbatches leave out each stage, which are neighbours, the last one a neighbour of the first. Which come first
    is chosen one after the other, each time those with which what is under way ends soonest. Nodes and their links are those
    of the plan's cluster, where the plan puts its stages.
    """

    skipped: int = option(1, "Stages that a microbatch leaves out.", least=0)
    network: str = option(
        "",
        "CSV file, a line a stage: seconds of a message from it to every stage; empty: of the plan's cluster.",
    )
    message_s: float = option(
        0.0, "Seconds of a message between any two stages; 0: of the plan's cluster, without a plan a quarter of a forward.",
        least=0,
    )  # fmt: skip
    forward_s: float = option(
        0.0,
        "Seconds of a stage's forward for one microbatch; 0: of the plan's stages, without a plan 1.",
        least=0,
    )
    memory: int = option(
        0, "Microbatches that a node holds at most; 0: as many as there are stages.", least=0
    )
    skips_stages: ClassVar[bool] = True

    def __call__(self, num_devices: int, num_microbatches: int) -> Orders:
        """The orders of the dispatch, stage s on device s, all alike. Raises CountError, PlanError, ProgramError."""
        forward_s = self.forward_s or 1.0
        message_s = self.message_s or MESSAGE_SHARE * forward_s
        alike = PipelineTimes((forward_s,) * num_devices, ((message_s,) * num_devices,) * num_devices)
        return self.timed(alike)(num_devices, num_microbatches)

    def timed(self, times: PipelineTimes) -> SkippingOrder:
        """The same where stages and messages take so long; what an option or a file says stands."""
        num = len(times.forward_s)
        message_s = times.message_s
        if self.network:
            message_s = self._table(num)
        elif self.message_s:
            message_s = ((self.message_s,) * num,) * num
        forward_s = (self.forward_s,) * num if self.forward_s else times.forward_s
        return SkippingOrder(self.skipped, self.memory, PipelineTimes(forward_s, message_s))

    def _table(self, num_stages: int) -> tuple[tuple[float, ...], ...]:
        """Seconds between stages from the file. Raises PlanError."""
        try:
            seconds = np.loadtxt(self.network, delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise PlanError(f"the network {self.network} cannot be read ({error})", allowed=TABLE) from None
        if seconds.shape != (num_stages,) * 2 or not (seconds >= 0).all() or not np.isfinite(seconds).all():
            raise PlanError(
                f"a network of shape {seconds.shape} in {self.network} for {num_stages} stages",
                allowed=f"{num_stages} x {num_stages} seconds of messages, from 0",
            )
        return tuple(map(tuple, seconds.tolist()))


@dataclass(frozen=True)
class SkippingOrder:
    """SkipPipe's orders on known nodes.

    Attributes:
        skipped, memory: as of `SkipPipe`.
        times: of the nodes.
    """

    skipped: int
    memory: int
    times: PipelineTimes

    def __call__(self, num_devices: int, num_microbatches: int) -> Orders:
        """The orders of the dispatch, stage s on device s. Raises CountError, PlanError, ProgramError."""
        most = max(
            0, num_devices - 3
        )  # one between the first and the last stays, else none of them is trained
        if not 0 <= self.skipped <= most:
            raise CountError(
                f"skip_pipe is to leave out {self.skipped} of {num_devices} stages; the first and the last stay, and one "
                f"between them: 0 to {most}; take pp of {max(0, self.skipped) + 3} or more, or skip_pipe(skipped={most})"
            )
        nodes = self.nodes(num_devices)
        period = self._period(nodes, num_devices)
        paths = [period[m % len(period)] for m in range(num_microbatches)]
        found = dispatch(nodes, _one_behind_another(paths), returns=False)
        return [_begun_on(found, node) for node in range(num_devices)]

    def nodes(self, num_devices: int) -> Network:
        """The nodes in units of the longest forward. Raises PlanError."""
        forward_s, message_s = (np.array(each, dtype=np.float64) for each in self.times)
        unit_s = float(forward_s.max(initial=0.0))
        if forward_s.shape != (num_devices,) or not unit_s > 0:
            raise PlanError(
                f"forwards of {self.times.forward_s} s on {num_devices} nodes", allowed="one above 0 for each"
            )
        message_s = message_s / unit_s
        np.fill_diagonal(message_s, 0.0)
        return Network(message_s, forward_s / unit_s, self.memory or num_devices)

    def _period(self, nodes: Network, num_stages: int) -> list[tuple[int, ...]]:
        """Paths of as many microbatches as there are stages to leave out: each is left out equally often."""
        count = num_stages - 2
        left = [
            {1 + (first + k) % count for k in range(self.skipped)}
            for first in range(count if self.skipped else 1)
        ]
        paths = [tuple(stage for stage in range(num_stages) if stage not in out) for out in left]
        chosen: list[tuple[int, ...]] = []
        while paths:
            spans = [
                dispatch(nodes, _one_behind_another([*chosen, path]), returns=False).span_s for path in paths
            ]
            chosen.append(paths.pop(int(np.argmin(spans))))
        return chosen


def _one_behind_another(paths: Sequence[tuple[int, ...]]) -> list[Injection]:
    """A microbatch a forward."""
    return [Injection(path, float(number)) for number, path in enumerate(paths)]


def _begun_on(found: Dispatch, node: int) -> list[Compute]:
    """The computes of a node as it began them; the loss belongs to the last stage's forward."""
    legs = np.argwhere(found.node == node)
    begun = sorted((float(found.start_s[m, leg]), int(leg), int(m)) for m, leg in legs)
    last = found.num_hops
    return [Compute("F" if leg < last else "B", node, m) for _, leg, m in begun if leg != last]
