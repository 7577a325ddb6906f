"""The worst rows of a run, each with the sentence that is known of its cause; not more than three of one and the same."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.evidence.tables.score import Scored
from meshwright.evidence.tables.table import TrainingRow
from meshwright.reports.chart.quantity import quantity

from .reasons import ALIKE, REASONS

NUM_WORST, MOST_ALIKE = 20, 3
DISTURBED = "a run that another of the same contradicts"
SLOWER = 2.5  # times as long as the fastest run of the same job and layout: a disturbed one


class Worst(NamedTuple):
    """A row, how far it is off as |log(predicted / measured)|, its cause by name, and how many of that cause came before."""

    scored: Scored
    size: float
    cause: str
    number: int


def by_size(scored: Sequence[Scored]) -> list[Worst]:
    """Every row that was predicted, the furthest off first."""
    fastest = _fastest(scored)
    known = [pair for pair in scored if pair[1].predicted_s]
    ordered = sorted(((_size(pair), pair) for pair in known), key=lambda each: -each[0])
    seen: Counter[str] = Counter()
    found = []
    for size, pair in ordered:
        cause = cause_of(pair[0], fastest)
        found.append(Worst(pair, size, cause, seen[cause]))
        seen[cause] += 1
    return found


def chosen(scored: Sequence[Scored]) -> list[Worst]:
    """The worst of which no cause has more than MOST_ALIKE."""
    return [each for each in by_size(scored) if each.number < MOST_ALIKE][:NUM_WORST]


def cause_of(row: TrainingRow, fastest: Mapping[tuple[str, ...], float]) -> str:
    """The first cause that a row is of; its own name where it is of none."""
    if times_slower(row, fastest) > SLOWER:
        return DISTURBED
    return next((name for name, is_of in ALIKE.items() if is_of(row)), row.row_id)


def times_slower(row: TrainingRow, fastest: Mapping[tuple[str, ...], float]) -> float:
    """Its seconds a slot over those of the fastest run that is alike."""
    return row.measured_s * _pace(row) / fastest[_alike(row)]


def _size(pair: Scored) -> float:
    return abs(math.log((pair[1].predicted_s or math.nan) / pair[0].measured_s))


def _fastest(scored: Sequence[Scored]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for row, _ in scored:
        each = row.measured_s * _pace(row)
        found[_alike(row)] = min(each, found.get(_alike(row), math.inf))
    return found


def _alike(row: TrainingRow) -> tuple[str, ...]:
    """What runs of one job and layout have in common but for replicas and what these share."""
    columns = (
        "model",
        "gpu",
        "seq",
        "precision",
        "tp",
        "pp",
        "cp",
        "ep",
        "vpp",
        "micro_batch_seqs",
        "recompute",
        "heads",
    )
    is_far = row.count("gpus") > max(1, row.count("gpus_per_node", 8))
    return (row.source, str(is_far), *(row.text(column) for column in columns))


def _pace(row: TrainingRow) -> float:
    """One over its slots: microbatches, and what fills the pipeline, so that runs of other batches compare."""
    replicas = row.count("gpus") / (
        max(1, row.count("tp", 1)) * max(1, row.count("pp", 1)) * max(1, row.count("cp", 1))
    )
    size = max(1, row.count("micro_batch_seqs", 1))
    return 1.0 / (row.count("global_batch_seqs") / replicas / size + max(1, row.count("pp", 1)) - 1)


def worst_table(scored: Sequence[Scored]) -> Iterator[str]:
    """The rows with their sentences; a row without one is named on stderr."""
    yield "| row | predicted | measured | error % | what is known of it |"
    yield "|---|---:|---:|---:|---|"
    fastest = _fastest(scored)
    for each in chosen(scored):
        row, prediction = each.scored
        if row.row_id not in REASONS:
            print(f"{row.row_id} has no sentence in reasons.py", file=sys.stderr)
        sentence = REASONS.get(row.row_id, "")
        if each.cause == DISTURBED:
            sentence += (
                f"; the fastest like it takes {times_slower(row, fastest):.0f} times less a microbatch"
            )
        times = f"{quantity(prediction.predicted_s, 's')} | {quantity(row.measured_s, 's')}"
        yield (f"| {row.row_id}: {run_text(row)} | {times} | {100 * prediction.error:+.0f} | {sentence} |")


def passed_over(scored: Sequence[Scored]) -> str:
    """How many rows of which causes are as far off as those of the table, and not in it."""
    least = chosen(scored)[-1].size
    counts = Counter(
        each.cause for each in by_size(scored) if each.size >= least and each.number >= MOST_ALIKE
    )
    told = "; ".join(f"{cause}: {count}" for cause, count in counts.most_common())
    return f"Passed over, as three of their cause are in the table already: {told or 'none'}."


def run_text(row: TrainingRow) -> str:
    """A row in a few words."""
    names = ("tp", "pp", "cp", "ep", "dp")
    degrees = [f"{name} {row.text(name)}" for name in names if row.text(name) not in ("1", "")]
    chip = row.text("gpu").split("-")[0]
    size = f"microbatch {row.text('micro_batch_seqs')}" if row.text("micro_batch_seqs") else ""
    words = [
        row.text("model"),
        f"{row.text('gpus')} {chip}",
        f"{row.sequence_length:,} tokens",
        row.text("precision"),
    ]
    return ", ".join([*(word for word in (*words, size) if word), *degrees])
