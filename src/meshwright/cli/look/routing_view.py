"""Where tokens went, as `show` draws it: load by layer and expert, and what a layer's experts say about the next one's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from meshwright.cli.frame.output import Result, table_of
from meshwright.reports.chart.drawing import PAGE, PAPER, Theme
from meshwright.reports.chart.heat_map import heat_map_svg
from meshwright.reports.page.report import DataTable, Figure, Picture, Report
from meshwright.specs.routing.affinity import LayerAffinity, affinities
from meshwright.specs.routing.routing_file import FORMS, save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace

ROUTING_FORMS = (*FORMS, ".svg")  # of -o
SHADES = " ░▒▓█"  # a load of nothing, up to that of twice the mean and more
HOTTEST = 2.0  # of the mean: the load that has the darkest shade
MOST_CELLS = 128  # columns of a terminal that experts take; more of them are drawn several to a column

Loads = NDArray[np.float64]


def routing_result(trace: RoutingTrace) -> Result:
    """Facts, a heat map of loads, and a table of affinities."""
    loads, found = relative_loads(trace), affinities(trace)
    data = {
        "kind": "routing",
        "origin": trace.origin,
        "source": trace.source,
        "num_tokens": trace.num_tokens,
        "num_layers": trace.num_layers,
        "num_experts": trace.num_experts,
        "num_experts_per_token": trace.num_experts_per_token,
        "layers": list(trace.layers),
        "steps": list(trace.steps),
        "loads": trace.counts.tolist(),
        "largest_load": float(loads.max()),
        "affinities": [each._asdict() for each in found],
    }
    explained = (
        "loads are shares of a layer's rows over those of an even split; the darkest shade is twice the mean",
        "affinity is the mutual information of a token's experts in two neighbouring layers, in bits, less what so few "
        "tokens show by chance; `followed` the share of rows that go where most of their expert's go",
    )
    view = [
        Text(_head(trace)),
        Text(heat_text(trace.layers, loads)),
        table_of(_rows(loads, found, trace.layers)),
    ]
    return Result(data, view, _forms(trace, loads), lambda: _report(trace, loads, found), explained)


def relative_loads(trace: RoutingTrace) -> Loads:
    """Rows of every expert over the mean of its layer, [layers, experts]."""
    loads: Loads = trace.counts / trace.counts.mean(1, keepdims=True)
    return loads


def heat_text(layers: tuple[int, ...], loads: Loads) -> str:
    """A line for each layer, a character for each expert (or for several neighbours their mean)."""
    each = -(-loads.shape[1] // MOST_CELLS)
    lines = []
    for layer, row in zip(layers, loads, strict=True):
        cells = [row[begin : begin + each].mean() for begin in range(0, len(row), each)]
        shades = [min(len(SHADES) - 1, round(cell / HOTTEST * (len(SHADES) - 1))) for cell in cells]
        lines.append(f"layer {layer:>3} |{''.join(SHADES[shade] for shade in shades)}|")
    return "\n".join(lines)


def _head(trace: RoutingTrace) -> str:
    return (
        f"{trace.source or 'routing'} ({trace.origin}): {trace.num_tokens:,} tokens, {trace.num_layers} layers of "
        f"{trace.num_experts} experts, {trace.num_experts_per_token} a token"
    )


def _rows(loads: Loads, found: list[LayerAffinity], layers: tuple[int, ...]) -> list[dict[str, Any]]:
    by_layer = {each.layer: each for each in found}
    rows = []
    for place, layer in enumerate(layers):
        row = {
            "layer": str(layer), "busiest expert": str(int(loads[place].argmax())), "of mean": f"{loads[place].max():.2f}",
            "without a token": str(int((loads[place] == 0).sum())),
        }  # fmt: skip
        if (next_one := by_layer.get(layer)) is not None:
            row |= {
                "affinity (bits)": f"{next_one.bits:.3f}", "followed": f"{next_one.followed:.1%}",
                "by chance": f"{next_one.by_chance:.1%}",
            }  # fmt: skip
        else:
            row |= {"affinity (bits)": "", "followed": "", "by chance": ""}
        rows.append(row)
    return rows


def _drawn(trace: RoutingTrace, loads: Loads, theme: Theme, standalone: bool) -> str:
    names = [f"layer {layer}" for layer in trace.layers]
    title = f"Load by layer and expert, {trace.origin}"
    return heat_map_svg(loads.tolist(), names, "expert", HOTTEST, " of the mean", theme, title, standalone)


def _forms(trace: RoutingTrace, loads: Loads) -> dict[str, Callable[[Path], Any]]:
    drawn = {
        ".svg": lambda path: path.write_text(_drawn(trace, loads, PAPER, True), encoding="utf-8"),
    }
    return drawn | {form: lambda path: save_routing(trace, path) for form in FORMS}


def _report(trace: RoutingTrace, loads: Loads, found: list[LayerAffinity]) -> Report:
    """The page of --report: loads, and of every two neighbouring layers the shares of what follows."""
    note = (
        "A column is an expert, its shade its rows over the mean of its layer, the darkest at twice the mean."
    )
    leading: list[DataTable | Picture] = [
        Picture("Load by layer and expert", _drawn(trace, loads, PAGE, False), note),
        DataTable("Layers", _rows(loads, found, trace.layers)),
    ]
    for affinity, counts in zip(found, trace.transitions, strict=True):
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        names = [f"expert {number}" for number in range(trace.num_experts)]
        title = f"From layer {affinity.layer} to the next: {affinity.bits:.3f} bits"
        top = float(shares.max())
        picture = heat_map_svg(shares.tolist(), names, "next expert", top, "", PAGE, title, standalone=False)
        said = f"Shares of a row's tokens that go on to each expert; the darkest is {top:.0%}."
        leading.append(Picture(title, picture, said))
    figures = [
        Figure("tokens", f"{trace.num_tokens:,}", trace.origin),
        Figure("busiest expert", f"{loads.max():.2f} of the mean", f"of {trace.num_experts}"),
        Figure(
            "affinity",
            f"{np.mean([each.bits for each in found] or [0]):.3f} bits",
            "mean of neighbouring layers",
        ),
    ]
    return Report("Where tokens went", _head(trace), figures, leading=leading)
