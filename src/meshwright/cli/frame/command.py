"""Makes a function of `Output` and its own arguments into a command with the options that all commands share."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from meshwright.cli.frame.output import EVERY_FORM, FAILED, INTERRUPTED, Output, Result

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


class OnceCommand(TyperCommand):
    """A command that refuses an option which takes one value and is given several times: the parser would silently keep
    the last. Flags may be repeated, they say the same.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as always, then count."""
        given = list(args)
        rest: list[str] = super().parse_args(ctx, args)
        counts: Counter[Any] = Counter(self.make_parser(ctx).parse_args(given)[2])
        for option, count in counts.items():
            if count > 1 and option.param_type_name == "option" and not (option.multiple or option.is_flag):
                raise typer.BadParameter(f"it takes one value and was given {count} times", ctx, option)
        return rest


def command(
    app: typer.Typer, name: str, panel: str, forms: Sequence[str] = ()
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Register ``function(out, ...) -> Result`` under `name`; the rest of its signature is the command's own.

    `forms`: every suffix of -o that its results can have beside those of all commands; others are refused before the work.
    """

    def register(function: Callable[..., Result]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            shared = {key: given.pop(key) for key in SHARED}
            _finish(_output(**shared), lambda out: function(out, **given), forms)

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
        return app.command(name, cls=OnceCommand, rich_help_panel=panel)(run)

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


def _finish(out: Output, run: Callable[[Output], Result], forms: Sequence[str]) -> None:
    """Run a command and leave with its exit code; an error is one clear message, with --debug also a traceback."""
    from meshwright.specs.error import MeshwrightError

    out.configure_logging()
    try:
        out.check_paths(forms)
        result = run(out)
        undeclared = {*result.forms} - {*forms, *EVERY_FORM}
        assert not undeclared, f"a command writes {undeclared}, which it was not registered with"
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
