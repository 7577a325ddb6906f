"""The shared pool of four gloo workers, and the systems of tests/examples, for the tests of this folder."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from meshwright import systems
from meshwright.catalog import slots
from tests.examples import CARDS
from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]


@pytest.fixture(scope="module")
def examples() -> Iterator[None]:
    """They stand beside those of the package, as folders of their families; workers do not know them."""
    caches = (slots.cards, slots.filled_by_systems, slots._named)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "__path__", [*systems.__path__, str(CARDS[0].parents[2])])
        for family in {card.parents[1] for card in CARDS}:
            package = importlib.import_module(f"{systems.__name__}.{family.name}")
            patch.setattr(package, "__path__", [*package.__path__, str(family)])
        for each in caches:
            each.cache_clear()
        yield
    for each in caches:
        each.cache_clear()
