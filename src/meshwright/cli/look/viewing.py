"""`meshwright view`: what files hold, as one page in the browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright.api.subjects.loading import cluster_named
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.specs.error import SpecError
from meshwright.specs.units import format_bytes
from meshwright.workbench.document.document import Document
from meshwright.workbench.document.opening import ALLOWED, open_document
from meshwright.workbench.page import file_page


@writes(".html")
def view(
    out: Output,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="A plan, program, trace, run, or what --json wrote; or two traces."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where a plan runs, if not where it says.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Accept GPUs that were never measured, by their data sheet.")
    ] = False,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = True,
) -> Result:
    """Show a plan, program, trace, run, validation, sweep or load as one self-contained page in the browser.

    -o FILE.html keeps the page; it loads nothing from anywhere. Two traces are shown beside each other.
    """
    if not files:
        raise SpecError("nothing was given to view", allowed=ALLOWED, next="meshwright view FILE")
    where = None if cluster is None else cluster_named(cluster)
    document = open_document(files, cluster=where, extrapolate=extrapolate)
    page = file_page(document)
    path = out.path if out.path is not None and out.path.suffix == ".html" else None
    if opens and not out.is_json:
        path = _kept(page)
        webbrowser.open(path.as_uri())
    data = {**_data(document), "page_bytes": len(page.encode()), "path": None if path is None else str(path)}
    forms = {".html": lambda target: target.write_text(page, encoding="utf-8")}
    return Result(data, _view(document, data), forms)


def _kept(page: str) -> Path:
    """The page in a file for temporary ones, for the browser."""
    with tempfile.NamedTemporaryFile(
        "w", suffix=".html", prefix="meshwright-view-", delete=False, encoding="utf-8"
    ) as file:
        file.write(page)
    return Path(file.name)


def _data(document: Document) -> dict[str, Any]:
    return {
        "kind": document.kind,
        "title": document.title,
        "facts": {each.name: each.value for each in document.facts},
        "sections": [each.title for each in document.sections],
    }


def _view(document: Document, data: dict[str, Any]) -> list[Any]:
    facts = ", ".join(f"{name} {value}" for name, value in data["facts"].items())
    where = data["path"] or "not kept: -o FILE.html does"
    size = format_bytes(data["page_bytes"])
    return [
        Text(document.title, style="bold"),
        Text(facts, overflow="fold"),
        Text(f"{where} ({size})", overflow="fold"),
    ]
