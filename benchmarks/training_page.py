"""Writes the measured numbers and the figures of docs/accuracy-training.md.

Every row of the training tables is predicted with the packaged constants that were fitted without its source
(`predict(..., left_out=source)`). What stands between two marks, `<!-- NAME -->` and `<!-- end NAME -->`, is
written anew in the page. Figures go to docs/figures. The chapter on prediction is written by `python -m benchmarks.chapter`.

Run: python benchmarks/training_page.py TABLE.csv ... --docs docs [--fidelity SAVED] [--memory SAVED]
SAVED is what `training_fidelity.py` printed, and what `memory_fidelity.py` printed on stderr. Without --docs the blocks
are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from chapter.term import THEME, rewrite

from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import RowPrediction, Score, Summary, newest_releases, score_table
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.prediction.predicted import predict
from meshwright.reports import Chart, Series, chart_svg
from meshwright.reports.page.validation import scatter_svg
from meshwright.specs.error import MeshwrightError

BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "training"
PAGE = "accuracy-training.md"


def main() -> int:
    """Blocks on stdout or in the page; 0, also where there is no table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="*", default=sorted(BESIDE.glob("*.csv")))
    parser.add_argument("--docs", type=Path, help="the folder of the page; it is changed in place")
    parser.add_argument("--fidelity", type=Path, help="saved output of training_fidelity.py")
    parser.add_argument("--memory", type=Path, help="saved stderr of memory_fidelity.py")
    chosen = parser.parse_args()
    if not chosen.tables:
        print(f"skipped: no tables are given and {BESIDE} has none", file=sys.stderr)
        return 0
    rows, predictions = left_out_rows(chosen.tables)
    blocks = dict(measured_blocks(rows, predictions))
    if chosen.fidelity:
        blocks |= fidelity_blocks(chosen.fidelity.read_text(encoding="utf-8"))
    if chosen.memory:
        blocks |= {"memory": "\n".join(memory_table(chosen.memory.read_text(encoding="utf-8")))}
    if chosen.docs is None:
        for name, text in blocks.items():
            print(f"## {name}\n", text, "", sep="\n")
        return 0
    write_figures(rows, predictions, chosen.docs / "figures")
    rewrite(chosen.docs / PAGE, blocks)
    return 0


def left_out_rows(tables: Sequence[Path]) -> tuple[list[TrainingRow], dict[str, RowPrediction]]:
    """Core rows, one per configuration, and each one's prediction by constants fitted without its source."""
    everything = read_rows(tables).rows
    rows = newest_releases([row for row in everything if row.is_core])
    return rows, {row.row_id: predicted(row) for row in rows}


def predicted(row: TrainingRow) -> RowPrediction:
    """A row's prediction, or why there is none."""
    try:
        job = job_of(row)
        step = predict(job.plan, job.cluster, left_out=row.source).step
    except MeshwrightError as error:
        return RowPrediction(row.row_id, row.measured_s, skipped=str(error))
    return RowPrediction(row.row_id, row.measured_s, step.value, step.low, step.high, step.basis)


def measured_blocks(
    rows: Sequence[TrainingRow], predictions: Mapping[str, RowPrediction]
) -> Iterator[tuple[str, str]]:
    """The table of intervals."""
    summary = score_table(rows, predictions.values())
    yield "intervals", "\n".join(interval_table(summary))


def interval_table(summary: Summary) -> Iterator[str]:
    """Of every source and selection: how many measured steps were inside, and how wide the intervals are."""
    yield "| rows | n | inside the interval % | median half width % | within 10 % | within 20 % |"
    yield "|---|---:|---:|---:|---:|---:|"
    labels = {"core": "all core rows", "dense": "dense", "moe": "experts", "float8": "float8"}
    for source, score in summary.sources.items():
        yield interval_line(source, score)
    for name, label in labels.items():
        yield interval_line(label, summary.lines[name].pooled)
    ordered = "" if summary.pairs_ordered is None else f"{100 * summary.pairs_ordered:.1f}"
    yield f"| layouts of one job in the right order | {summary.num_pairs} pairs | {ordered} | | | |"


