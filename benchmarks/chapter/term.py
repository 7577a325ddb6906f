"""Term: one picture and what it shows in words, made from rows that were predicted without their source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.score import Scored
from meshwright.reports import Series, Theme

WIDE = 760  # pixels of a picture across
THEME = Theme(background="#ffffff", series=("#2f6fd0", "#d9772b", "#2a9d76", "#b0488f", "#6a5acd", "#7a828c"))
GREY = 5  # the place of the last colour, for what others are compared with
MS = 1e3


@dataclass(frozen=True)
class Term:
    """What stands between the marks of one name.

    Attributes:
        name: of the marks; with hyphens for blanks of the file of its picture.
        svg: the picture. caption: what it is of.
        lines: below it, with numbers of this run.
    """

    name: str
    svg: str
    caption: str
    lines: Sequence[str]

    @property
    def file_name(self) -> str:
        """Of the picture."""
        return f"{self.name.replace(' ', '-')}.svg"

    @property
    def block(self) -> str:
        """Markdown."""
        return "\n".join([f"![{self.caption}](figures/{self.file_name})", "", *self.lines])


@dataclass(frozen=True)
class Block:
    """Of a row of a pipeline whose work is blocks: what one of these takes, forward and backward, of one microbatch.

    `measured_ms`, `predicted_ms`: the step over its slots (microbatches, and what fills the pipeline) and blocks of a stage.
    """

    scored: Scored
    job: TrainingJob
    measured_ms: float
    predicted_ms: float

    @staticmethod
    def of(scored: Scored) -> Block:
        """Of a row that was predicted."""
        row, prediction = scored
        job = job_of(row)
        plan = job.plan
        slots = plan.num_microbatches + (plan.pp - 1) / plan.num_chunks
        each = MS / slots / (plan.model.num_layers / plan.pp)
        return Block(scored, job, row.measured_s * each, (prediction.predicted_s or math.nan) * each)


def percent(share: float, digits: int = 0, *, is_signed: bool = False) -> str:
    """A share as the pages write it: 7.5 %."""
    return f"{100 * share:{'+' if is_signed else ''}.{digits}f} %"


def power_ticks(values: Iterable[float], unit: str = "") -> list[tuple[float, str]]:
    """Places (binary logarithms) and texts of the powers of two among values; the unit stands at the last."""
    known = [value for value in values if value > 0]
    first, last = math.floor(math.log2(min(known)) + 0.1), math.ceil(math.log2(max(known)) - 0.1)
    texts = [f"{2.0**exponent:,.4g}" for exponent in range(first, last + 1)]
    texts[-1] = f"{texts[-1]} {unit}".rstrip()
    return [(float(first + place), text) for place, text in enumerate(texts)]


def around(ticks: Sequence[tuple[float, str]]) -> tuple[float, float]:
    """The range of an axis from its first to its last tick, with a little room."""
    room = 0.04 * (ticks[-1][0] - ticks[0][0])
    return ticks[0][0] - room, ticks[-1][0] + room


def points(name: str, found: Mapping[str, tuple[float, float]], place: int) -> Series:
    """A cloud of one colour at places as they are drawn; each point is named when it is pointed at."""
    x, y = [x for x, _ in found.values()], [y for _, y in found.values()]
    return Series(name, x, y, form="points", hints=list(found), place=place)


def medians(pairs: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Every x once, in order, with the median of its y."""
    by_x: dict[float, list[float]] = {}
    for x, y in pairs:
        by_x.setdefault(x, []).append(y)
    places = sorted(by_x)
    return places, [median(by_x[x]) for x in places]


def of_source(scored: Iterable[Scored], source: str) -> list[Scored]:
    """Its rows that were predicted."""
    return [pair for pair in scored if pair[0].source == source and pair[1].predicted_s]


def rewrite(page: Path, blocks: Mapping[str, str]) -> None:
    """What stands between the marks of a block is replaced by the block."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text = marks.sub(lambda found, block=block: f"{found[1]}\n{block}\n\n{found[2]}", text)
    page.write_text(text, encoding="utf-8")
