"""Prints how far predicted training steps are from measured ones, on rows that were left out: our model and two others.

What is left out is a whole source file, or a whole model; everything that is fitted is fitted on the rest. The other
two are in `training_baselines.py`: a closed form with ten constants and a table of median utilisation. Scored are core
rows, one per configuration (the newest release). Claims are of our model; exit status 3 where one does not hold.

Run: python benchmarks/training_fidelity.py [TABLE.csv ...]   (tables as `meshwright validate training` reads them)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fit.cross_validation import By, chosen_class_predictions, cross_validate, group_of
from training_baselines import Predictor, closed_form, fit_closed_form, median_utilisation

from meshwright.evidence.tables.score import Line, RowPrediction, Score, Summary, newest_releases, score_table
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import read_rows

# Where the tables lie when they are beside the checkout.
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "training"
OURS = "meshwright"
BASELINES: Mapping[str, Callable[[Sequence[TrainingRow]], Predictor]] = {
    "ten constants": closed_form,
    "median utilisation": median_utilisation,
}
LEFT_OUT: tuple[By, ...] = ("source", "model")
LINES: Mapping[str, str] = {
    "moe": "experts",
    "moe_newest_release": "experts, newest release",
    "float8": "fp8",
    "long_sequences": "sequences above 8,192",
}
LEAST_ROWS = 5  # a source with fewer rows cannot break the claim of the worst source
Predicted = Mapping[str, float]  # seconds by row_id; a row that is not there was skipped


@dataclass(frozen=True)
class Claim:
    """A number of our model and the most or least that it may be, both shares."""

    name: str
    value: float | None
    limit: float
    is_least: bool = False

    @property
    def holds(self) -> bool:
        """Is it known and within the limit?"""
        if self.value is None:
            return False
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def text(self) -> str:
        """A line of the list of claims."""
        bound = "at least" if self.is_least else "at most"
        value, limit = percent(self.value), f"{100 * self.limit:g} %"
        return f"{'pass' if self.holds else 'FAIL'}: {self.name}: {value} % ({bound} {limit})"


def main() -> int:
    """The tables and claims on stdout; 0 where all claims hold or there is nothing to score, 3 where one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="*", default=sorted(BESIDE.glob("*.csv")))
    tables = parser.parse_args().tables
    if not tables:
        print(f"skipped: no tables are given and {BESIDE} has none", file=sys.stderr)
        return 0
    everything = read_rows(tables).rows
    rows = newest_releases([row for row in everything if row.is_core])
    claims: list[Claim] = []
    for left_out in LEFT_OUT:
        scores = {name: scored(rows, cross_validated(rows, fit, left_out)) for name, fit in BASELINES.items()}
        scores = {OURS: scored(rows, cross_validate(rows, by=left_out)), **scores}
        print(f"## Left out: one {left_out} at a time\n", *table(scores), "", sep="\n", flush=True)
        print(*behind(scores), "", sep="\n")
        claims += claims_of(scores[OURS], left_out)
    print(*chosen_class(rows), "", sep="\n")
    print("Constants of the closed form, of all rows:", *constants(rows), "", sep="\n")
    print(*(claim.text() for claim in claims), sep="\n")
    return 0 if all(claim.holds for claim in claims) else 3


