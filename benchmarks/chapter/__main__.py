"""Writes the chapter on prediction: its tables, its pictures and the worst rows, from tables of measured runs.

    python -m benchmarks.chapter TABLE.csv ... [--docs docs]

Every core row is predicted by what the package knows without its source, as `meshwright validate unseen` does. What stands
between two marks, `<!-- NAME -->` and `<!-- end NAME -->`, is written anew in both pages; pictures go to docs/figures;
sentences about rows are in `reasons.py`. Without --docs the blocks are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from meshwright.evidence.tables.score import Scored, newest_releases
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.evidence.unseen.left_out import left_out

from . import chances, host, network, own_rows, steps, unexplained
from .step_tables import step_blocks, step_parts_svg
from .term import Term, rewrite
from .worst import chosen, passed_over, worst_table

PAGES = ("how-a-step-is-predicted.md", "prediction-in-pictures.md")
TERMS: Sequence[Callable[[Sequence[Scored]], Term | None]] = (
    host.host_floor, steps.captured, steps.overlapped, steps.dispatched, network.efa, network.slowest, chances.parts,
    chances.coverage, chances.peaks, chances.reliability_diagram, own_rows.own_rows, steps.borrowed, unexplained.blocks,
    unexplained.exchanges,
)  # fmt: skip


def main() -> int:
    """Blocks on stdout or in the pages; 0, also where a term has no rows in these tables, which is said."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chapter", description=__doc__)
    parser.add_argument(
        "tables", type=Path, nargs="+", help="CSV files, as `meshwright validate unseen` reads them"
    )
    parser.add_argument("--docs", type=Path, help="the folder of the pages; they are changed in place")
    options = parser.parse_args()
    began = time.perf_counter(), time.process_time()
    scored = left_out(newest_releases(row for row in read_rows(options.tables).rows if row.is_core))
    terms = drawn(scored)
    blocks = step_blocks() | {term.name: term.block for term in terms} | worst_blocks(scored)
    if options.docs is None:
        for name, text in blocks.items():
            print(f"## {name}\n", text, "", sep="\n")
    else:
        write(options.docs, terms, blocks)
    wall_s, own_s = time.perf_counter() - began[0], time.process_time() - began[1]
    print(
        f"{len(scored)} rows, {len(terms)} pictures: {wall_s:.0f} s, {own_s:.0f} s of one core",
        file=sys.stderr,
    )
    return 0


def drawn(scored: Sequence[Scored]) -> list[Term]:
    """Every term that these rows say something of; the others are named on stderr."""
    found = []
    for make in TERMS:
        term = make(scored)
        if term is None:
            print(
                f"{make.__module__}.{make.__name__}: no rows of these tables say anything of it",
                file=sys.stderr,
            )
        else:
            found.append(term)
    return found


def worst_blocks(scored: Sequence[Scored]) -> dict[str, str]:
    """The table of the worst rows, and what was passed over; nothing where no row was predicted."""
    if not chosen(scored):
        return {}
    return {"worst": "\n".join([*worst_table(scored), "", passed_over(scored)])}


def write(docs: Path, terms: Sequence[Term], blocks: dict[str, str]) -> None:
    """Pages and pictures."""
    figures = docs / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    pictures = {term.file_name: term.svg for term in terms} | {"step-parts.svg": step_parts_svg()}
    for name, svg in pictures.items():
        (figures / name).write_text(svg + "\n", encoding="utf-8")
    for page in PAGES:
        rewrite(docs / page, blocks)


if __name__ == "__main__":
    raise SystemExit(main())
