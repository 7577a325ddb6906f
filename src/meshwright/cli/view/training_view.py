"""What `meshwright train` gave, as figures, one sentence, a table, a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from meshwright import api
from meshwright.api import Training
from meshwright.cli.frame.output import DONE, INTERRUPTED, Result, table_of
from meshwright.cli.view.step_view import used_text
from meshwright.cli.view.trace_view import trace_forms
from meshwright.evidence.compare import Comparison
from meshwright.executor.checkpoint.folder import BEST, named_step, step_name
from meshwright.executor.job.launch import Launch
from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.prediction.description import describe
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.comparison import comparison_table
from meshwright.reports.page.report import Figure, Report
from meshwright.reports.trace.terminal import TimelineView
from meshwright.specs.units import format_seconds

NUM_STEPS_SHOWN = 8  # of those whose sequences were in groups


def training_result(done: Training, launch: Launch | None = None, checkpoints: Path | None = None) -> Result:
    """Losses, rates and predicted beside measured of a finished or interrupted training; of a launched one rank 0's.

    ``checkpoints``: the folder in which it was kept.
    """
    code = INTERRUPTED if done.result.interrupted else DONE
    if launch is not None and not done.iterations:
        return Result({}, exit_code=code, is_silent=True)  # another rank tells
    best = None if checkpoints is None else named_step(checkpoints, BEST)
    data = {**training_figures(done), "best_step": best}
    view: list[Any] = [Text(describe(done.plan), style="bold"), training_sentence(done)]
    view.append(_saved_sentence(done, checkpoints))
    view += grouped_steps(done)
    if done.trace is None or not done.trace.num_iterations:
        return Result(data, view, exit_code=code)
    # stages of modules that exchange inside are other programs than the chains that stand for them
    comparison = api.compare(done.predicted, done.trace, allow_different=True)
    view += comparison_view(comparison, done.predicted, done.trace)
    return Result(
        {**data, "comparison": comparison.to_dict()}, view, trace_forms(done.trace),
        lambda: training_page(done, comparison), list(done.predicted.metadata.get("assumptions", ())), code,
    )  # fmt: skip


def training_figures(done: Training) -> dict[str, Any]:
    """What was reached, for --json."""
    return {
        "plan": done.predicted.metadata.get("label", ""),
        "num_iterations": len(done.iterations),
        "interrupted": done.result.interrupted,
        "first_step": done.first_step,
        "losses": [iteration.loss for iteration in done.iterations],
        "held_out_losses": [{"step": step, "loss": loss} for step, loss in done.held_out_losses.items()],
        "tokens_per_s": done.tokens_per_s,
        "grouped_steps": [one.to_dict() for one in done.metrics if one.groups],
        **done.used.to_dict(),
        "trained_s": sum(iteration.seconds for iteration in done.iterations),
        "digest": done.predicted.digest,
    }


def grouped_steps(done: Training) -> list[Any]:
    """The last steps whose sequences were in groups, each with what it was predicted to take; nothing of others."""
    rows = [
        {
            "step": str(one.number + 1), "tokens": f"{one.tokens:,}", "groups (number x ranks)": one.groups,
            "predicted": format_seconds(one.predicted_s), "measured": format_seconds(one.seconds),
        }
        for one in done.metrics[-NUM_STEPS_SHOWN:] if one.groups
    ]  # fmt: skip
    return [table_of(rows)] if rows else []


def training_sentence(done: Training) -> str:
    """One line for people."""
    if not done.iterations:
        return "interrupted before the first step was done"
    first, last = done.iterations[0], done.iterations[-1]
    head = "interrupted after" if done.result.interrupted else "trained"
    since = f" from step {done.first_step} on" if done.first_step else ""
    held_out = list(done.held_out_losses.items())[-1:]
    looked = "".join(f", held out {loss:.3f} at step {step}" for step, loss in held_out)
    number = len(done.iterations)
    return (
        f"{head} {number} step{'s' if number > 1 else ''}{since}, {done.tokens_per_s:,.0f} tokens/s, "
        f"{used_text(done.used)}, loss {first.loss:.3f} -> {last.loss:.3f} nats a token{looked}"
    )


def _saved_sentence(done: Training, folder: Path | None) -> str:
    """Where it is, or that nothing of this run is."""
    if folder is None:
        return "nothing is kept of it; --checkpoints FOLDER saves what was trained"

    made = folder / step_name(done.first_step + len(done.iterations))
    if not done.iterations or not made.is_dir():
        return f"its end is not saved; --resume goes on from the newest checkpoint in {folder}"
    best = named_step(folder, BEST)
    told = "" if best is None else f"; the best on what is held out is {folder / BEST}, step {best}"
    return f"saved in {made}; --resume goes on from there{told}"


def comparison_view(comparison: Comparison, predicted: Trace, measured: Trace) -> list[Any]:
    """The table, and both timelines on one scale, of the last iteration."""
    beyond = comparison.beyond_interval
    return [
        comparison_table(comparison.rows(), " beside ".join(comparison.labels), comparison.labels),
        *([Text(beyond, style="yellow", overflow="fold")] if beyond else []),
        TimelineView(dict(zip(comparison.labels, (predicted, measured), strict=True))),
    ]


def training_page(
    done: Training, comparison: Comparison, title: str = "meshwright train", **parts: Any
) -> Any:
    """The page: both timelines, memory, loss, the comparison; `parts` are further fields of a Report."""
    trace = done.trace
    assert trace is not None, "a page is made of a training that left a trace"
    step = comparison.step
    ratio = (
        ""
        if step.predicted in (None, 0) or step.measured is None
        else f"{step.measured / step.predicted:.2f}x"
    )
    figures = [
        Figure("step", quantity(step.measured, "s"), f"predicted {quantity(step.predicted, 's')}, {ratio}"),
        Figure("tokens/s", f"{done.tokens_per_s:,.0f}", used_text(done.used)),
        Figure(
            "bubble",
            quantity(comparison.bubble.measured, "share"),
            f"predicted {quantity(comparison.bubble.predicted, 'share')}",
        ),
        Figure("loss", f"{done.iterations[-1].loss:.3f} nats", f"after {len(done.iterations)} steps"),
    ]
    fields: dict[str, Any] = {
        "predicted": done.predicted,
        "measured": trace,
        "subtitle": f"{done.plan.model.name} on {done.plan.num_devices} processes: {describe(done.plan)}",
        "figures": figures,
        "plan": [_plan_row(done)],
        "measured_peak_bytes": {c.device: metrics.peak_bytes(trace, c.device) for c in trace.memory},
        "loss": [(done.first_step + iteration.number + 1, iteration.loss) for iteration in done.iterations],
        "comparison": comparison.rows(),
        "assumptions": list(done.predicted.metadata.get("assumptions", ())),
    }
    return Report(title, **{**fields, **parts})


def _plan_row(done: Training) -> dict[str, Any]:
    plan = done.plan
    return {
        "model": f"{plan.model.num_parameters:,} parameters, {plan.model.num_layers} layers",
        "mesh": plan.product_text(),
        "schedule": plan.schedule,
        "microbatch": plan.microbatch_size,
        "batch": f"{plan.workload.global_batch} x {plan.workload.sequence_length} tokens",
        "recompute": plan.recompute,
        "layers per stage": ", ".join(map(str, plan.layers_per_stage)),
    }
