"""Writes the tables and the figures of docs/serving-beside-its-peers.md from what `serve_cpu.py` printed.

    python benchmarks/serve_page.py [SAVED.json ...] --docs docs

SAVED are objects of the program, one a model; without them those that are kept in benchmarks/measured. What stands between
two marks, `<!-- NAME -->` and `<!-- end NAME -->`, is written anew in the page; figures go to docs/figures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chapter.term import GREY, THEME, WIDE, rewrite

from meshwright.reports import Chart, Series, chart_svg

KEPT = Path(__file__).with_name("measured")
PAGE = "serving-beside-its-peers.md"
PEERS = {
    "genai": "OpenVINO GenAI", "ctranslate2": "CTranslate2", "transformers": "transformers", "vllm": "vLLM",
}  # fmt: skip
PHASES = ("prefill", "decode")
RATIOS = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)  # lines across a figure
ASIDE = 0.12  # of the room of a point, between engines


def main() -> None:
    """The page's blocks and figures, for every model that was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("saved", type=Path, nargs="*")
    parser.add_argument(
        "--docs", type=Path, required=True, help="the folder of the page; it is changed in place"
    )
    chosen = parser.parse_args()
    for found in map(read, chosen.saved or kept()):
        rewrite(chosen.docs / PAGE, blocks(found))
        for name, svg in figures(found).items():
            (chosen.docs / "figures" / name).write_text(svg, encoding="utf-8")


def kept() -> list[Path]:
    """The files of results that are kept here."""
    return sorted(KEPT.glob("serve_cpu-*.json"))


def read(file: Path) -> dict[str, Any]:
    """What the program printed."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """By the name of its marks: ratios to every peer, and our own rates."""
    results, model = found["results"], found["model"]
    return {f"ratios {model}": "\n".join(_ratios(results)), f"rates {model}": "\n".join(_rates(results))}


def figures(found: Mapping[str, Any]) -> dict[str, str]:
    """By the name of its file: for each phase medians and quartiles of all ratios."""
    return {f"serving-{phase}-{found['model']}.svg": _figure(found["results"], phase) for phase in PHASES}


def _ratios(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| weights | prompts x tokens + new ones | peer | prefill, ours / theirs | decode, ours / theirs | equal tokens |"
    yield "|---|---|---|---|---|---:|"
    for line in results:
        if line["engine"] in PEERS:
            cells = [_told(line[f"{phase}_ratio"]) for phase in PHASES]
            row = [line["format"], line["point"], PEERS[line["engine"]], *cells, line["equal_tokens"]]
            yield f"| {' | '.join(row)} |"


def _told(quartiles: Sequence[float]) -> str:
    """Median and quartiles, with who is faster where the quartiles do not include one."""
    low, median, high = quartiles
    text = f"{median:.2f} ({low:.2f} to {high:.2f})"
    return f"**{text}**" if high < 1 else f"{text}, alike" if low <= 1 else text


def _rates(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| weights | prompts x tokens + new ones | prefill, tokens/s | decode, tokens/s | our loop, us a step |"
    yield "|---|---|---:|---:|---:|"
    for line in results:
        if line["engine"] == "ours":
            numbers = [line[f"{phase}_tokens_per_s"][1] for phase in PHASES] + [line["host_us"][1]]
            yield f"| {line['format']} | {line['point']} | {' | '.join(f'{number:,.0f}' for number in numbers)} |"


def _figure(results: Sequence[Mapping[str, Any]], phase: str) -> str:
    """Ratios on an axis of doublings; a point is the median, the line through it the quartiles."""
    places = list(dict.fromkeys((line["format"], line["point"]) for line in results))
    series = []
    for number, (peer, name) in enumerate(PEERS.items()):
        lines = [line for line in results if line["engine"] == peer]
        at = [
            places.index((line["format"], line["point"])) + ASIDE * (number - (len(PEERS) - 1) / 2)
            for line in lines
        ]
        ratios = [[math.log2(value) for value in line[f"{phase}_ratio"]] for line in lines]
        if lines:
            series.append(Series(name, at, [median for _, median, _ in ratios], "points", place=number))
        series += [
            Series("", [x, x], [low, high], place=number)
            for x, (low, _, high) in zip(at, ratios, strict=True)
        ]
    ends = -0.5, len(places) - 0.5
    seen = [1.0, *(value for line in results for value in line.get(f"{phase}_ratio", ()))]
    least, most = 0.95 * min(seen), 1.05 * max(seen)
    chart = Chart(
        [Series("", ends, [0.0, 0.0], place=GREY, dashed=True), *series],
        title=f"{phase}: our tokens a second over theirs",
        x_ticks=[(place, f"{weights} x{point.partition('x')[0]}") for place, (weights, point) in enumerate(places)],
        y_ticks=[(math.log2(ratio), f"{ratio:g}") for ratio in RATIOS if least <= ratio <= most],
        x_range=ends, y_range=(math.log2(least), math.log2(most)), width=WIDE,
    )  # fmt: skip
    return chart_svg(chart, THEME)


if __name__ == "__main__":
    main()
