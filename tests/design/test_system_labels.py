"""Every published system has its card: the fixed docstring labels in order, and its claims."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.design.source import PACKAGE, SourceFile, imported_modules, parse, python_files

LABELS = ("Paper", "Problem", "Idea", "Kind", "Use", "Simulated", "Executed", "Differs")
KINDS = (
    "schedule pass placement costs routing optimizer planner packing policy decoder op recipe survey".split()
)
FAMILIES = (
    "pipeline sequence moe memory architecture cluster "
    "planning serving decoding diffusion hardware post_training"
).split()

CARD = '''"""Split a model into stages.

Paper:      A title, An Author, 2019, arXiv 1811.06965
Problem:    one sentence
Idea:       two sentences
            on two lines
Kind:       schedule
Use:        none yet (exhibit)
Simulated:  everything
Executed:   no, because there is nothing to run
Differs:    none known
"""

CLAIMS = ()
'''


def labels_of(docstring: str) -> dict[str, str]:
    """Text after each label of a card, in the order they stand; continuation lines are joined."""
    pieces = re.split(r"^([A-Z]\w+):[ \t]*", docstring, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(pieces[1::2], pieces[2::2])}


def assigned_names(file: SourceFile) -> set[str]:
    """Names a file assigns at its top level."""
    targets = [t for n in file.tree.body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in file.tree.body if isinstance(n, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def is_system(file: SourceFile) -> bool:
    """Whether a file is a system, not a module that a family shares: it claims, or cites a paper."""
    return "CLAIMS" in assigned_names(file) or "Paper" in labels_of(ast.get_docstring(file.tree) or "")


def card_offences(file: SourceFile) -> Iterator[str]:
    """What is missing or wrong on the card of a system."""
    labels = labels_of(ast.get_docstring(file.tree) or "")
    if tuple(labels) != LABELS:
        yield f"labels are {list(labels)}, the card has {list(LABELS)} in this order"
    yield from (f"{name} is empty" for name, text in labels.items() if not text)
    if not set(re.findall(r"\w+", labels.get("Kind", ""))) & set(KINDS):
        yield f"Kind is {labels.get('Kind')!r}, allowed are {KINDS}"
    if "CLAIMS" not in assigned_names(file):
        yield "no CLAIMS at the top level"


def system_files() -> list[SourceFile]:
    """The card of every system, also of those that are examples in the tests."""
    files = [*python_files("src/meshwright/systems"), *python_files("tests/examples")]
    return [file for file in files if Path(file.path).name == "card.py"]


@pytest.mark.skipif(not (PACKAGE / "systems").is_dir(), reason="the room systems is not in this tree")
def test_every_system_has_its_card() -> None:
    files = system_files()
    assert files, "the room systems exists and holds no system"
    found = [f"{file.path}: {offence}" for file in files for offence in card_offences(file)]
    assert not found, "\n".join(found)


@pytest.mark.skipif(not (PACKAGE / "systems").is_dir(), reason="the room systems is not in this tree")
def test_systems_live_in_families_and_do_not_import_each_other() -> None:
    files = system_files()
    packages = {Path(file.path).parent for file in files}
    for package in packages:
        assert package.parent.name in FAMILIES, f"{package}: families are {FAMILIES}"
    for file in python_files("src/meshwright/systems"):
        own = Path(file.path).parent
        for name in (name for node in file.nodes for name in imported_modules(node)):
            imported = Path("src", *name.split("."))
            others = {p for p in packages - {own} if imported.is_relative_to(p)}
            assert not others, f"{file.path} imports another system: {name}"


def test_a_complete_card_is_accepted() -> None:
    assert list(card_offences(parse(CARD))) == []
    assert is_system(parse(CARD))


@pytest.mark.parametrize(
    "card",
    [
        CARD.replace("Problem:    one sentence\n", ""),
        CARD.replace("Problem:", "Question:"),
        CARD.replace("Use:        none yet (exhibit)\n", ""),
        CARD.replace("Executed:   no, because there is nothing to run\n", "Executed:\n"),
        CARD.replace("Kind:       schedule", "Kind:       wonder"),
        CARD.replace("CLAIMS = ()", "claims = ()"),
    ],
)
def test_an_incomplete_card_is_noticed(card: str) -> None:
    assert list(card_offences(parse(card)))
