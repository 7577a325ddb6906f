"""Traces of torch.profiler of one job, one file a rank, as what a prediction is compared with: figures, and a `Trace`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.interop.profiler.chrome_file import profile_files, read_chrome
from meshwright.interop.profiler.clock import offsets_of
from meshwright.interop.profiler.held_memory import DEVICE, held_memory
from meshwright.interop.profiler.naming import BY_NOBODY
from meshwright.interop.profiler.rank_spans import RankSpan, RankSpans, spans_of
from meshwright.ir.judge.occupancy import Occupancy, occupancy
from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class RankFigures:
    """What a rank did in a step: medians over the steps.

    Attributes:
        rank: its number.
        used: computing, exchanging and idle.
        names: seconds of each name, computes and exchanges alike.
        works: seconds of computes by what their kernels do (matmul, attention, stream, other).
        peak_bytes: most that its GPU's allocator held in any step; None where the profiler was not asked for it.
    """

    rank: int
    used: Occupancy
    names: Mapping[str, float]
    works: Mapping[str, float]
    peak_bytes: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units."""
        return {
            "rank": self.rank, **asdict(self.used), "bubble": self.used.bubble,
            "names": dict(self.names), "works": dict(self.works), "peak_bytes": self.peak_bytes,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProfiledRun:
    """Ranks on one clock.

    Attributes:
        ranks: spans of each, by rank.
        offsets_s: what is added to the times of each for one clock.
        num_ranks: of the whole job, as far as the files say it; there may be fewer files.
        notes: what was assumed.
    """

    ranks: Sequence[RankSpans]
    offsets_s: Sequence[float]
    num_ranks: int
    notes: tuple[str, ...]

    @property
    def num_steps(self) -> int:
        """Steps of the rank that has the fewest."""
        return min(len(rank.steps) for rank in self.ranks)

    @property
    def step_seconds(self) -> list[float]:
        """Between the ends of successive steps, of all ranks; of a single step what its longest rank took."""
        found = [seconds for rank in self.ranks for seconds in np.diff(_ends(rank)).tolist()]
        return found or [
            max(max(s.end_s for s in r.spans) - min(s.start_s for s in r.spans) for r in self.ranks)
        ]

    @property
    def step_s(self) -> float:
        """Seconds of a step, the median."""
        return float(np.median(self.step_seconds))

    @property
    def says_rows(self) -> bool:
        """Did our executor run it, so that what ran has the rows of its program by their places?"""
        return all(any(span.name.place >= 0 for span in rank.spans) for rank in self.ranks)

    @property
    def named_share(self) -> float:
        """Of all seconds that anything ran, those that somebody named: an annotation, autograd, or a library's kernel."""
        total = sum(span.seconds for rank in self.ranks for span in rank.spans)
        named = sum(
            span.seconds for rank in self.ranks for span in rank.spans if span.name.source != BY_NOBODY
        )
        return named / total if total > 0 else 0.0

    def figures(self) -> list[RankFigures]:
        """Of every rank."""
        return [_figures(rank, self.step_s) for rank in self.ranks]

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units."""
        return {
            "step_s": self.step_s, "num_steps": self.num_steps, "num_ranks": self.num_ranks,
            "named_share": self.named_share, "notes": list(self.notes),
            "ranks": [each.to_dict() for each in self.figures()],
        }  # fmt: skip


def read_profile(given: Path | Iterable[Path]) -> ProfiledRun:
    """The job whose ranks wrote these files.

    Args:
        given: files of torch.profiler (.json, .json.gz), one a rank, or folders of such.

    Raises SpecError for a file that is none, a rank that two files have, and several files of which one says no rank.
    """
    files = [read_chrome(path) for path in profile_files([given] if isinstance(given, Path) else list(given))]
    if len(files) > 1:
        for file in files:
            if file.rank is None:
                raise SpecError(
                    f"{file.path} says no rank, and it is one of {len(files)} files",
                    allowed="distributedInfo in each, which torch.profiler writes of a process group that is there",
                    next="give one file, or profile after init_process_group",
                )
    ranks = sorted((spans_of(file, file.rank or 0) for file in files), key=lambda rank: rank.rank)
    for before, after in zip(ranks, ranks[1:], strict=False):
        if before.rank == after.rank:
            raise SpecError(
                f"{before.file.path} and {after.file.path} are both of rank {after.rank}",
                allowed="one file of each rank",
            )
    offsets, unset = offsets_of(ranks)
    num_ranks = max([len(files), *(file.num_ranks or 1 for file in files)])
    return ProfiledRun(ranks, offsets, num_ranks, _notes(ranks, num_ranks, unset))


def _notes(ranks: Sequence[RankSpans], num_ranks: int, unset: Sequence[int]) -> tuple[str, ...]:
    found = ["an exchange's seconds have in them what it waits for its slowest member"]
    if not all(rank.has_steps for rank in ranks):
        found += [
            "no ProfilerStep# says where steps begin (profiler.step()): the whole file is taken for one step"
        ]
    if not all(rank.is_device for rank in ranks):
        found += ["no kernels in the trace: the host's operators are the computes"]
    if any(rank.file.memory and not rank.is_device for rank in ranks):
        found += [
            "of a host the profiler knows what was allocated since it began, and not what was there before"
        ]
    if len(ranks) < num_ranks:
        found += [f"{len(ranks)} of {num_ranks} ranks are there"]
    if unset:
        found += [
            f"no collective sets the clocks of {len(unset)} of {len(ranks)} ranks by rank {ranks[0].rank}'s: "
            "they are as their hosts have them"
        ]
    return tuple(found)


def _ends(rank: RankSpans) -> np.ndarray:
    """When the last of every step ended, steps with nothing in them left out."""
    ends: defaultdict[int, float] = defaultdict(float)
    for span in rank.spans:
        ends[span.step] = max(ends[span.step], span.end_s)
    return np.maximum.accumulate([ends[step] for step in sorted(ends)])


def _figures(rank: RankSpans, step_s: float) -> RankFigures:
    steps: defaultdict[int, list[RankSpan]] = defaultdict(list)
    for span in rank.spans:
        steps[span.step].append(span)
    used = [_used(spans, step_s) for spans in steps.values()]
    names, works = [], []
    for spans in steps.values():
        seconds, kinds = Counter[str](), Counter[str]()
        for span in spans:
            seconds[span.name.name] += span.seconds  # type: ignore[assignment]
            if span.is_compute and rank.is_device:
                kinds[span.work] += span.seconds  # type: ignore[assignment]
        names.append(seconds)
        works.append(kinds)
    medians = (float(np.median(values)) for values in zip(*map(_seconds, used), strict=True))
    occupied = Occupancy(*medians)
    return RankFigures(rank.rank, occupied, _medians(names), _medians(works), _peak_bytes(rank))


def _peak_bytes(rank: RankSpans) -> float | None:
    """Of the device, from the first to the last of what ran in steps."""
    held = held_memory(rank.file).get(DEVICE)
    if (
        held is None or not rank.is_device
    ):  # of a host only what was allocated since the profiler began is known
        return None
    first, last = min(span.start_s for span in rank.spans), max(span.end_s for span in rank.spans)
    return float(held.within(first, last).num_bytes.max())


def _seconds(used: Occupancy) -> tuple[float, float, float, float]:
    return used.step_s, used.compute_s, used.exchange_s, used.exposed_s


def _used(spans: Sequence[RankSpan], step_s: float) -> Occupancy:
    computes = [span for span in spans if span.is_compute]
    exchanges = [span for span in spans if span.name.kind.is_exchange]
    (c, e) = (([s.start_s for s in own], [s.end_s for s in own]) for own in (computes, exchanges))
    return occupancy(step_s, c, e)


def _medians(counted: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in counted for name in each)
    found = {name: float(np.median([each.get(name, 0.0) for each in counted])) for name in names}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
