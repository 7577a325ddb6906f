"""Systems as a newcomer adds them: a folder each, nothing edited elsewhere."""

from __future__ import annotations

from pathlib import Path

from meshwright.catalog import slots

CARDS = sorted(Path(__file__).resolve().parent.glob("*/*/card.py"))


def names_of(slot: str) -> list[str]:
    """What fills a slot: names of the package, and of these systems."""
    own = [card.parent.name for card in CARDS if slot in slots.fills_of(card)]
    return [*slots.slot_names(slot), *own]
