"""Writes the measured numbers and the figures of docs/accuracy-training.md and docs/how-a-step-is-predicted.md.

Every row of the training tables is predicted with the packaged constants that were fitted without its source
(`predict(..., left_out=source)`). What stands between two marks, `<!-- NAME -->` and `<!-- end NAME -->`, is
written anew in both pages; sentences of the worst rows come from `training_reasons.py`. Figures go to docs/figures.

Run: python benchmarks/training_page.py TABLE.csv ... --docs docs [--fidelity SAVED] [--memory SAVED]
SAVED is what `training_fidelity.py` printed, and what `memory_fidelity.py` printed on stderr. Without --docs the blocks
are printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from fit.fit_steps import FAMILIES, NAMES, PRIORS
from training_example import EXAMPLE, JOBS, example
from training_reasons import REASONS

from meshwright.catalog import find_schedule
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import RowPrediction, Score, Summary, newest_releases, score_table
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_trait import BESIDE as BESIDE_STREAMS
from meshwright.prediction.step_trait import UNCERTAIN
from meshwright.reports import Chart, Series, Theme, chart_svg
from meshwright.reports.chart.bars import bars_svg
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.validation import scatter_svg
from meshwright.specs.error import MeshwrightError
from meshwright.specs.plan.software import CLASSES
from meshwright.specs.units import format_bytes

BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "training"
PAGES = ("accuracy-training.md", "how-a-step-is-predicted.md")
NUM_WORST = 10
SCATTER_THEME = Theme(
    background="#ffffff",
    series=("#2f6fd0", "#d9772b", "#2a9d76", "#b0488f", "#6a5acd", "#7a828c"),
)
UNITS: Mapping[str, tuple[float, str]] = {
    "gap_s": (1e6, "us"),
    "step_s": (1e3, "ms"),
    "expert_s": (1e3, "ms"),
}


def main() -> int:
    """Blocks on stdout or in the pages; 0, also where there is no table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="*", default=sorted(BESIDE.glob("*.csv")))
    parser.add_argument("--docs", type=Path, help="the folder of the pages; they are changed in place")
    parser.add_argument("--fidelity", type=Path, help="saved output of training_fidelity.py")
    parser.add_argument("--memory", type=Path, help="saved stderr of memory_fidelity.py")
    chosen = parser.parse_args()
    if not chosen.tables:
        print(f"skipped: no tables are given and {BESIDE} has none", file=sys.stderr)
        return 0
    rows, predictions = left_out_rows(chosen.tables)
    blocks = dict(measured_blocks(rows, predictions))
    blocks |= {"constants": "\n".join(constants_table()), "width": "\n".join(width_table())}
    blocks |= {"example": "\n".join(example_table()), "software": "\n".join(software_table())}
    if chosen.fidelity:
        blocks |= fidelity_blocks(chosen.fidelity.read_text(encoding="utf-8"))
    if chosen.memory:
        blocks |= {"memory": "\n".join(memory_table(chosen.memory.read_text(encoding="utf-8")))}
    if chosen.docs is None:
        for name, text in blocks.items():
            print(f"## {name}\n", text, "", sep="\n")
        return 0
    write_figures(rows, predictions, chosen.docs / "figures")
    for page in PAGES:
        rewrite(chosen.docs / page, blocks)
    return 0


