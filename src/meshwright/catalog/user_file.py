"""A user's own Python file: imported under a private name, its errors told with the line where they rose."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.specs.error import MeshwrightError, SpecError, UnknownNameError
from meshwright.specs.slot import TRUST


def import_file(path: Path) -> ModuleType:
    """A user's Python file as a module of a private name. Raises SpecError with the line that failed."""
    if not path.is_file():
        raise SpecError(f"there is no file {path}", allowed="the path of a Python file")
    private = "_meshwright_user_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(private, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", allowed="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module  # dataclasses and typing look their module up by name
    try:
        guarded(lambda: spec.loader.exec_module(module), str(path), path)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[private]
        raise
    return module


def of_file(reference: str, hint: str = "FUNCTION, or its class") -> tuple[Any, str]:
    """What ``./mine.py:NAME`` names (``./mine.py`` where the file has one public function or class), and its label.

    Raises:
        SpecError: there is no such file, or it cannot be imported.
        UnknownNameError: it has no such name.
        PlanError: a plan's file named it, and nobody said that it may run.
    """
    TRUST.check(reference)
    file, _, wanted = reference.partition(":")
    path = Path(file).expanduser()
    module = import_file(path)
    there = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = [name for name, value in there.items() if getattr(value, "__module__", None) == module.__name__]
    if not wanted and len(own) == 1:
        wanted = own[0]
    if wanted not in there:
        raise UnknownNameError(f"function in {path.name}", wanted, own, next=f"write {file}:{hint}")
    return there[wanted], f"{path.name}:{wanted}"


def guard_calls(function: Callable[..., Any], name: str, path: Path | None) -> Callable[..., Any]:
    """The same function; what goes wrong inside it is told as the user's, with file and line.

    One whose order depends on where stages stand keeps its method ``timed``, which gives a guarded function.
    """

    def call(*counts: int) -> Any:
        return guarded(lambda: function(*counts), f"{name}{counts}", path)

    told: dict[str, Any] = {"__signature__": inspect.signature(function)}
    if timed := getattr(function, "timed", None):
        what = f"{name}.timed"
        told["timed"] = lambda times: guard_calls(guarded(lambda: timed(times), what, path), name, path)
    call.__dict__.update(told)
    return call


def one_of(kind: type) -> Callable[[Any], Any]:
    """Takes what code gave if it is of that kind. Raises TypeError."""

    def check(found: Any) -> Any:
        if not isinstance(found, kind):
            raise TypeError(f"it gives {found!r:.80}, not of type {kind.__name__}")
        return found

    return check


def many_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Takes what code gave, all of it, if it is several of that kind. Raises TypeError."""
    return lambda found: tuple(map(one_of(kind), one_of(Iterable)(found)))


@dataclass(frozen=True)
class Guarded:
    """The user's code in a slot, called and asked as itself; what goes wrong inside it is told as the user's.

    Attributes:
        gives: takes what a call gave; raises TypeError where that is not what the slot's protocol says.
        what: the code, for people.
        path: its file, where it has one.
    """

    code: Any
    gives: Callable[[Any], Any]
    what: str
    path: Path | None = None

    def __call__(self, *given: Any) -> Any:
        """What the code makes of this. Raises SpecError with the line that failed."""
        return guarded(lambda: self.gives(self.code(*given)), self.what, self.path)

    def __getattr__(self, name: str) -> Any:
        """What the code says of itself, such as what a pass stands behind."""
        return getattr(object.__getattribute__(self, "code"), name)


def guarded(run: Callable[[], Any], what: str, path: Path | None = None) -> Any:
    """Run code that is not ours; its errors become ours, with the line in `path` where they rose."""
    try:
        return run()
    except MeshwrightError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            f"line {frame.lineno}: "
            for frame in frames
            if path and Path(frame.filename).resolve() == path.resolve()
        ]
        if isinstance(error, SyntaxError):
            own = [f"line {error.lineno}: "]
        raise SpecError(
            f"{what} failed: {own[-1] if own else ''}{type(error).__name__}: {error}",
            next="correct the file; --debug shows the whole traceback",
        ) from error
