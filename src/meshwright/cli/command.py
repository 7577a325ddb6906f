"""Makes a function of `Output` and its own arguments into a command with the options that all commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli.output import FAILED, INTERRUPTED, Output, Result

ALL = "For every command"

SHARED: dict[str, tuple[Any, Any]] = {
    "as_json": (
        Annotated[
            bool, typer.Option("--json", help="Print one JSON object, in SI units.", rich_help_panel=ALL)
        ],
        False,
    ),
    "output": (
        Annotated[
            Path | None,
            typer.Option(
                "-o",
                "--output",
                help="Also write the result to this file; its suffix says the form.",
                rich_help_panel=ALL,
            ),
        ],
        None,
    ),
    "report": (
        Annotated[
            Path | None,
            typer.Option("--report", help="Also write a self-contained HTML page.", rich_help_panel=ALL),
        ],
        None,
    ),
    "seed": (
        Annotated[int, typer.Option("--seed", help="Keys every random choice.", rich_help_panel=ALL)],
        0,
    ),
    "quiet": (
        Annotated[
            bool,
            typer.Option(
                "--quiet", "-q", help="The result only: no progress, no notes.", rich_help_panel=ALL
            ),
        ],
        False,
    ),
    "debug": (
        Annotated[
            bool, typer.Option("--debug", help="Tracebacks and every log message.", rich_help_panel=ALL)
        ],
        False,
    ),
    "explain": (
        Annotated[
            bool,
            typer.Option("--explain", help="Say what was assumed and how it was made.", rich_help_panel=ALL),
        ],
        False,
    ),
}


def command(
    app: typer.Typer, name: str, panel: str
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Register ``function(out, ...) -> Result`` under `name`; the rest of its signature is the command's own."""

    def register(function: Callable[..., Result]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            shared = {key: given.pop(key) for key in SHARED}
            _finish(_output(**shared), lambda out: function(out, **given))

        keyword = inspect.Parameter.KEYWORD_ONLY
        extra = [
            inspect.Parameter(key, keyword, default=default, annotation=annotation)
            for key, (annotation, default) in SHARED.items()
        ]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(parameter.replace(kind=keyword) for parameter in own), *extra]
        )
        run.__annotations__ = {}
        run.__doc__ = inspect.getdoc(function)
        run.__name__ = function.__name__
        return app.command(name, rich_help_panel=panel)(run)

    return register


def _output(
    as_json: bool,
    output: Path | None,
    report: Path | None,
    seed: int,
    quiet: bool,
    debug: bool,
    explain: bool,
) -> Output:
    return Output(as_json, output, report, seed, quiet, debug, explain)


def _finish(out: Output, run: Callable[[Output], Result]) -> None:
    """Run a command and leave with its exit code; an error is one clear message, with --debug also a traceback."""
    from meshwright.specs.error import MeshwrightError

    out.configure_logging()
    try:
        out.check_paths()
        result = run(out)
        out.deliver(result)
        code = result.exit_code
    except MeshwrightError as error:
        code = fail(out, str(error), error.exit_code, type(error).__name__)
    except KeyboardInterrupt:
        code = fail(out, "interrupted", INTERRUPTED, "KeyboardInterrupt")
    except BrokenPipeError:
        raise
    except Exception as error:
        text = f"this is a mistake in meshwright, not yours: {type(error).__name__}: {error}"
        code = fail(out, f"{text}\nrun it again with --debug for the traceback", FAILED, type(error).__name__)
    raise typer.Exit(code)


def fail(out: Output, text: str, code: int, kind: str) -> int:
    """Tell what went wrong: on stderr for people, with --json also as the object on stdout."""
    import sys

    if out.is_debug:
        out.stderr.print_exception()
    if out.is_json:
        error = {"error": {"kind": kind, "message": text, "exit_code": code}}
        sys.stdout.write(out.json_text(error) + "\n")
    label = "" if code == INTERRUPTED else f"{kind}: "
    out.stderr.print(
        f"{label}{text}", style="bold red" if code == FAILED else "red", markup=False, soft_wrap=True
    )
    return code
