"""A function of `Output` and its own arguments as a command, imported when it runs. A parameter that is a dataclass is the
options of its fields.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from meshwright.cli.frame.option_group import group_from, group_of, options_in
from meshwright.cli.frame.output import EVERY_FORM, FAILED, INTERRUPTED, Output, Result
from meshwright.specs.data_text import toml_of
from meshwright.specs.error import MeshwrightError, UnknownNameError
from meshwright.specs.slot import TRUST

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


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


class ConfiguredCommand(OnceCommand):
    """One whose options may also stand in a file, --config FILE.toml, by their names. The command line wins."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put what the file says before what was given, but for what was given."""
        file, rest = _config_of(args)
        if file is None:
            return super().parse_args(ctx, args)
        given = set(self.make_parser(ctx).parse_args(list(rest))[0])
        options = {
            flag.removeprefix("--"): each
            for each in self.params
            for flag in [*each.opts, *each.secondary_opts]
        }
        said: list[str] = []
        for name, value in _settings_of(file).items():
            flag = name.replace("_", "-")
            if flag not in options:
                raise typer.BadParameter(str(UnknownNameError(f"option in {file}", name, options)), ctx)
            if options[flag].name not in given:
                said += _words(flag, value)
        return super().parse_args(ctx, [*said, *rest])


def _config_of(args: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of --config, and the rest."""
    rest = list(args)
    for place, word in enumerate(rest):
        if word == "--config" and place + 1 < len(rest):
            return Path(rest[place + 1]), [*rest[:place], *rest[place + 2 :]]
        if word.startswith("--config="):
            return Path(word.removeprefix("--config=")), [*rest[:place], *rest[place + 1 :]]
    return None, rest


def _settings_of(file: Path) -> dict[str, Any]:
    try:
        return toml_of(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error


def _words(flag: str, value: Any) -> list[str]:
    """An option as it is typed; a switch that is off is not."""
    if isinstance(value, bool):
        return [f"--{flag}"] if value else []
    return [
        word for each in (value if isinstance(value, list) else [value]) for word in (f"--{flag}", str(each))
    ]


class LateCommand(TyperCommand):
    """A command that is imported when it is asked for; its help line is read without that.

    Args:
        where: file below this room and function, such as "plan.planning:plan".
        load: gives the function.
    """

    def __init__(self, name: str, panel: str, where: str, load: Callable[[], Callable[..., Result]]) -> None:
        super().__init__(name, rich_help_panel=panel)
        self.where, self._load = where, load

    @cached_property
    def real(self) -> Any:
        """The command itself."""
        return command(self._load(), str(self.name))

    def make_context(self, *given: Any, **more: Any) -> Any:
        """That of the command itself, which then runs."""
        return self.real.make_context(*given, **more)


class LateGroup(TyperGroup):
    """A group of such commands: their help lines are read where it shows its own."""

    def format_help(self, *given: Any) -> None:
        """One line for each command."""
        for each in self.commands.values():
            if isinstance(each, LateCommand):
                each.help = docstring_of(each.where)
        super().format_help(*given)


def docstring_of(where: str) -> str:
    """What a function says of itself, without importing it."""
    module, _, function = where.partition(":")
    path = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == function)
    return ast.get_docstring(found) or ""


def writes(*forms: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Says every suffix of -o that a command's results can have beside those of all commands; others are refused before the
    work.
    """

    def mark(function: Callable[..., Result]) -> Callable[..., Result]:
        function.__dict__["forms"] = forms
        return function

    return mark


def configurable(function: Callable[..., Result]) -> Callable[..., Result]:
    """Says that a command's options may stand in a file: --config FILE.toml."""
    function.__dict__["kind"] = ConfiguredCommand
    return function


def command(function: Callable[..., Result], name: str) -> Any:
    """The command of ``function(out, ...) -> Result``; the rest of its signature is the command's own."""
    first, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups = {
        each.name: (kind, each.default) for each in [*own, first] if (kind := group_of(each.annotation))
    }
    parameters: list[inspect.Parameter] = []
    for each in [*own, first]:
        whole = options_in(groups[each.name][0], f"{each.name}__") if each.name in groups else [each]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in whole]

    def run(**given: Any) -> None:
        out = group_from(*groups[first.name], given, f"{first.name}__")
        _finish(
            out, lambda: function(out, **_gathered(groups, first.name, given)), getattr(function, "forms", ())
        )

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__, run.__doc__, run.__name__ = {}, inspect.getdoc(function), function.__name__
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=HELP_NAMES)
    alone.command(name, cls=getattr(function, "kind", OnceCommand))(run)
    return typer.main.get_command(alone)


def _gathered(groups: Mapping[str, tuple[type, Any]], out: str, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, options of one dataclass as one value."""
    made = {name: group_from(*told, given, f"{name}__") for name, told in groups.items() if name != out}
    return {**given, **made}


def _finish(out: Output, run: Callable[[], Result], forms: Sequence[str]) -> None:
    """Run a command and leave with its exit code; an error is one clear message, with --debug also a traceback."""
    out.configure_logging()
    TRUST.is_given = out.trusts
    try:
        out.check_paths(forms)
        result = run()
        undeclared = {*result.forms} - {*forms, *EVERY_FORM}
        assert not undeclared, f"a command writes {undeclared}, which it was not registered with"
        code = told(out, result.exit_code, lambda: out.deliver(result))
    except MeshwrightError as error:
        code = fail(out, str(error), error.exit_code, type(error).__name__)
    except KeyboardInterrupt:
        code = fail(out, "interrupted", INTERRUPTED, "KeyboardInterrupt")
    except Exception as error:
        text = f"this is a mistake in meshwright, not yours: {type(error).__name__}: {error}"
        code = fail(out, f"{text}\nrun it again with --debug for the traceback", FAILED, type(error).__name__)
    raise typer.Exit(code)


def told(out: Output, code: int, tell: Callable[[], object]) -> int:
    """Write to stdout to the last byte. Returns the exit code: the given one, also where whoever read has left, as what was
    found stands; FAILED where the output cannot be written."""
    try:
        tell()
        sys.stdout.flush()
    except BrokenPipeError:
        let_go_of_stdout()
    except OSError as error:
        let_go_of_stdout()
        out.stderr.print(f"the result cannot be written: {error.strerror}", style="bold red", markup=False)
        return FAILED
    return code


def let_go_of_stdout() -> None:
    """Nothing more can be said there, not even by the interpreter's last flush."""
    with contextlib.suppress(OSError, ValueError):  # what stands in for it may have no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(out: Output, text: str, code: int, kind: str) -> int:
    """Tell what went wrong: on stderr for people, with --json also as the object on stdout."""
    if out.is_debug:
        out.stderr.print_exception()
    if out.is_json:
        error = {"error": {"kind": kind, "message": text, "exit_code": code}}
        code = told(out, code, lambda: sys.stdout.write(out.json_text(error) + "\n"))
    label = "" if code == INTERRUPTED else f"{kind}: "
    out.stderr.print(
        f"{label}{text}", style="bold red" if code == FAILED else "red", markup=False, soft_wrap=True
    )
    return code
