"""A plan beside the log of its run: the views of `compare PLAN LOG` and of `calibrate --from-log`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from meshwright import api
from meshwright.api.exchange.learning import LearnedStack
from meshwright.cli.frame.output import Result, table_of
from meshwright.evidence.log_comparison import NUM_PARTS_TOLD, LogComparison
from meshwright.prediction.description import describe
from meshwright.prediction.own_runs import finding
from meshwright.reports.page.report import DataTable, Figure, Report
from meshwright.specs.error import SpecError
from meshwright.specs.units import format_bytes, format_flops_per_s, format_seconds, interval_text

NUM_RUNS_SHOWN = 12
FAR = 5.0  # nothing takes so many times as long as predicted


def there(path: Path) -> Path:
    """A file that is there; a missing one is a name that was mistyped, not a broken trace."""
    if not path.is_file():
        raise SpecError(
            f"there is no file {path}",
            allowed="a trace (.npz) that `simulate -o` or `train -o` wrote; or a plan (.toml) and the log of its run",
        )
    return path


def calibrated_from_runs(logs: Sequence[Path], plans: Sequence[Path], cluster: str | None) -> Result:
    """A profile of runs: logs and traces with their plans, or tables."""
    tables = [there(log) for log in logs if log.suffix == ".csv"]
    others = [there(log) for log in logs if log.suffix != ".csv"]
    if not logs or len(plans) not in (len(others), 1) or bool(plans) != bool(others):
        raise SpecError(
            f"a calibration of {len(others)} logs with {len(plans)} plans",
            allowed="--from-log LOG --plan PLAN, each as often, or one plan of all logs; or --from-log TABLE.csv alone",
        )
    each = [there(plan) for plan in plans] * (len(others) if len(plans) == 1 else 1)
    found = api.calibrate_runs(list(zip(each, others)), tables, cluster=cluster)
    return learned(found)


def learned(found: LearnedStack) -> Result:
    """What runs taught: the runs, factors before and after, how they are read, and what would teach more."""
    data = found.to_dict()
    lines: list[Any] = [
        table_of(log_rows(each)) for each in found.comparisons[:1] if len(found.profile.runs) == 1
    ]
    if not lines:
        lines.append(table_of([_run_row(run) for run in data["runs"]][:NUM_RUNS_SHOWN]))
    lines += [table_of([_factor_row(each) for each in data["factors"]])]
    likely = sorted(data["readings"].items(), key=lambda pair: -pair[1])
    said = [
        f"{data['effective_runs']:.1f} of {len(data['runs'])} runs count; "
        + ", ".join(f"{name}: {chance:.0%}" for name, chance in likely),
        *(
            f"OUTLIER: {run['name']}, {run['ratio']:.2f} x the prediction"
            for run in data["runs"]
            if run["is_outlier"]
        ),
        *(f"left out: {line}" for line in data["left_out"]),
        *finding.host_lines(found.posterior),
        *data["advice"],
        f"{found.profile.device}: `plan`, `simulate` and `compare` take it as --profile FILE",
    ]
    notes = [
        "a factor is of what is expected of a stack nobody knows, before and after these runs, with a standard deviation",
        "a run counts less the further it is from what the others say, by Student's distribution",
        *(note for each in found.comparisons for note in each.run.notes),
    ]
    lines += [Text(line, overflow="fold") for line in said]
    return Result(data, lines, {".profile.json": found.profile.save}, explanation=notes)


def _run_row(run: dict[str, Any]) -> dict[str, str]:
    return {
        "run": run["name"],
        "measured": format_seconds(run["measured_s"]),
        "predicted": format_seconds(run["predicted_s"]),
        "ratio": f"{run['ratio']:.3f}",
        "counts": f"{run['weight']:.2f}",
    }


def _factor_row(each: dict[str, Any]) -> dict[str, str]:
    return {
        "kind of work": each["kind"],
        "before": f"1.00 +- {each['prior_spread']:.2f}",
        "after": f"{each['factor']:.2f} +- {each['factor'] * each['spread']:.2f}",
        "learned": f"{each['learned']:.0%}",
    }


def compared_log(found: LogComparison) -> Result:
    """The result of `compare PLAN LOG`."""
    view: list[Any] = [table_of(log_rows(found))]
    view += [Text(line, overflow="fold") for line in _verdict(found)]
    view += [table_of(part_rows(found))]
    beside = ", ".join(f"{meaning} {format_seconds(seconds)}" for meaning, seconds in found.beside.items())
    lines = [f"beside computes: {beside}"] if beside else []
    lines += [f"a fit on this run would move the constants {', '.join(found.movable)}"]
    lines += ["`calibrate --from-log` learns from this run what is to be expected of the next plans"]
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
