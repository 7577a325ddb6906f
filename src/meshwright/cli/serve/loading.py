"""`meshwright bench serve`: load on a server that speaks OpenAI's API, and how long its answers took."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright import api
from meshwright.api.servings.loading_server import AgainstOptions, LoadOptions, simulated_load
from meshwright.cli.frame.output import FAILED, Output, Result, table_of
from meshwright.cli.frame.progress import live_line
from meshwright.cli.view.load_comparison_view import load_comparison_view
from meshwright.serving.load.load_record import LoadFigures
from meshwright.specs.units import format_seconds

LATENCIES = {"ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole"}


def bench_serve(
    out: Output,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="http://HOST:PORT of the server.")],
    requests: Annotated[
        Path, typer.Option("--requests", metavar="FILE", help="Recorded requests: .csv or .jsonl, also .gz.")
    ],
    options: LoadOptions,
    against: AgainstOptions,
) -> Result:
    """Load a server that speaks OpenAI's API (ours, vLLM, SGLang), and time what it answers.

    Latencies count from when a request was due; a request that failed is in every percentile, as one that never came.
    """
    with live_line(out) as line:
        found = api.bench_serve(
            url,
            requests,
            options=options,
            seed=out.seed,
            said=lambda done, of: line.share("answered", done / of),
        )
    code = FAILED if not found.num_finished else 0
    data, view, explanation = asdict(found), _view(found), _explained(found)
    if against.cluster:
        planned = simulated_load(requests, against, options)
        beside = api.compare_load(planned, found)
        data |= {"simulated": planned.to_dict(), "comparison": beside.to_dict()}
        view += load_comparison_view(beside)
        explanation.append(
            "the simulation has the requests at the times at which they were due, and no network"
        )
    return Result(data, view, exit_code=code, explanation=explanation)


def _view(found: LoadFigures) -> list[Any]:
    rows = [
        {"time": name, **{key: _time(value) for key, value in getattr(found, field).items()}}
        for field, name in LATENCIES.items()
    ]
    lines = [
        f"{found.num_finished:,} of {found.num_requests:,} requests answered in {format_seconds(found.duration_s)}",
        f"{found.output_tokens_per_s:,.1f} tokens/s out, {found.input_tokens_per_s:,.1f} tokens/s in, "
        f"{found.goodput_per_s:,.2f} good requests/s",
    ]
    failed = [f"{num} failed: {reason}" for reason, num in found.errors.items()]
    return [*lines, table_of(rows), *failed]


def _time(value: float) -> str:
    return "-" if not value < float("inf") else format_seconds(value)


def _explained(found: LoadFigures) -> list[str]:
    return [
        "latencies count from when a request was due, whenever it was sent",
        f"requests were sent {_time(found.send_lag_s['p99'])} late at most, of 99 in 100",
        "a percentile without a number: so many requests did not get there",
    ]
