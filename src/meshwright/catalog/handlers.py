"""Finds the module that a job names for its handlers: of the package, installed, or a user's file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from meshwright.specs.error import ExecutionError


def load_handlers(name: str) -> None:
    """Import a module by dotted name or by file, once.

    Raises:
        ExecutionError: there is no such module.
    """
    if not name:
        return
    if not name.endswith(".py"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ExecutionError(
                f"handlers_module {name!r}: {error}", allowed="a dotted name or a .py file"
            ) from error
        return
    path = Path(name).resolve()
    known = f"_handlers_{path.stem}_{abs(hash(str(path)))}"
    if known in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ExecutionError(f"handlers_module {name!r} is no file", allowed="a dotted name or a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
