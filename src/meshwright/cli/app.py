"""The `meshwright` command: every command, and the way out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from meshwright import __version__
from meshwright.cli.frame.command import HELP_NAMES, LateCommand, LateGroup
from meshwright.cli.frame.output import INTERRUPTED

# Panel, and where its help line is read: file and function.
COMMANDS = {
    "quickstart": ("Start here", "quickstart.quickstart:quickstart"),
    "simulate": ("The loop", "look.simulating:simulate"),
    "check": ("The loop", "look.checking:check"),
    "plan": ("The loop", "plan.planning:plan"),
    "train": ("The loop", "train.training:train"),
    "compare": ("The loop", "train.comparing:compare"),
    "calibrate": ("The loop", "train.calibrating:calibrate"),
    "import": ("In and out", "plan.importing:import_file"),
    "export": ("In and out", "plan.exporting:export_plan"),
    "show": ("Looking", "look.looking:show"),
    "list": ("Looking", "look.listing:list_names"),
    "systems": ("Evidence", "evidence.reproducing:list_systems"),
    "reproduce": ("Evidence", "evidence.reproducing:reproduce"),
    "validate": ("Evidence", "evidence.validating:validate"),
    "doctor": ("The rest", "doctor:doctor"),
    "checkpoint inspect": ("The rest", "train.checkpointing:inspect"),
    "checkpoint verify": ("The rest", "train.checkpointing:verify"),
    "checkpoint convert": ("The rest", "train.checkpointing:convert"),
}
app = typer.Typer(
    cls=LateGroup,
    name="meshwright",
    help="Plan, simulate and run distributed training: one program, two interpreters.",
    epilog="Start with: meshwright simulate --schedule 1f1b --stages 4 --microbatches 8",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
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


def function_of(name: str) -> Any:
    """What a command runs, which is imported now: one that is not asked for costs nothing."""
    match name:
        case "quickstart":
            from meshwright.cli.quickstart.quickstart import quickstart as found
        case "simulate":
            from meshwright.cli.look.simulating import simulate as found
        case "check":
            from meshwright.cli.look.checking import check as found
        case "plan":
            from meshwright.cli.plan.planning import plan as found
        case "train":
            from meshwright.cli.train.training import train as found
        case "compare":
            from meshwright.cli.train.comparing import compare as found
        case "calibrate":
            from meshwright.cli.train.calibrating import calibrate as found
        case "import":
            from meshwright.cli.plan.importing import import_file as found
        case "export":
            from meshwright.cli.plan.exporting import export_plan as found
        case "show":
            from meshwright.cli.look.looking import show as found
        case "list":
            from meshwright.cli.look.listing import list_names as found
        case "systems":
            from meshwright.cli.evidence.reproducing import list_systems as found
        case "reproduce":
            from meshwright.cli.evidence.reproducing import reproduce as found
        case "validate":
            from meshwright.cli.evidence.validating import validate as found
        case "doctor":
            from meshwright.cli.doctor import doctor as found
        case "checkpoint inspect":
            from meshwright.cli.train.checkpointing import inspect as found
        case "checkpoint verify":
            from meshwright.cli.train.checkpointing import verify as found
        case _:
            from meshwright.cli.train.checkpointing import convert as found
    return found


def root() -> Any:
    """The command with all others in it."""
    found: Any = typer.main.get_command(app)
    help = "Look into checkpoints, verify them, and write them for other programs."
    checkpoint = LateGroup(
        name="checkpoint",
        help=help,
        no_args_is_help=True,
        context_settings=HELP_NAMES,
        rich_help_panel="The rest",
    )
    for name, (panel, where) in COMMANDS.items():
        above, _, last = name.rpartition(" ")
        group = checkpoint if above else found
        group.add_command(LateCommand(last, panel, where, partial(function_of, name)))
    found.add_command(checkpoint)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 our failure, 2 the user's mistake, 3 the honest no, 130 Ctrl-C."""
    try:
        root()(args=None if arguments is None else list(arguments), prog_name="meshwright")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has left; nothing more can be said, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
