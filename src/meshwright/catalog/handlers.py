"""Finds the handlers of a vocabulary's owner: a published system, an installed module, or a user's file."""

from __future__ import annotations

import importlib

from meshwright.catalog.slots import cards
from meshwright.catalog.user_file import of_file
from meshwright.executor.rank.handler import Handlers
from meshwright.specs.error import ExecutionError

TABLE = "HANDLERS"  # of a system's ops, a module or a file


def load_handlers(owner: str) -> Handlers:
    """The table ``HANDLERS`` of a system's ``ops``, of a module by dotted name, or of a file.

    Raises:
        ExecutionError: there is no such module, or it has no table.
        SpecError: the file cannot be imported.
        PlanError: a file named it, and nobody said that it may run.
    """
    if owner.endswith(".py"):
        found: Handlers = of_file(f"{owner}:{TABLE}", TABLE)[0]
        return found
    card = cards().get(owner)
    module = owner if card is None else f"meshwright.systems.{card.parent.parent.name}.{owner}.ops"
    try:
        return getattr(importlib.import_module(module), TABLE)  # type: ignore[no-any-return]
    except (ModuleNotFoundError, AttributeError) as error:
        raise ExecutionError(
            f"nothing executes the vocabulary of {owner!r}: {error}",
            allowed=f"a published system, a module or a .py file with {TABLE}",
        ) from error