def interval_line(label: str, score: Score) -> str:
    """One row of that table."""
    values = (score.coverage, score.half_width, score.within_10, score.within_20)
    cells = " | ".join("" if value is None else f"{100 * value:.1f}" for value in values)
    return f"| {label} | {score.num_rows} | {cells} |"


def fidelity_blocks(text: str) -> dict[str, str]:
    """The two tables, the lines behind them and the claims of `training_fidelity.py`."""
    found = {}
    for left_out in ("source", "model"):
        part = text.split(f"## Left out: one {left_out} at a time\n", 1)[1]
        lines = [line for line in part.split("\n## ", 1)[0].splitlines() if line.startswith("|")]
        table = "\n".join(joined_cells(lines))
        behind = [line for line in part.split("\n## ", 1)[0].splitlines() if line.startswith("behind ")]
        found[f"left out {left_out}"] = "\n".join([table, "", *[f"- {line}" for line in behind]])
    part = text.split("three of its rows choose its software class\n", 1)[1].split("\n## ", 1)[0]
    found["chosen class"] = "\n".join(
        joined_cells([line for line in part.splitlines() if line.startswith("|")])
    )
    claims = [line for line in text.splitlines() if line.startswith(("pass: ", "FAIL: "))]
    found["claims"] = "\n".join(f"- {line}" for line in claims)
    return found


def joined_cells(lines: Sequence[str]) -> Iterator[str]:
    """A table of medians and biases with each pair in one cell, so that it fits a page."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = [cell.removesuffix(": median %") for cell in head[2::2]]
    yield f"| median error (bias), % | {head[1]} | " + " | ".join(names) + " |"
    yield "|---|" + "---:|" * (1 + len(names))
    for label, number, *cells in rows:
        pairs = zip(cells[::2], cells[1::2], strict=True)
        yield f"| {label} | {number} | " + " | ".join(f"{a} ({b})" if b else a for a, b in pairs) + " |"


def memory_table(text: str) -> Iterator[str]:
    """What `memory_fidelity.py` shows, as a table."""
    yield "| source | rows | median % | largest % | bias % | above the bound % |"
    yield "|---|---:|---:|---:|---:|---:|"
    for line in text.splitlines():
        words = line.replace("%", "").split()
        if len(words) > 7 and words[1].isdigit() and words[-1] == "ms":
            source, count, median, largest, bias, _, above = words[:7]
            yield f"| {source} | {count} | {median} | {largest} | {bias} | {above} |"
    last = next((line for line in text.splitlines() if line.startswith("average over sources")), "")
    yield ""
    yield f"{last[:1].upper()}{last[1:]}."


def write_figures(
    rows: Sequence[TrainingRow], predictions: Mapping[str, RowPrediction], folder: Path
) -> None:
    """Both pictures, as SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [{**predictions[row.row_id].to_dict(), "source": row.source} for row in rows]
    (folder / "steps-predicted-measured.svg").write_text(scatter_svg(drawn, THEME) + "\n", encoding="utf-8")
    (folder / "error-by-length.svg").write_text(length_svg(rows, predictions) + "\n", encoding="utf-8")


def length_svg(
    rows: Sequence[TrainingRow], predictions: Mapping[str, RowPrediction], source: str = "mosaic"
) -> str:
    """Error of one source's rows over the sequence length, a colour for each chip and precision."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found = predictions[row.row_id]
        if row.source == source and found.predicted_s is not None:
            name = f"{row.values['gpu'].split('-')[0]}{', float8' if row.is_float8 else ''}"
            series.setdefault(name, []).append((np.log2(row.sequence_length), 100 * found.error))
    chart = Chart(
        [Series(name, *zip(*points, strict=True), form="points") for name, points in sorted(series.items())],
        x_label="sequence length, as a power of two", y_label=f"error of the step, % ({source})",
        levels=[("", 0.0)], width=860,
    )  # fmt: skip
    return chart_svg(chart)


if __name__ == "__main__":
    sys.exit(main())
