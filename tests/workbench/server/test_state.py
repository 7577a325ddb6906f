"""States as plans, and plans as states: what words say, what a plan that was found says beside them."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from tests.workbench.server.client import STATE

from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import asked_of, words_of


@pytest.mark.parametrize("word", [{"precision": "fp32"}, {"offload": "optimizer"}])
def test_what_was_found_does_not_hide_a_word_that_changes(word: dict[str, str]) -> None:
    session = Session()
    plan = asked_of(STATE, session).plan().changed(overlap=())
    words = dict(parse_qsl(words_of(plan, STATE, session)))
    assert asked_of(words, session).plan() == plan
    changed = asked_of({**words, **word}, session).plan()
    assert changed.overlap == () and changed != plan
    assert changed.dtype == ("float32" if "precision" in word else plan.dtype)
    assert len(changed.passes) == ("offload" in word)


def test_words_say_how_devices_share_a_sequence() -> None:
    """In the words of the plan's own fields; where the state says nothing, as in the plan that was found."""
    session, state = Session(), {**STATE, "pp": "1", "tp": "1", "cp": "4", "zero": "3"}
    inside = asked_of(
        {**state, "context": "ring", "token_layout": "contiguous", "ulysses": "2"}, session
    ).plan()
    assert (inside.context, inside.token_layout, inside.ulysses) == ("ring", "contiguous", 2)
    gathered = asked_of({**state, "context": "all_gather"}, session).plan()
    words = dict(parse_qsl(words_of(gathered, state, session)))
    assert asked_of(words, session).plan() == gathered
    silent = {
        word: value for word, value in words.items() if word not in ("context", "token_layout", "ulysses")
    }
    assert asked_of(silent, session).plan() == gathered, "an older link says it by its base"
    assert asked_of({**words, "context": "ulysses"}, session).plan().context == "ulysses"
    alone = asked_of({**words, "cp": "1", "ulysses": "2"}, session).plan()
    assert (alone.cp, alone.context, alone.ulysses) == (1, "ring", 1)
    with pytest.raises(UnknownNameError, match="ring"):
        asked_of({**state, "context": "rings"}, session).plan()
    with pytest.raises(PlanError, match="divides"):
        asked_of({**state, "ulysses": "3"}, session).plan()
