"""How long the sequences of a data set are, as `show` draws it: shares of sequences and of tokens by powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from meshwright.cli.frame.output import Result, table_of
from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import PAGE
from meshwright.reports.page.report import DataTable, Figure, Picture, Report
from meshwright.specs.sequence.length_distribution import LengthBin, LengthDistribution

WIDTH, HEIGHT = 1080, 300  # pixels, as wide as a page
BAR_CELLS = 24  # characters of a whole bar
EIGHTHS = " ▏▎▍▌▋▊▉"
UNITS = ("", "K", "M", "G")
UNIT = 1024


def length_result(found: LengthDistribution, context_length: int | None = None) -> Result:
    """The distribution, its documents cut at a context length where one is said."""
    shown = found if context_length is None else found.cut(context_length)
    bins, kept = shown.histogram, shown.kept()
    data = {
        "kind": "lengths",
        "name": shown.name,
        "context_length": context_length,
        **shown.facts,
        "bins": [one._asdict() for one in bins],
        "kept": [list(pair) for pair in kept.pairs],
        "kept_mean_error": kept.mean_error,
        "kept_square_error": kept.square_error,
    }
    explained = (
        f"a plan's file keeps {len(kept.pairs)} lengths, whose mean is within {abs(kept.mean_error):.2%} and whose mean "
        f"square is within {abs(kept.square_error):.2%}",
        "cut at a context length a document is several sequences, the last with what is left of it",
    )
    head = Text(_head(shown, context_length))
    return Result(
        data,
        [head, table_of(_rows(bins))],
        report=lambda: _report(shown, context_length),
        explanation=explained,
    )


def _head(found: LengthDistribution, context_length: int | None) -> str:
    cut = "" if context_length is None else f", cut at {context_length:,} tokens"
    return (
        f"{found.name}: {found.num_sequences:,} sequences{cut}, {found.num_tokens:,} tokens; "
        f"mean {found.mean:,.0f}, median {found.quantile(0.5):,}, p99 {found.quantile(0.99):,}, longest {found.longest:,}"
    )


def _rows(bins: Sequence[LengthBin]) -> list[dict[str, Any]]:
    return [
        {
            "tokens": f"{short(one.least)} to {short(one.end)}", "sequences": f"{one.number:,}",
            "of sequences": f"{one.share:.2%}", "": bar(one.share),
            "of tokens": f"{one.token_share:.2%}", " ": bar(one.token_share),
        }
        for one in bins
    ]  # fmt: skip


def bar(share: float) -> str:
    """A share of one as a row of blocks, in eighths of a character."""
    whole, part = divmod(round(share * BAR_CELLS * len(EIGHTHS)), len(EIGHTHS))
    return ("█" * whole + EIGHTHS[part]).rstrip()


def short(tokens: int) -> str:
    """Tokens in K of 1024, where they are so many: 512, 4K, 1M."""
    power = 0
    while tokens >= UNIT and tokens % UNIT == 0 and power + 1 < len(UNITS):
        tokens, power = tokens // UNIT, power + 1
    return f"{tokens}{UNITS[power]}"


def _report(found: LengthDistribution, context_length: int | None) -> Report:
    """The page of --report."""
    bins = found.histogram
    first, ticks = bins[0].least.bit_length() - 1, [one.least for one in bins] + [bins[-1].end]
    edges = [float(first + number) for number in range(len(ticks))]
    series = [
        Series(name, edges, [*values, values[-1]], "steps", place=place)
        for place, (name, values) in enumerate(
            {
                "of sequences": [one.share for one in bins],
                "of tokens": [one.token_share for one in bins],
            }.items()
        )
    ]
    drawn = Chart(
        series, "", "tokens of a sequence", "share", x_ticks=list(zip(edges, map(short, ticks), strict=True)),
        y_from_zero=True, width=WIDTH, height=HEIGHT,
    )  # fmt: skip
    note = "Bins are the powers of two. Where the tokens stand right of the sequences, few long ones hold most of the work."
    figures = [
        Figure("sequences", f"{found.num_sequences:,}", f"{found.num_tokens:,} tokens"),
        Figure("mean", f"{found.mean:,.0f}", f"median {found.quantile(0.5):,}"),
        Figure("p99", f"{found.quantile(0.99):,}", f"longest {found.longest:,}"),
    ]
    return Report(
        f"Lengths of {found.name}",
        _head(found, context_length),
        figures,
        leading=[
            Picture("How long sequences are", chart_svg(drawn, PAGE, standalone=False), note),
            DataTable("Bins", [one._asdict() for one in bins]),
        ],
    )
