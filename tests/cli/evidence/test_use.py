"""The command on a system's card, on a model and a cluster that the card does not know."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.running import Runner, rough_profile

from meshwright.evidence.claim.system_card import SystemCard, systems
from meshwright.specs.plan.plan import Plan

VALUES = {
    "MODEL": "gpt2",
    "PROCESSES": "2",
    "CLUSTER": "1x4xA100-80",
    "BATCH": "8",
    "TOKENS": "128",
    "PLAN": "plan.toml",
    "STAGES": "5",
}
BUILT = [card for card in systems() if not card.is_exhibit]


def words_of(card: SystemCard) -> list[str]:
    """The command, its capitals replaced; what follows a comma in words is prose."""
    text = re.split(", or these words|, of a plan", card.use)[0]
    for name, value in VALUES.items():
        text = text.replace(name, value)
    command, *words = shlex.split(text)
    assert command == "meshwright", f"{card.name}: {card.use}"
    return words


@pytest.mark.parametrize("card", BUILT, ids=lambda card: card.name)
def test_the_command_on_the_card_runs(
    card: SystemCard, run: Runner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = rough_profile().tables
    gathers = dict.fromkeys(("all_gather", "reduce_scatter"), tables["all_reduce"])
    rough_profile(tables={**tables, **gathers}).save(cache / "meshwright" / "profile.json")
    monkeypatch.chdir(tmp_path)
    words = words_of(card)
    if VALUES["PLAN"] in words:
        job = ("gpt2", "1x4xMI300X", "--global-batch", "8", "--seq", "128", "--extrapolate")
        assert run("plan", *job, "-o", VALUES["PLAN"]).code == 0
    if words[0] != "plan":
        assert run(*words).code == 0
        return
    assert run(*words, "-o", "found.toml").code == 0
    found = Plan.load("found.toml")
    for pair in words[words.index("--fix") + 1].split(",") if "--fix" in words else ():
        name, _, value = pair.partition("=")
        assert str(getattr(found, name)).startswith(value)  # a slot may say its choice behind the name
