"""The `meshwright` command: every command group, and the way out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from meshwright import __version__
from meshwright.cli import doctor
from meshwright.cli.evidence import reproducing as evidence
from meshwright.cli.evidence import validating
from meshwright.cli.frame.output import INTERRUPTED
from meshwright.cli.look import checking, listing, looking, simulating
from meshwright.cli.plan import exporting, importing, planning
from meshwright.cli.quickstart import quickstart
from meshwright.cli.train import calibrating, checkpointing, comparing, training

app = typer.Typer(
    name="meshwright",
    help="Plan, simulate and run distributed training: one program, two interpreters.",
    epilog="Start with: meshwright simulate --schedule 1f1b --stages 4 --microbatches 8",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"meshwright {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan, simulate and run distributed training: one program, two interpreters."""


quickstart.add_to(app)
simulating.add_to(app)
checking.add_to(app)
planning.add_to(app)
training.add_to(app)
comparing.add_to(app)
calibrating.add_to(app)
importing.add_to(app)
exporting.add_to(app)
checkpointing.add_to(app)
looking.add_to(app)
listing.add_to(app)
evidence.add_to(app)
validating.add_to(app)
doctor.add_to(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 our failure, 2 the user's mistake, 3 the honest no, 130 Ctrl-C."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="meshwright")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has left; nothing more can be said, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
