"""Every place that the taxonomy names is in the tree; the page is made from it; a model's commands fit the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import runner

from meshwright.catalog.slots import SLOTS
from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError
from meshwright.systems.moe.moe_inference_survey.card import named_share
from meshwright.systems.moe.moe_inference_survey.mechanism import TAXONOMY, Topic, is_there, page, usable

PAGE = Path(__file__).parents[4] / "docs" / "systems" / "moe_inference_survey.md"


@pytest.mark.parametrize("topic", TAXONOMY, ids=lambda topic: ", ".join(topic.heading))
def test_a_heading_has_code_that_is_there_or_a_reason(topic: Topic) -> None:
    assert topic.is_here != bool(topic.why_not)
    assert bool(topic.said) == bool(topic.use) == topic.is_here
    assert [code for code in topic.code if not is_there(code, tuple(SLOTS))] == []


def test_what_is_not_there_is_not_found() -> None:
    assert not is_there("systems/moe/nowhere.py:route", ())
    assert not is_there("executor/ops/expert/routing.py:nobody", ())
    assert not is_there("slot nothing", tuple(SLOTS)) and is_there("slot weights", tuple(SLOTS))


def test_every_level_of_the_reading_list_is_there_once() -> None:
    headings = [topic.heading for topic in TAXONOMY]
    assert len(set(headings)) == len(headings)
    assert {heading[0] for heading in headings} == {"model", "system", "hardware"}
    offloading = {heading[2] for heading in headings if heading[:2] == ("system", "expert offloading")}
    assert offloading == {"expert prefetching", "expert caching", "expert loading", "CPU assist"}
    assert [named_share(level) for level in ("model", "system", "hardware")] == [1.0] * 3


def test_the_page_is_made_from_it() -> None:
    """`print(page(), end="")`, written to it, makes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_commands_fit_the_model() -> None:
    """128 experts divide over 8 devices; eight of them a token in 48 layers; 60 experts divide over 6."""
    commands = " ".join(use for _, use in usable(load_model("qwen3-30b-a3b"), "qwen3-30b-a3b"))
    assert "ep=8" in commands and "slots=384" in commands and "MODEL" not in commands
    with pytest.raises(SpecError, match="no experts"):
        usable(load_model("llama-3.1-8b"), "llama-3.1-8b")


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    found = run("run", 'moe_inference_survey(model="mixtral-8x7b")')
    assert found.code == 0 and "expert_flow(slots=64, ahead=2)" in found.stdout, found.stderr
    assert run("run", 'moe_inference_survey(model="llama-3.1-8b")').code == 2


@pytest.mark.slow
def test_a_command_of_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        use
        for _, use in usable(load_model("mixtral-8x7b"), "mixtral-8x7b")
        if use.startswith("meshwright plan")
    }
    for command in commands:
        found = runner(capsys)(*command.split()[1:], "--json")
        assert found.code in (0, 3), found.stderr
