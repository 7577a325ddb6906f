"""A plan beside the log of its run: the views of `compare PLAN LOG` and of `calibrate --from-log`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.output import REFUSED, Result, interval_text, table_of

if TYPE_CHECKING:
    from meshwright.evidence.log_comparison import LogComparison

NEVER_SEEN = "never seen"


def calibrated_from_run(
    log: Path | None, trace: Path | None, plan: Path | None, cluster: str | None
) -> Result:
    """A profile of one factor, from a run of a plan."""
    from meshwright import api
    from meshwright.cli.training import there
    from meshwright.specs.error import SpecError

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
        f"{profile.device}: a step takes {found.ratio:.3f} times what is predicted; give it to compare with --profile",
    ]
    return Result(
        data, lines, {".profile.json": profile.save}, explanation=[profile.source, *found.run.notes]
    )


def compared_log(found: LogComparison, extrapolates: bool) -> Result:
    """The result of `compare PLAN LOG`. Refused where the prediction rests on nothing and was not asked for."""
    from rich.text import Text

    if found.predicted.basis == NEVER_SEEN and not extrapolates:
        text = "this chip or precision was never seen: no prediction; --extrapolate gives one all the same"
        return Result({"refused": text, "basis": NEVER_SEEN}, [Text(text)], exit_code=REFUSED)
    verdict = "inside" if found.is_inside else "outside"
    lines = [f"measured / predicted {found.ratio:.3f}, {verdict} the interval of the prediction"]
    lines += ["", "the difference may be:"] if not found.is_inside else ["", "parts of the prediction:"]
    lines += [f"  {line}" for line in found.differences()]
    lines += ["", "a calibration would move:", *(f"  {line}" for line in found.movable)]
    notes = [f"{found.run.num_warm_up} values of the log were left out as warm-up", *found.run.notes]
    return Result(
        found.to_dict(),
        [table_of(log_rows(found)), *(Text(line, overflow="fold") for line in lines)],
        explanation=notes,
    )


def log_rows(found: LogComparison) -> list[dict[str, str]]:
    """Predicted, and measured with its spread."""
    from meshwright.specs.units import format_bytes, format_seconds

    low, high = found.run.quartiles_s
    peak = found.run.peak_bytes
    memory = "" if peak is None else f", peak {format_bytes(peak)} {found.run.memory_kind}"
    rows = [
        {
            "": "predicted", "step": format_seconds(found.predicted.value),
            "range": interval_text(format_seconds(found.predicted.low), format_seconds(found.predicted.high)),
            "of": f"{found.predicted.basis}" + (f", profile x {found.factor:.3f}" if found.factor != 1.0 else ""),
        },
        {
            "": "measured", "step": format_seconds(found.run.median_s),
            "range": interval_text(format_seconds(low), format_seconds(high)),
            "of": f"{len(found.run.step_s)} values of a {found.run.source} log{memory}",
        },
    ]  # fmt: skip
    return rows
