"""StageCosts: seconds of every stage by itself, as measured or as in a table of stage times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.costs.cost import Cost
from meshwright.ir.program import Program
from meshwright.ir.table import Kind, Work
from meshwright.lowering.order import with_works
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class StageCosts:
    """Prices works that name their stage, as `with_stage_works` writes them.

    Attributes:
        seconds: (name of a compute, stage) as one text -> seconds; a work that is not here costs nothing.
    """

    seconds: Mapping[str, float]

    @classmethod
    def from_times(cls, times: StageTimes) -> StageCosts:
        """From F, I and W of every stage of the path: B = I + W where unsplit, R (recompute) = F, all else free."""
        seconds = {}
        columns = zip(times.forward_s, times.input_s, times.weight_s, strict=True)
        for stage, (forward_s, input_s, weight_s) in enumerate(columns):
            named = {"F": forward_s, "I": input_s, "W": weight_s, "B": input_s + weight_s, "R": forward_s}
            seconds.update({_work_name(name, stage): value for name, value in named.items()})
        return cls(seconds)

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Seconds of that compute on that stage; a chunk's own, so its share of a full stage scales nothing."""
        return Cost(self.seconds.get(work.name, 0.0))


def path_times(times: StageTimes, devices: Sequence[int]) -> StageTimes:
    """Times of every stage of a path; `devices` says on which device each of them is.

    With as many rows as the path has stages they are those. With one row a device, each of its v stages takes 1/v of it.

    Raises:
        SpecError: any other number of rows.
    """
    num_devices = max(devices, default=-1) + 1
    if times.num_stages == len(devices):
        return times
    if times.num_stages != num_devices:
        chunked = "" if len(devices) == num_devices else f", or {len(devices)}, one for each of their stages"
        raise SpecError(
            f"times of {times.num_stages} stages for {num_devices} devices",
            allowed=f"{num_devices} rows, one a device{chunked}",
        )
    counts = [devices.count(device) for device in range(num_devices)]
    forward_s, input_s, weight_s = (
        tuple(column[device] / counts[device] for device in devices)
        for column in (times.forward_s, times.input_s, times.weight_s)
    )
    return StageTimes(forward_s, input_s, weight_s, times.communication_s)


def with_stage_works(program: Program, num_chunks: int) -> Program:
    """A work on every compute that names its stage; for memory it is the share 1 / `num_chunks` of a full stage."""
    names = {effect.name for effect in program.tables.effects if effect.kind == Kind.COMPUTE}
    stages = range(program.tables.num_stages)
    share = 1 / num_chunks
    return with_works(program, {(n, s): Work(_work_name(n, s), share=share) for n in names for s in stages})


def _work_name(name: str, stage: int) -> str:
    return f"{name} of stage {stage}"
