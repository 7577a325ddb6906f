"""`meshwright view`: what files hold, as one page in the browser."""

from __future__ import annotations

import importlib.util
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright.api.subjects.loading import cluster_named
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.units import format_bytes
from meshwright.workbench.document.document import Document
from meshwright.workbench.document.opening import ALLOWED, open_document
from meshwright.workbench.page import file_page

NEEDED = ("starlette", "uvicorn")


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
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Of what is served; 0: the system chooses one.",
            show_default="8643",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve a run, whose page grows with its metrics.")
    ] = False,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = True,
) -> Result:
    """Show files as one self-contained page in the browser; without a file, serve the workbench on this computer.

    --follow serves the page of a training that goes on: loss, tokens/s, predicted beside measured steps, drift.

    -o FILE.html keeps the page of a plan, program, trace, run, validation, sweep or load. Two traces stand beside each other.
    """
    if follow and (files is None or len(files) != 1):
        raise SpecError("--follow without one run", allowed="meshwright view RUN --follow")
    if not files or follow:
        return _served(out, port, opens, files[0] if files else None)
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


def _served(out: Output, port: int | None, opens: bool, run: Path | None) -> Result:
    """The workbench, or the page of a run that goes on, until Ctrl-C."""
    if out.is_json or out.path is not None or out.report_path is not None:
        raise SpecError(
            "what is served has no result to write", allowed=ALLOWED, next="meshwright view FILE -o FILE.html"
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExecutionError(
            f"a page that is served needs {' and '.join(missing)}", next="pip install 'meshwright[view]'"
        )
    from meshwright.workbench.server.serving import serve_run, serve_workbench

    def announce(url: str) -> None:
        out.note(f"{'the workbench' if run is None else run.name} is at {url} (Ctrl-C ends it)")
        if opens:
            webbrowser.open(url)

    if run is None:
        serve_workbench(port, announce)
    else:
        serve_run(run, port, announce)
    return Result({}, is_silent=True)


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
