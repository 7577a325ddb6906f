"""The cards of published systems: docstring labels and claims, read from the files without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.evidence.claim.claim import Claim, claims_of
from meshwright.evidence.claim.recorded import Recorded
from meshwright.specs.error import SpecError, UnknownNameError

SYSTEMS = Path(__file__).resolve().parents[2] / "systems"
LABEL = re.compile(r"^([A-Z]\w+):[ \t]*", re.MULTILINE)


@dataclass(frozen=True)
class SystemCard:
    """What a system's card says about itself. `labels` are those of its docstring, lines joined."""

    name: str
    family: str
    summary: str
    labels: Mapping[str, str]
    claims: tuple[Claim, ...]
    folder: Path

    @property
    def paper(self) -> str:
        """Title, authors, year, arXiv id."""
        return self.labels.get("Paper", "")

    @property
    def is_simulated(self) -> bool:
        """Does its card not say "no"?"""
        return _is_yes(self.labels.get("Simulated", "no"))

    @property
    def is_executed(self) -> bool:
        """Does its card not say "no"?"""
        return _is_yes(self.labels.get("Executed", "no"))

    @property
    def use(self) -> str:
        """The command, or the lines, by which a user applies it to a model, cluster or data of their own; or "none yet"."""
        return self.labels.get("Use", "none yet")

    @property
    def is_exhibit(self) -> bool:
        """Is there nothing yet by which it is applied?"""
        return self.use.startswith("none yet")

    @property
    def recorded(self) -> Recorded:
        """How its claims held when they were last recorded."""
        return Recorded.of(self.folder, self.claims)

    @property
    def module(self) -> str:
        """Name of its package."""
        return f"meshwright.systems.{self.family}.{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """As `meshwright systems --json` prints it."""
        return {
            "name": self.name,
            "family": self.family,
            "summary": self.summary,
            "paper": self.paper,
            "simulated": self.is_simulated,
            "executed": self.is_executed,
            "exhibit": self.is_exhibit,
            "usable": not self.is_exhibit,
            "use": self.use,
            "num_claims": len(self.claims),
            **asdict(self.recorded),
        }


def systems(folder: Path = SYSTEMS) -> tuple[SystemCard, ...]:
    """All systems, by family and name. Raises SpecError on a card or claim that cannot be read."""
    return tuple(read_card(path) for path in sorted(folder.glob("*/*/card.py")))


def system(name: str, folder: Path = SYSTEMS) -> SystemCard:
    """The system of that name, or "family/name". Raises UnknownNameError."""
    cards = systems(folder)
    for card in cards:
        if name in (card.name, f"{card.family}/{card.name}"):
            return card
    raise UnknownNameError("system", name, [card.name for card in cards])


def read_card(path: Path) -> SystemCard:
    """The card in ``<family>/<name>/card.py``.

    Raises SpecError where CLAIMS is no literal or a claim is wrong.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    docstring = ast.get_docstring(tree) or ""
    labels = labels_of(docstring)
    literal = _claims_literal(tree, path)
    return SystemCard(
        path.parent.name,
        path.parent.parent.name,
        docstring.partition("\n")[0],
        labels,
        claims_of(literal or (), _where(path)),
        path.parent,
    )


def labels_of(docstring: str) -> dict[str, str]:
    """Text behind each label, continuation lines joined."""
    pieces = LABEL.split(docstring)
    return {name: " ".join(text.split()) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _claims_literal(tree: ast.Module, path: Path) -> Any:
    """The value of CLAIMS, evaluated as a literal; None where the file has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is None or not any(isinstance(t, ast.Name) and t.id == "CLAIMS" for t in targets):
            continue
        try:
            return ast.literal_eval(value)
        except ValueError as error:
            raise SpecError(
                f"{_where(path)}, line {node.lineno}: CLAIMS is no literal ({error})",
                allowed="texts, numbers, tuples and mappings written out",
            ) from error
    return None


def _where(path: Path) -> str:
    return "/".join(("systems", *path.parts[-3:]))


def _is_yes(text: str) -> bool:
    return not re.match(r"no\b", text.strip(), re.IGNORECASE)
