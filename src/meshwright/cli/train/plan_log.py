"""A plan beside the log of its run: the views of `compare PLAN LOG` and of `calibrate --from-log`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from meshwright import api
from meshwright.cli.frame.output import Result, interval_text, table_of
from meshwright.evidence.log_comparison import NUM_PARTS_TOLD, STEP_FACTOR, LogComparison
from meshwright.prediction.description import describe
from meshwright.reports.page.report import DataTable, Figure, Report
from meshwright.specs.error import SpecError
from meshwright.specs.units import format_bytes, format_flops_per_s, format_seconds

FAR = 5.0  # nothing takes so many times as long as predicted


def there(path: Path) -> Path:
    """A file that is there; a missing one is a name that was mistyped, not a broken trace."""
    if not path.is_file():
        raise SpecError(
            f"there is no file {path}",
            allowed="a trace (.npz) that `simulate -o` or `train -o` wrote; or a plan (.toml) and the log of its run",
        )
    return path


def calibrated_from_run(
    log: Path | None, trace: Path | None, plan: Path | None, cluster: str | None
) -> Result:
    """A profile of one factor, from a run of a plan."""
    if plan is None or (log is None) == (trace is None):
        raise SpecError(
            "a calibration from a run needs the run and its plan",
            allowed="--from-log LOG --plan PLAN, or --from-trace TRACE.npz --plan PLAN",
        )
    profile, found = api.calibrate_log(there(plan), there(log or trace or plan), cluster=cluster)
    data = {
        "device": profile.device,
        "constants": dict(profile.constants),
        "plan": str(plan),
        **found.to_dict(),
    }
    lines = [
        table_of(log_rows(found)),
        f"{profile.device}: a step takes {found.ratio:.3f} x the prediction; `compare` and `plan` take it as --profile FILE",
    ]
    return Result(
        data, lines, {".profile.json": profile.save}, explanation=[profile.source, *found.run.notes]
    )


def compared_log(found: LogComparison) -> Result:
    """The result of `compare PLAN LOG`."""
    view: list[Any] = [table_of(log_rows(found))]
    view += [Text(line, overflow="fold") for line in _verdict(found)]
    view += [table_of(part_rows(found))]
    beside = ", ".join(f"{meaning} {format_seconds(seconds)}" for meaning, seconds in found.beside.items())
    lines = [f"beside computes: {beside}"] if beside else []
    moved = ", ".join(name for name in found.movable if name != STEP_FACTOR)
    lines += [f"a calibration would move the constants {moved}"]
    lines += [
        f"`calibrate --from-log` writes one factor for the whole step, {STEP_FACTOR} = {found.factor * found.ratio:.3f}"
    ]
    view += [Text(line, overflow="fold") for line in lines]
    notes = [
        "ranges are the 80 % interval of the prediction, and the quartiles of the log around its median",
        f"left out as warm-up: {_values(found.run.num_warm_up)} of the log",
        *found.run.notes,
    ]
    return Result(found.to_dict(), view, explanation=notes, report=lambda: _page(found, notes))


def _values(number: int) -> str:
    return "1 value" if number == 1 else f"{number} values"


def _page(found: LogComparison, notes: list[str]) -> Report:
    """The page of `compare PLAN LOG`: the step beside the measured one, and what it is made of."""
    run, predicted, plan = found.run, found.predicted, found.plan
    subtitle = f"{plan.model.name} on {plan.cluster}: {describe(plan)}"
    ends = f"{format_seconds(predicted.low)} to {format_seconds(predicted.high)}, {predicted.basis}"
    verdict, *binding = _verdict(found)
    figures = [
        Figure("predicted step", format_seconds(predicted.value), ends),
        Figure(
            "measured step", format_seconds(run.median_s), f"{_values(len(run.step_s))} of a {run.source} log"
        ),
        Figure("measured / predicted", f"{found.ratio:.3f}", verdict.partition(", ")[2]),
    ]
    tables = [DataTable("Where the predicted step goes", part_rows(found), "; ".join(binding))]
    if found.beside:
        rows = [
            {"beside computes": what, "seconds": format_seconds(time)} for what, time in found.beside.items()
        ]
        tables.append(
            DataTable("Beside computes", rows, "What computes wait for of these is in the table above.")
        )
    return Report(
        "A plan beside the log of its run", subtitle, figures=figures, tables=tables, assumptions=notes
    )


def _verdict(found: LogComparison) -> list[str]:
    """The ratio, what binds the step, and what makes the log doubtful."""
    where = "inside the interval" if found.is_inside else "OUTSIDE the interval of the prediction"
    lines = [f"measured / predicted = {found.ratio:.3f}, {where}"]
    if found.binding:
        first = found.binding[0]
        share = first.seconds / found.predicted.value
        lines += [f"what binds the step: {first.kind.meaning}, {100 * share:.0f} % of it"]
    return [*lines, *(f"CAUTION: {doubt}" for doubt in found.doubts)]


def part_rows(found: LogComparison) -> list[dict[str, str]]:
    """What the predicted step is made of; outside its interval also what each part alone would have to be."""
    rows = []
    for part in found.binding[:NUM_PARTS_TOLD]:
        row = {
            "part of the prediction": part.kind.meaning,
            "seconds": format_seconds(part.seconds),
            "share": f"{100 * part.seconds / found.predicted.value:.1f} %",
        }
        if not found.is_inside:
            is_far = part.needed is None or part.needed > FAR
            row["alone explains it"] = "no" if is_far else f"at {part.needed:.2f} x"
        rows.append(row)
    return rows


def log_rows(found: LogComparison) -> list[dict[str, str]]:
    """Predicted, and measured with its spread; the peak where the log prints one."""
    run, predicted, peak = found.run, found.predicted, found.predicted_peak_bytes
    low, high = run.quartiles_s
    rows = [
        {
            "": "predicted", "step": format_seconds(predicted.value),
            "range": interval_text(format_seconds(predicted.low), format_seconds(predicted.high)),
            "of": predicted.basis + (f", profile x {found.factor:.3f}" if found.factor != 1.0 else ""),
        },
        {
            "": "measured", "step": format_seconds(run.median_s),
            "range": interval_text(format_seconds(low), format_seconds(high)),
            "of": f"{_values(len(run.step_s))} of a {run.source} log",
        },
    ]  # fmt: skip
    for row, used in zip(rows, found.used or ()):
        row["FLOP/s a device"] = format_flops_per_s(used.flops_per_s)
        if used.mfu is not None:
            row["MFU"] = f"{used.mfu:.1%}"
    if run.peak_bytes is not None and peak is not None:
        for row, num_bytes in zip(rows, (peak, run.peak_bytes), strict=True):
            row[f"peak {run.memory_kind}"] = format_bytes(num_bytes)
    return rows
