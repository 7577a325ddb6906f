"""A prediction beside traces of torch.profiler: step, exposed exchanges, computes by kind, idle time, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.evidence.compare import Quantity
from meshwright.interop.profiler.naming import OTHER
from meshwright.interop.profiler.profiled_job import ProfiledRun, RankFigures
from meshwright.ir.judge import metrics
from meshwright.ir.judge.occupancy import Occupancy, occupancies
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace

# Computes as people call them, by the names of instructions.
PASSES: Mapping[str, tuple[str, ...]] = {
    "forward": ("F",),
    "recompute": ("R",),
    "backward": ("B", "I", "W"),
    "optimizer": ("STEP", "NORM", "COUNT_TOKENS", "VALIDATE"),
}
# What kernels do, by the names of a prediction's parts.
WORKS = {
    "matmul": "matrix products", "attention": "attention", "stream": "norms, activations, loss, optimizer",
}  # fmt: skip
LEAST_NAMED, LEAST_STEPS = 0.8, 3  # below it a profile is doubtful


class RankComparison(NamedTuple):
    """One rank beside its device: `predicted` is None where the plan is of another number of devices."""

    rank: int
    predicted: Occupancy | None
    measured: Occupancy


@dataclass(frozen=True)
class ProfileComparison:
    """Where the prediction was right and where not.

    Attributes:
        predicted: the trace, of whose last iteration the figures are.
        job: what was profiled.
        step: seconds of a step.
        uses: computing, exchanging, exposed, idle: medians over the ranks, and over the devices of the prediction.
        passes: seconds of a step that forward, backward, ... take, medians likewise; of a run of our executor, whose profile
            says the rows of its program, what each of its names takes.
        works: seconds by what kernels do, of the rank and the device that compute longest; empty where one side says none.
        peaks: most bytes that the device of any rank held, where the profile says it.
        ranks: of each rank.
        doubts: why the profile says little, or is of another job.
    """

    predicted: Trace
    job: ProfiledRun
    step: Quantity
    uses: tuple[Quantity, ...]
    passes: tuple[Quantity, ...]
    works: tuple[Quantity, ...]
    peaks: tuple[Quantity, ...]
    ranks: tuple[RankComparison, ...]
    doubts: tuple[str, ...]

    def quantities(self) -> tuple[Quantity, ...]:
        """All numbers of the whole job, in the order of the table."""
        return (self.step, *self.uses, *self.passes, *self.works, *self.peaks)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed."""
        axes = ", ".join(axis.name for axis in self.predicted.program.axes)
        return (
            *self.job.notes,
            f"ranks are set beside devices in the order of the plan's axes ({axes}), the last one the fastest",
            "exchanges that are priced within computes are in the predicted computes, not in its exchanges",
            "the predicted step has a fixed part (data, clipping, synchronisation) in which nothing computes",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units, for --json."""
        return {
            "rows": [quantity.row() for quantity in self.quantities()],
            "named_share": self.job.named_share,
            "num_steps": self.job.num_steps,
            "num_ranks": self.job.num_ranks,
            "ranks": [
                {
                    "rank": each.rank,
                    "predicted": None if each.predicted is None else _plain(each.predicted),
                    "measured": _plain(each.measured),
                }
                for each in self.ranks
            ],
            "doubts": list(self.doubts),
            "notes": list(self.notes),
        }


def compare_profile(
    predicted: Trace, job: ProfiledRun, predicted_peak_bytes: float | None = None
) -> ProfileComparison:
    """A predicted trace beside a profiled job. Both sides are reduced by the same functions (`ir.judge.occupancy`).

    Args:
        predicted_peak_bytes: of the fullest device, where the trace has no curves of memory.
    """
    step = _step(predicted, job)
    figures = job.figures()
    devices = occupancies(predicted, step.predicted or 0.0)
    lists = _lists(predicted.program, [each.rank for each in figures], job.num_ranks)
    ranks = tuple(
        RankComparison(each.rank, None if at is None else devices[at], each.used)
        for each, at in zip(figures, lists, strict=True)
    )
    chosen = devices if None in lists else [devices[at] for at in lists if at is not None]
    passes = _rows(predicted, figures) if job.says_rows else _passes(predicted, figures)
    peaks = _peaks(metrics.peak_bytes(predicted) if predicted.memory else predicted_peak_bytes, figures)
    return ProfileComparison(
        predicted, job, step, _uses(chosen, [each.used for each in figures]), passes,
        _works(predicted, figures), peaks, ranks, (*_doubts(predicted.program, job), *_astray(predicted.program, job, lists)),
    )  # fmt: skip


def _plain(used: Occupancy) -> dict[str, float]:
    return {**asdict(used), "bubble": used.bubble}


def _step(predicted: Trace, job: ProfiledRun) -> Quantity:
    said = predicted.metadata.get("step") or {}
    value = said.get("value", metrics.period_s(predicted))
    return Quantity("step", value, job.step_s, "s", said.get("low"), said.get("high"), said.get("basis", ""))


def _uses(devices: Sequence[Occupancy], ranks: Sequence[Occupancy]) -> tuple[Quantity, ...]:
    told = (("computing", "compute_s", "s"), ("exchanging", "exchange_s", "s"),
            ("exposed: nothing computes", "exposed_s", "s"), ("bubble", "bubble", "share"))  # fmt: skip
    return tuple(
        Quantity(words, _median(devices, field), _median(ranks, field), unit) for words, field, unit in told
    )


def _median(used: Sequence[Occupancy], field: str) -> float:
    return float(np.median([getattr(each, field) for each in used]))


def _passes(predicted: Trace, figures: Sequence[RankFigures]) -> tuple[Quantity, ...]:
    """Passes that either side has; a name of neither is left out."""
    ours = _seconds_of_lists(predicted)
    found = []
    for words, names in PASSES.items():
        sides = [
            float(np.median([sum(each.get(name, 0.0) for name in names) for each in own]))
            for own in (ours, [each.names for each in figures])
        ]
        if any(sides):
            found.append(Quantity(words, sides[0], sides[1], "s"))
    others = [each.names.get(OTHER, 0.0) for each in figures]
    return (*found, Quantity("not named", None, float(np.median(others)), "s"))


def _rows(predicted: Trace, figures: Sequence[RankFigures]) -> tuple[Quantity, ...]:
    """Every name of the program's rows, and of whatever else ran."""
    ours: Sequence[Mapping[str, float]] = _seconds_of_lists(predicted, tuple(Kind))
    theirs, program = [each.names for each in figures], predicted.program
    planned = [program.tables.effects[e].name for e in np.unique(program.columns.effect).tolist()]
    names = dict.fromkeys([*planned, *(name for own in theirs for name in own)])
    return tuple(
        Quantity("not named" if name == OTHER else name, _median_of(ours, name), _median_of(theirs, name))
        for name in names
    )


def _median_of(told: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Seconds of a name; None where nobody has it."""
    if not any(name in own for own in told):
        return None
    return float(np.median([own.get(name, 0.0) for own in told]))


def _peaks(predicted_bytes: float | None, figures: Sequence[RankFigures]) -> tuple[Quantity, ...]:
    measured = max((each.peak_bytes for each in figures if each.peak_bytes is not None), default=None)
    return () if measured is None else (Quantity("peak memory", predicted_bytes, measured, "B"),)


def _astray(program: Program, job: ProfiledRun, lists: Sequence[int | None]) -> tuple[str, ...]:
    """That a profile says rows of another program, with the first of them."""
    effects, c = program.tables.effects, program.columns
    for rank, at in zip(job.ranks, lists, strict=True):
        if at is None or not job.says_rows:
            continue
        ran = {span.name.place: span.name for span in rank.spans if span.name.place >= 0}
        first, last = int(program.offsets[at]), int(program.offsets[at + 1])
        unseen = () if rank.is_device else range(last - first)  # not every row launches kernels
        for place in sorted({*ran, *unseen}):
            row = first + place
            name = ran.get(place)
            planned = None if row >= last else (effects[c.effect[row]].name, int(c.stage[row]))
            if planned is None or name is None or planned != (name.name, name.stage):
                said = "nothing" if name is None else f"{name.stage}{name.name}"
                wanted = "nothing" if planned is None else program.text_of(row)
                return (
                    f"rank {rank.rank} ran {said} where the plan's program has {wanted} (row {place}): its rows are compared "
                    "by name only",
                )
    return ()


def _seconds_of_lists(trace: Trace, kinds: Sequence[Kind] = (Kind.COMPUTE,)) -> list[dict[str, float]]:
    """Of every list the seconds of its rows of these kinds by name, in the last iteration."""
    program, length = trace.program, trace.end_s[-1] - trace.start_s[-1]
    names = [effect.name for effect in program.tables.effects]
    shape = (program.num_lists, len(names))
    chosen = np.isin(program.kinds, kinds)
    keys = np.ravel_multi_index((program.list_of_row[chosen], program.columns.effect[chosen]), shape)
    sums = np.bincount(keys, weights=length[chosen], minlength=shape[0] * shape[1]).reshape(shape)
    found: list[dict[str, float]] = []
    for row in sums:
        own: dict[str, float] = {}
        for name, seconds in zip(names, row.tolist(), strict=True):
            own[name] = own.get(name, 0.0) + seconds
        found.append(own)
    return found


def _works(predicted: Trace, figures: Sequence[RankFigures]) -> tuple[Quantity, ...]:
    parts: Mapping[str, float] = predicted.metadata.get("parts") or {}
    busiest = max(figures, key=lambda each: each.used.compute_s)
    if not parts or not busiest.works:
        return ()
    return tuple(
        Quantity(words, parts.get(work, 0.0), busiest.works.get(work, 0.0), "s")
        for work, words in WORKS.items()
        if parts.get(work) or busiest.works.get(work)
    )


def _lists(program: Program, ranks: Sequence[int], num_ranks: int) -> list[int | None]:
    """The list of every rank; None for all where the job has another number of devices."""
    if num_ranks != program.num_devices:
        return [None] * len(ranks)
    sizes = [axis.size for axis in program.axes]
    found: list[int | None] = []
    for rank in ranks:
        number = 0
        for axis, place in zip(program.axes, np.unravel_index(rank, sizes), strict=True):
            number = number * axis.size + int(place) if axis.materialised else number
        found.append(number)
    return found


def _doubts(program: Program, job: ProfiledRun) -> tuple[str, ...]:
    found = []
    if job.num_ranks != program.num_devices:
        found += [
            f"the job has {job.num_ranks} ranks and the plan {program.num_devices} devices: no rank is set beside a device"
        ]
    if job.named_share < LEAST_NAMED:
        found += [
            f"{job.named_share:.0%} of the time has a name: profile the host, too (ProfilerActivity.CPU), or put "
            'record_function("forward"), "backward", "optimizer" around what the job does'
        ]
    if len(job.step_seconds) < LEAST_STEPS:
        found += [f"{job.num_steps} steps are few: profile some more (schedule(active=5))"]
    return tuple(found)
