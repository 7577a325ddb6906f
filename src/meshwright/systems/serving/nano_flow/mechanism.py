"""Nano-batches: the rows of a step in parts whose kernels share the device, where that is faster than all rows at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram, StepTime
from meshwright.serving.simulated.parted.step_line import COMPUTE, lines_of
from meshwright.serving.simulated.replica_memory import token_bytes
from meshwright.serving.simulated.step_model import TimedSteps
from meshwright.serving.weight.weight_place import RESIDENT
from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.systems.serving.nano_flow.nano_batch import DECODES, LinePeriod
from meshwright.systems.serving.nano_flow.pipeline import NanoPipeline
from meshwright.systems.serving.nano_flow.search import FoundPipeline, PipelineSearch

LEAST_OTHER = 0.05  # of a step: where less is not computed, a cut costs more than it could win


@dataclass(frozen=True)
class NanoFlow:
    """Steps in nano-batches that overlap what is computed, read and sent on each device (NanoFlow, arXiv 2408.12757)."""

    most: int = option(4, "Nano-batches near attention, at most: 2 or 4.", least=2)
    overlaps: bool = option(True, "Run kernels of different nano-batches beside each other; else only cut.")
    disk_bytes_per_s: float = option(
        0.0, "Write keys and values to disks of a replica at this rate, layer by layer; 0: do not.", least=0
    )

    def of(self, program: ForwardProgram, limits: Limits) -> TimedSteps:
        """Steps of a replica. Raises PlanError where its devices run one kernel after the other, or fetch weights."""
        if not program.cluster.machine.has_streams:
            raise PlanError(
                f"nano-batches on {program.cluster.name}, whose devices run one kernel after the other",
                allowed="devices that run kernels beside each other",
                next="leave step out",
            )
        if program.weights != RESIDENT:
            raise PlanError(
                f"nano-batches with weights={program.weights}",
                allowed="weights that stay: each nano-batch reads them once more",
            )
        return NanoSteps(program, self)


class NanoSteps:
    """Steps of one replica; a pipeline is searched once for batches that are alike."""

    def __init__(self, program: ForwardProgram, how: NanoFlow) -> None:
        self.program, self.how = program, how
        self._token_bytes = token_bytes(program) if how.disk_bytes_per_s else 0.0
        self.lines = tuple(NanoLine(LinePeriod.of(line), how.most) for line in lines_of(program))
        self._known: dict[BatchShape, StepTime] = {}

    def step(self, batch: BatchShape) -> StepTime:
        """In nano-batches, or at once where that is no slower. The next batch is formed while this one runs: the host's time
        counts where it is longer than the devices', and so does the disks'."""
        if batch not in self._known:
            self._known[batch] = self._step(batch)
        return self._known[batch]

    def _step(self, batch: BatchShape) -> StepTime:
        if not batch.num_tokens:
            return StepTime(0.0, 0.0)
        overhead, found = self.program.overhead, self._in_parts(batch)
        if self.how.overlaps:
            latency_s, period_s = self.program.step(batch)
            waits_s = overhead.host_s if self.program.layout.pp == 1 else 0.0  # that are part of a period
            whole = (latency_s - overhead.host_s, period_s - waits_s)
            found = StepTime(*map(min, found, whole))
        disk_s = (
            batch.num_tokens * self._token_bytes / self.how.disk_bytes_per_s if self._token_bytes else 0.0
        )
        return StepTime(*(max(seconds, overhead.host_s, disk_s) for seconds in found))

    def _in_parts(self, batch: BatchShape) -> StepTime:
        """Of the devices alone."""
        copied_bytes = self._token_bytes / self.program.layout.num_devices
        spans = [line.span_s(batch, self.how.overlaps, copied_bytes) for line in self.lines]
        arrivals_s = sum(line.period.line.arrival_s(batch) for line in self.lines)
        factor = self.program.overhead.device_factor
        return StepTime(factor * (sum(spans) + arrivals_s), factor * max(spans))


class NanoLine:
    """One stage, and the pipelines that were found for it."""

    def __init__(self, period: LinePeriod, most: int) -> None:
        self.period, self._search = period, PipelineSearch(period, most)
        self._num_layers = max(1, sum(place.name == DECODES for place in period.line.places))
        self._found: dict[BatchShape, FoundPipeline | None] = {}

    def pipeline(self, batch: BatchShape) -> FoundPipeline | None:
        """The one of batches like this one; None where they run whole."""
        near = representative(batch)
        if near not in self._found:
            self._found[near] = self._search.run(near) if self._may_win(near) else None
        return self._found[near]

    def _may_win(self, batch: BatchShape) -> bool:
        """Is enough of the step something else than computing, beside which it could run?"""
        seconds = self.period.line.seconds(batch)
        is_other = np.array([place.resource != COMPUTE for place in self.period.line.places])
        return bool(seconds[is_other].sum() >= LEAST_OTHER * seconds.sum())

    def span_s(self, batch: BatchShape, overlaps: bool = True, copied_bytes: float = 0.0) -> float:
        """Of a batch in its pipeline; a batch that is too small for one is whole. `copied_bytes`: keys and values of a token
        on one device, which go to the host."""
        found = self.pipeline(batch)
        if found is None:
            return float(self.period.line.seconds(batch).sum())
        pipeline = NanoPipeline(self.period, found.cut, batch, copied_bytes / self._num_layers)
        return pipeline.seconds(found.shares) if overlaps else pipeline.one_by_one_s


def representative(batch: BatchShape) -> BatchShape:
    """Of batches that are alike the one for which a pipeline is searched: a quarter of the tokens is how near their decodes
    are, half a doubling how near tokens are, and a doubling what they see."""
    tokens = _doubling(batch.num_tokens, 2)
    decodes = round(tokens * round(4 * batch.num_decodes / batch.num_tokens) / 4)
    chunk_tokens = tokens - decodes
    seen = _doubling(batch.num_context / batch.num_decodes) if decodes else 0
    pairs = _doubling(batch.chunk_pairs / batch.chunk_tokens) if chunk_tokens else 0
    return BatchShape(chunk_tokens, chunk_tokens * pairs, min(1, chunk_tokens), decodes, decodes * seen)


def _doubling(number: float, per_doubling: int = 1) -> int:
    """The nearest of so many numbers in each doubling."""
    return max(1, round(2 ** (round(per_doubling * math.log2(max(number, 1.0))) / per_doubling)))
