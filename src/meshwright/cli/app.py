"""The `meshwright` command: every command, and the way out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from meshwright import __version__
from meshwright.cli.frame.command import HELP_NAMES, LateCommand, LateGroup, let_go_of_stdout
from meshwright.cli.frame.output import DONE, INTERRUPTED

# Panel, and what runs: file and function, whose first line is its help.
COMMANDS = {
    "quickstart": ("Start here", "quickstart.quickstart:quickstart"),
    "simulate": ("The loop", "look.simulating:simulate"),
    "check": ("The loop", "look.checking:check"),
    "plan": ("The loop", "plan.planning:plan"),
    "train": ("The loop", "train.training:train"),
    "run": ("The loop", "train.running:run"),
    "serve": ("The loop", "serve.serving:serve"),
    "compare": ("The loop", "train.comparing:compare"),
    "calibrate": ("The loop", "train.calibrating:calibrate"),
    "import": ("In and out", "plan.importing:import_file"),
    "export": ("In and out", "plan.exporting:export_plan"),
    "show": ("Looking", "look.looking:show"),
    "place": ("Looking", "look.placing:place"),
    "view": ("Looking", "look.viewing:view"),
    "list": ("Looking", "look.listing:list_names"),
    "systems": ("Evidence", "evidence.reproducing:list_systems"),
    "reproduce": ("Evidence", "evidence.reproducing:reproduce"),
    "validate": ("Evidence", "evidence.validating:validate"),
    "doctor": ("The rest", "doctor:doctor"),
    "bench serve": ("Evidence", "serve.loading:bench_serve"),
    "generate": ("The rest", "serve.generating:generate"),
    "checkpoint inspect": ("The rest", "train.checkpointing:inspect"),
    "checkpoint verify": ("The rest", "train.checkpointing:verify"),
    "checkpoint convert": ("The rest", "train.checkpointing:convert"),
}
# What a command of two words begins with: its panel and what it says of itself.
GROUPS = {
    "checkpoint": ("The rest", "Look into checkpoints, verify them, and write them for other programs."),
    "bench": ("Evidence", "Measure what runs: a server under load."),
}
# Objects that are made before the collector looks among them for circles (Python's own number is 700). Orders, programs and
# candidates are hundreds of thousands of tuples without any, and looking through them took a tenth of a plan's time.
GARBAGE_OBJECTS = 100_000
app = typer.Typer(
    cls=LateGroup,
    name="meshwright",
    help="Plan, simulate and run distributed training: one program, two interpreters.",
    epilog="Start with: meshwright simulate --schedule 1f1b --stages 4 --microbatches 8",
    no_args_is_help=True,
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


def function_of(where: str) -> Any:
    """What a command runs, which is imported now: one that is not asked for costs nothing."""
    module, _, function = where.partition(":")
    return getattr(import_module(f"meshwright.cli.{module}"), function)


def root() -> Any:
    """The command with all others in it."""
    found: Any = typer.main.get_command(app)
    groups = {
        name: LateGroup(
            name=name, help=help, no_args_is_help=True, context_settings=HELP_NAMES, rich_help_panel=panel
        )
        for name, (panel, help) in GROUPS.items()
    }
    for name, (panel, where) in COMMANDS.items():
        above, _, last = name.rpartition(" ")
        groups.get(above, found).add_command(LateCommand(last, panel, where, partial(function_of, where)))
    for group in groups.values():
        found.add_command(group)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 our failure, 2 the user's mistake, 3 the honest no, 130 Ctrl-C."""
    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        root()(args=None if arguments is None else list(arguments), prog_name="meshwright")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        let_go_of_stdout()
        raise SystemExit(DONE) from None