def chosen_class(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """Our second figure: three rows of a left-out source choose its software class, the others are scored."""
    found = chosen_class_predictions(rows)
    rest = [row for row in rows if row.row_id in found]
    yield "## Left out: one source at a time, three of its rows choose its software class\n"
    yield from table({OURS: scored(rest, found)})


def cross_validated(
    rows: Sequence[TrainingRow], fit: Callable[[Sequence[TrainingRow]], Predictor], left_out: str
) -> Predicted:
    """Seconds of every row by a model that learned from the rows of other sources, or other models."""
    keys = [group_of(row, left_out) for row in rows]
    predicted: dict[str, float] = {}
    for tested in sorted(set(keys)):
        inside = [row for row, one in zip(rows, keys, strict=True) if one == tested]
        rest = [row for row, one in zip(rows, keys, strict=True) if one != tested]
        seconds = fit(rest)(inside)
        predicted |= {row.row_id: second for row, second in zip(inside, seconds, strict=True)}
    return predicted


def scored(rows: Sequence[TrainingRow], predicted: Predicted) -> Summary:
    """Scores of these rows; rows without a prediction count as skipped."""
    predictions = []
    for row in rows:
        second = predicted.get(row.row_id)
        skipped = None if second is not None else "not predicted"
        predictions.append(RowPrediction(row.row_id, row.measured_s, predicted_s=second, skipped=skipped))
    return score_table(rows, predictions)


def table(scores: Mapping[str, Summary]) -> Iterator[str]:
    """Lines of a table in Markdown: median error and bias of every model, in per cent."""
    yield "| rows | n |" + "".join(f" {name}: median % | bias % |" for name in scores)
    yield "|---|---:|" + "---:|---:|" * len(scores)
    dense = [summary.lines["dense"] for summary in scores.values()]
    for source in dense[0].by_source:
        yield _line(source, [line.by_source[source] for line in dense])
    yield _cells(
        "dense: average over sources", dense[0], [(x.average_median_error, x.average_bias) for x in dense]
    )
    yield _line("dense: all rows together", [line.pooled for line in dense])
    yield _cells("dense: within 10 %", dense[0], [(line.pooled.within_10, None) for line in dense])
    for name, label in LINES.items():
        yield _line(label, [summary.lines[name].pooled for summary in scores.values()])


def _line(label: str, scores: Sequence[Score]) -> str:
    cells = "".join(f" {percent(one.median_error)} | {percent(one.bias, '+')} |" for one in scores)
    return f"| {label} | {scores[0].num_rows} |{cells}"


def _cells(label: str, line: Line, pairs: Sequence[tuple[float | None, float | None]]) -> str:
    cells = "".join(f" {percent(value)} | {percent(bias)} |" for value, bias in pairs)
    return f"| {label} | {line.pooled.num_rows} |{cells}"


def percent(share: float | None, sign: str = "") -> str:
    """A share in per cent with one digit; empty where there is none."""
    return "" if share is None else f"{100 * share:{sign}.1f}"


def behind(scores: Mapping[str, Summary]) -> Iterator[str]:
    """The lines of the table in which another model is ahead of ours."""
    ours, others = scores[OURS], {name: found for name, found in scores.items() if name != OURS}
    for name, other in others.items():
        for label, mine, theirs in compared(ours, other):
            if mine is not None and theirs is not None and theirs < mine:
                yield f"behind {name}: {label}: {percent(mine)} % against {percent(theirs)} %"


def compared(ours: Summary, other: Summary) -> Iterator[tuple[str, float | None, float | None]]:
    """Errors of every line of the table, less is better: its name, ours, theirs."""
    mine, theirs = ours.lines["dense"], other.lines["dense"]
    for source, found in mine.by_source.items():
        yield source, found.median_error, theirs.by_source[source].median_error
    yield "dense: average over sources", mine.average_median_error, theirs.average_median_error
    yield "dense: all rows together", mine.pooled.median_error, theirs.pooled.median_error
    yield "dense: not within 10 %", 1 - (mine.pooled.within_10 or 0), 1 - (theirs.pooled.within_10 or 0)
    for name, label in LINES.items():
        yield label, ours.lines[name].pooled.median_error, other.lines[name].pooled.median_error


def claims_of(summary: Summary, left_out: str) -> list[Claim]:
    """What our model must reach on rows that were left out."""
    dense = summary.lines["dense"]
    large = [found.median_error or 0.0 for found in dense.by_source.values() if found.num_rows >= LEAST_ROWS]
    end = f", one {left_out} left out"
    claims = [
        Claim(f"dense, average over sources of the median error{end}", dense.average_median_error, 0.07),
        Claim(f"dense, worst source of {LEAST_ROWS} or more rows{end}", max(large, default=None), 0.13),
        Claim(f"dense, median error of all rows{end}", dense.pooled.median_error, 0.055),
        Claim(f"dense, rows within 10 %{end}", dense.pooled.within_10, 0.80, is_least=True),
        Claim(f"dense, average over sources of the size of the bias{end}", dense.average_bias, 0.04),
        Claim(f"core rows skipped{end}", summary.skipped_share, 0.02),
    ]
    if left_out == "model":
        moe = summary.lines["moe_newest_release"].pooled.median_error
        claims.append(Claim(f"experts, newest release, median error{end}", moe, 0.15))
    return claims


def constants(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """Names and values of the ten constants, learned from all rows."""
    for name, value in fit_closed_form(rows).constants.items():
        yield f"  {name} {value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
