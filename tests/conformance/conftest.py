"""The shared pool of four gloo workers, and the systems of tests/examples, for the tests of this folder."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.catalog import slots
from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def examples() -> Iterator[None]:
    """They stand beside those of the package, as folders of their families; workers do not know them."""
    caches = (slots.cards, slots.filled_by_systems, slots._named)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("systems", "systems.memory", "systems.pipeline"):
            package = importlib.import_module(f"meshwright.{name}")
            folder = EXAMPLES.joinpath(*name.split(".")[1:])
            patch.setattr(package, "__path__", [*package.__path__, str(folder)])
        for each in caches:
            each.cache_clear()
        yield
    for each in caches:
        each.cache_clear()