def rewrite(page: Path, blocks: Mapping[str, str]) -> None:
    """What stands between the marks of a block is replaced by the block."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text = marks.sub(lambda found, block=block: f"{found[1]}\n{block}\n\n{found[2]}", text)
    page.write_text(text, encoding="utf-8")


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
    """Tables of intervals and of the worst rows."""
    summary = score_table(rows, predictions.values())
    yield "intervals", "\n".join(interval_table(summary))
    yield "worst", "\n".join(worst_table(rows, predictions))


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


def worst_table(rows: Sequence[TrainingRow], predictions: Mapping[str, RowPrediction]) -> Iterator[str]:
    """The rows with the largest errors, each with its sentence; who has none is named on stderr."""
    yield "| row | predicted, measured, error | why |"
    yield "|---|---|---|"
    known = [row for row in rows if predictions[row.row_id].predicted_s is not None]
    for row in sorted(known, key=lambda row: -abs(predictions[row.row_id].error))[:NUM_WORST]:
        found = predictions[row.row_id]
        reason = REASONS.get(row.row_id, "")
        if not reason:
            print(f"{row.row_id} has no sentence in training_reasons.py", file=sys.stderr)
        times = (
            f"{quantity(found.predicted_s, 's')}, {quantity(row.measured_s, 's')}, {100 * found.error:+.1f} %"
        )
        yield f"| {row.row_id}: {run_text(row)} | {times} | {reason} |"


def run_text(row: TrainingRow) -> str:
    """A row in a few words."""
    values = row.values
    degrees = [
        f"{name} {values[name]}"
        for name in ("tp", "pp", "cp", "ep")
        if values.get(name, "1") not in ("1", "")
    ]
    chip = values["gpu"].split("-")[0]
    words = [
        values["model"], f"{values['gpus']} {chip}", f"{int(values['seq']):,} tokens", values["precision"], *degrees,
    ]  # fmt: skip
    return ", ".join(words)


def constants_table() -> Iterator[str]:
    """Every constant with its prior and its value for each family."""
    fit = packaged_step_profile().fit
    yield "| constant | unit | expected (range) | A100 | H100, H200 | B200 |"
    yield "|---|---|---|---:|---:|---:|"
    for name in NAMES:
        prior = PRIORS[name]
        scale, unit = UNITS.get(name, (1.0, "factor" if name != "jitter" else "share"))
        own = [f"{family.upper()} {scale * value:.3g}" for family, value in prior.of_family.items()]
        expected = ", ".join([f"{scale * prior.centre:.3g}", *own])
        span = f"{scale * prior.low:.3g} to {scale * prior.high:.3g}"
        values = " | ".join(f"{scale * getattr(fit.of(family), name):.3g}" for family in FAMILIES)
        yield f"| `{name}` | {unit} | {expected} ({span}) | {values} |"


def width_table() -> Iterator[str]:
    """Spreads of kinds of work, in per cent, and the ends of the interval in deviations."""
    width = packaged_step_profile().fit.width
    yield "| | " + " | ".join(f"`{name}`" for name in UNCERTAIN) + " | ends |"
    yield "|---|" + "---:|" * len(UNCERTAIN) + "---:|"
    spreads = " | ".join(f"{100 * width.spreads[name]:.0f}" for name in UNCERTAIN)
    yield f"| spread, % | {spreads} | {width.low:.2f} to {width.high:.2f} |"


def software_table() -> Iterator[str]:
    """Every software class with what decides its kernels."""
    yield "| class | what it is | traffic of activation, residual, loss | gaps | attention of the chip's generation |"
    yield "|---|---|---|---:|---|"
    for name, each in CLASSES.items():
        traffic = ", ".join(
            f"{each.traffic.get(kind, 1.0):g}" for kind in ("activation", "elementwise", "loss")
        )
        native = "yes" if each.has_native_attention else "no"
        yield f"| `{name}` | {each.meaning} | {traffic} | {each.gap_share:g} | {native} |"


def example_table() -> Iterator[str]:
    """The worked example: parts of the step, and of memory."""
    plan, cluster = example(EXAMPLE)
    found = predict(plan, cluster)
    memory = estimate_memory(plan, cluster, find_schedule(plan.schedule))
    tokens = plan.workload.tokens_per_step / found.step.value / plan.num_devices
    flops = plan.model.train_flops_per_token(plan.workload.sequence_length) * tokens
    share = flops / cluster.devices[0].peak_flops_per_s(plan.dtype)
    step = found.step
    yield "| part of the busiest device | seconds | share % |"
    yield "|---|---:|---:|"
    for name, value in along(found).items():
        yield f"| {name} | {value:.3f} | {100 * value / step.value:.1f} |"
    yield f"| **step** ({step.low:.2f} to {step.high:.2f} s, {step.basis}) | **{step.value:.3f}** | 100 |"
    for name, value in found.parts.items():
        if name in BESIDE_STREAMS:
            yield f"| beside: `{name}` | {value:.3f} | |"
    yield ""
    yield f"{found.num_rows:,} instructions were simulated; {tokens:,.0f} tokens/s a GPU, model FLOPs at {share:.1%} of"
    yield f"the peak. The fullest device holds {format_bytes(memory.allocated_bytes)} of tensors."


def along(found: Predicted) -> dict[str, float]:
    """The parts that add up to the step: those on the compute stream."""
    return {name: value for name, value in found.parts.items() if name not in BESIDE_STREAMS}


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
    """The three pictures, as SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [{**predictions[row.row_id].to_dict(), "source": row.source} for row in rows]
    (folder / "steps-predicted-measured.svg").write_text(
        scatter_svg(drawn, SCATTER_THEME) + "\n", encoding="utf-8"
    )
    bars = {label: along(predict(*example(label))) for label in JOBS}
    (folder / "step-parts.svg").write_text(
        bars_svg(bars, title="where the time of a step goes") + "\n", encoding="utf-8"
    )
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
