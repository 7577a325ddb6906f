"""Cards are read without importing the files; what is no system is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshwright.evidence.claim.system_card import read_card, system, systems
from meshwright.specs import SpecError, UnknownNameError

CARD = '''"""Does something.

Paper:      A title,
            An Author, 2020
Simulated:  no, because there is nothing
Executed:   the op
"""
raise RuntimeError("importing this file is a mistake")
CLAIMS = (
    {"claim": "c", "kind": "identity", "unit": "s", "tolerance": 0.0, "reason": "r", "how": "h", "by": "f",
     "cases": (({}, 1.0), ({}, 2.0))},
)
'''


def write(folder: Path, text: str, name: str = "thing") -> Path:
    path = folder / "memory" / name / "card.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_card_is_read_without_running_the_file(tmp_path: Path) -> None:
    write(tmp_path, CARD)
    (card,) = systems(tmp_path)
    assert card.to_dict() == {
        "name": "thing", "family": "memory", "summary": "Does something.", "paper": "A title, An Author, 2020",
        "simulated": False, "executed": True, "exhibit": True, "usable": False, "use": "none yet", "num_claims": 2,
        "num_predicted": 0, "num_closer_than_null": None, "num_failed": None, "num_headlines": 0,
        "num_headlines_failed": None,
    }  # fmt: skip


def test_other_files_of_a_system_are_no_cards(tmp_path: Path) -> None:
    write(tmp_path, CARD).with_name("mechanism.py").write_text('"""Fills a slot."""\n')
    assert len(systems(tmp_path)) == 1


def test_claims_must_be_a_literal(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="literal"):
        read_card(write(tmp_path, '"""x\n\nPaper: y\n"""\nCLAIMS = tuple(range(3))\n'))


def test_unknown_systems_list_near_names() -> None:
    with pytest.raises(UnknownNameError) as error:
        system("gpip")
    assert "gpipe" in str(error.value)


def test_our_systems_are_found_by_name_and_family_without_import() -> None:
    module = "meshwright.systems.pipeline.gpipe.card"
    loaded = module in sys.modules
    assert system("gpipe") == system("pipeline/gpipe")
    assert (module in sys.modules) == loaded
