"""`meshwright bench serve`: load on a server that speaks OpenAI's API, and how long its answers took."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from meshwright import api
from meshwright.api.servings.loading_server import AgainstOptions, LoadOptions, simulated_load
from meshwright.cli.frame.output import FAILED, Output, Result, table_of
from meshwright.cli.frame.progress import live_line
from meshwright.cli.view.load_comparison_view import load_comparison_rows, load_comparison_view
from meshwright.reports.page.report import DataTable, Figure, Report
from meshwright.serving.load.load_record import LoadFigures
from meshwright.specs.units import format_seconds

LATENCIES = {"ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole"}


def bench_serve(
    out: Output,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="http://HOST:PORT of the server.")],
    requests: Annotated[
        str,
        typer.Option(
            "--requests",
            metavar="FILE",
            help="Recorded requests: .csv or .jsonl, also .gz; or drawn ones: 'lengths(prompt=500,output=200,num=100)'.",
        ),
    ],
    options: LoadOptions,
    against: AgainstOptions,
) -> Result:
    """Load a server that speaks OpenAI's API (ours, vLLM, SGLang), and time what it answers.

    Latencies count from when a request was due; a request that failed is in every percentile, as one that never came.
    """
    with live_line(out) as line:
        planned = simulated_load(url, requests, against, options) if against.cluster else None
        found = api.bench_serve(
            url,
            requests,
            options=options,
            seed=out.seed,
            said=lambda done, of: line.share("answered", done / of),
        )
    code = FAILED if not found.num_finished else 0
    data, view, explanation = asdict(found), _view(found), _explained(found)
    tables = [DataTable("How long requests took", _latencies(found))]
    if planned is not None:
        beside = api.compare_load(planned, found)
        data |= {"simulated": planned.to_dict(), "comparison": beside.to_dict()}
        view += load_comparison_view(beside)
        tables.append(
            DataTable("Simulated and measured", load_comparison_rows(beside), " ".join(beside.meaning))
        )
        explanation.append(
            "the simulation has the requests at the times at which they were due, and no network"
        )
    if found.errors:
        failures = [{"requests": num, "why": reason} for reason, num in found.errors.items()]
        tables.append(DataTable("What failed", failures))
    page = partial(Report, f"Load on {url}", requests, _figures(found), tables, assumptions=explanation)
    return Result(data, view, report=page, exit_code=code, explanation=explanation)


def _figures(found: LoadFigures) -> list[Figure]:
    """What a page begins with."""
    return [
        Figure("answered", f"{found.num_finished:,}", f"of {found.num_requests:,}, in {format_seconds(found.duration_s)}"),
        Figure("good requests", f"{found.goodput_per_s:,.2f}/s", f"{found.output_tokens_per_s:,.1f} tokens/s out"),
        Figure("first token", _time(found.ttft_s["p50"]), f"{_time(found.ttft_s['p99'])} for 99 of 100"),
        Figure("each other token", _time(found.tpot_s["p50"]), "in the median"),
    ]  # fmt: skip


def _latencies(found: LoadFigures) -> list[dict[str, str]]:
    return [
        {"time": name, **{key: _time(value) for key, value in getattr(found, field).items()}}
        for field, name in LATENCIES.items()
    ]


def _view(found: LoadFigures) -> list[Any]:
    lines = [
        f"{found.num_finished:,} of {found.num_requests:,} requests answered in {format_seconds(found.duration_s)}",
        f"{found.output_tokens_per_s:,.1f} tokens/s out, {found.input_tokens_per_s:,.1f} tokens/s in, "
        f"{found.goodput_per_s:,.2f} good requests/s",
    ]
    failed = [
        f"{num:,} failed: {reason}" + (", and such like" if num > 1 else "")
        for reason, num in found.errors.items()
    ]
    return [*lines, table_of(_latencies(found)), *failed]


def _time(value: float) -> str:
    return "-" if not value < float("inf") else format_seconds(value)


def _explained(found: LoadFigures) -> list[str]:
    return [
        "latencies count from when a request was due, whenever it was sent",
        f"requests were sent {_time(found.send_lag_s['p99'])} late at most, of 99 in 100",
        "a percentile without a number: so many requests did not get there",
    ]
