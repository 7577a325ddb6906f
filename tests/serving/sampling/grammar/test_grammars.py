"""Outputs match their grammar, and no grammar that a client can write harms more than its own request."""

from __future__ import annotations

import json
import os
import re
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.serving.confined.confined_process import AnswerBounds
from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.sampling.grammar.grammar_text import JSON_OBJECT
from meshwright.serving.sampling.grammar.grammars import MOST_CHARACTERS, MOST_KEPT, Grammars
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.serving.sampling.output_end import is_last
from meshwright.serving.sampling.sampler import Sampler
from meshwright.serving.sampling.token_adjustment import NothingAllowed
from meshwright.specs.error import SpecError

WORDS = ['{"', '": ', '"name', "true", "12", '", "', "é".encode()[:1], b"a\xc3", "no", "yes", "  "]
PADDING = 5  # tokens that only the model has


class SmallVocabulary:
    """All bytes, some words that cross their borders, and an end."""

    tokens = [bytes([value]) for value in range(256)]
    tokens += [word if isinstance(word, bytes) else word.encode() for word in WORDS] + [b"<end>"]
    vocabulary_size = len(tokens)
    end_ids = (vocabulary_size - 1,)
    special_ids = frozenset(end_ids)

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]


VOCABULARY = SmallVocabulary()
V = VOCABULARY.vocabulary_size + PADDING
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-c]{1,4}$"},
        "count": {"type": "integer", "minimum": 3, "maximum": 40},
        "kinds": {"type": "array", "items": {"enum": ["x", "yes", None]}, "maxItems": 3},
    },
    "required": ["name", "count", "kinds"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars():
    found = Grammars(VOCABULARY, V, AnswerBounds(seconds=1.0))
    yield found
    found.close()


def said_by_noise(grammars: Grammars, grammar: str, seed: int, most: int = 400) -> str | None:
    """The output of a model whose logits are noise; None: it did not end."""
    parameters = SamplingParameters(seed=seed, grammar=grammar)
    sampler, noise = Sampler(V), np.random.default_rng(seed)
    row = np.array([sampler.add(parameters, mask=grammars.mask_of(parameters))])
    output = b""
    for _ in range(most):
        token = int(sampler.draw(row, noise.normal(scale=2.0, size=(1, V)).astype(np.float32)).token_ids[0])
        assert token != NO_TOKEN
        if is_last(token, parameters, VOCABULARY.end_ids):
            return output.decode()
        output += VOCABULARY.tokens[token]
    return None


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1))
def test_what_noise_says_matches_its_schema(grammars, seed) -> None:
    found = json.loads(said_by_noise(grammars, json.dumps(SCHEMA), seed) or "")
    assert set(found) == {"name", "count", "kinds"} and 3 <= found["count"] <= 40
    assert re.fullmatch("[a-c]{1,4}", found["name"])
    assert len(found["kinds"]) <= 3 and all(kind in ("x", "yes", None) for kind in found["kinds"])


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ("regex:(é|yes){2,5}[0-9]+x", "(é|yes){2,5}[0-9]+x"),
        ('lark:start: greeting " " name\ngreeting: "no" | "yes"\nname: /[a-z]{2,6}/', "(no|yes) [a-z]{2,6}"),
        ('gbnf:root ::= "yes" item\nitem ::= [0-9] | "no"', "yes([0-9]|no)"),
    ],
)
def test_what_noise_says_matches_other_kinds(grammars, grammar, pattern) -> None:
    said = [said_by_noise(grammars, grammar, seed) for seed in range(8)]
    assert all(re.fullmatch(pattern, each) for each in said if each is not None) and len(set(said)) > 2


def test_any_object_is_an_object_and_spaces_do_not_go_on_for_ever(grammars) -> None:
    said = [said_by_noise(grammars, JSON_OBJECT, seed) for seed in range(5)]
    assert all(isinstance(json.loads(each), dict) for each in said if each is not None) and any(said)
    mask = grammars.mask_of(SamplingParameters(grammar=JSON_OBJECT))
    assert mask is not None
    mask.accept(ord("{"))
    for _ in range(1000):
        if not mask.allowed()[ord(" ")]:
            break
        mask.accept(ord(" "))
    assert mask.allowed()[ord('"')] and not mask.allowed()[ord(" ")]


def test_outputs_of_one_grammar_do_not_know_each_other(grammars) -> None:
    parameters = SamplingParameters(grammar="regex:ab|cd")
    one, other = grammars.mask_of(parameters), grammars.mask_of(parameters)
    assert one is not None and other is not None
    one.accept(ord("a"))
    assert np.flatnonzero(one.allowed()).tolist() == [ord("b")]
    assert np.flatnonzero(other.allowed()).tolist() == [ord("a"), ord("c")]
    one.accept(ord("b"))
    assert one.is_complete and np.flatnonzero(one.allowed()).tolist() == list(VOCABULARY.end_ids)
    assert not other.is_complete and len(other.allowed()) == V


def test_how_many_proposals_may_follow_is_asked_without_going_on(grammars) -> None:
    mask = grammars.mask_of(SamplingParameters(grammar="regex:ab[cd]"))
    a, b, c, d = (VOCABULARY.tokens.index(letter) for letter in (b"a", b"b", b"c", b"d"))
    mask.accept(a)
    assert [mask.num_allowed(each) for each in ([b, d], [b, a], [c], [b, c, d], [])] == [2, 1, 0, 2, 0]
    fork = mask.fork()
    fork.accept(b)
    assert (mask.num_allowed([b]), fork.num_allowed([b]), fork.num_allowed([c])) == (1, 0, 1)
    assert NothingAllowed(V).num_allowed([a]) == 0


def test_behind_a_token_that_does_not_match_nothing_is_allowed(grammars) -> None:
    mask = grammars.mask_of(SamplingParameters(grammar="regex:ab"))
    assert mask is not None
    mask.accept(ord("z"))
    assert not mask.allowed().any() and not mask.is_complete


# What has stopped servers is among these: a malformed type or pattern in a tool (CVE-2025-48944), an invalid regex.
WRONG = {
    json.dumps({"type": "strin"}): "Invalid type: strin",
    json.dumps({"type": "string", "pattern": "(["}): "unclosed character class",
    "regex:([": "unclosed character class",
    r"regex:(a)\1": "backreferences are not supported",
    "regex:(?=a)b": "look-around",
    "lark:start: foo": 'unknown name: "foo"',
    "lark:start: start start": "nothing matches it",
    "lark:%%%": "lexer error",
    "gbnf:root ::= (": "Expected ')'",
    "gbnf:root ::= other": "Rule 'other' not found",
    json.dumps({"$ref": "#/nowhere"}): "does not exist",
    json.dumps({"$ref": "http://example.com/schema.json"}): "does not fetch",
    json.dumps({"type": "integer", "minimum": 5, "maximum": 3}): "greater than maximum",
    "{": "EOF while parsing",
    '{"items":' * 5000 + "{}" + "}" * 5000: "recursion limit",
    json.dumps({"enum": ["a" * MOST_CHARACTERS]}): f"allowed: at most {MOST_CHARACTERS}",
}


@pytest.mark.parametrize(("grammar", "said"), WRONG.items(), ids=lambda text: text[:30])
def test_a_wrong_grammar_is_told_and_others_go_on(grammars, grammar, said) -> None:
    for _ in range(2):
        with pytest.raises(SpecError, match=re.escape(said)):
            grammars.check(grammar)
    assert said_by_noise(grammars, "regex:[ab]", 0) in ("a", "b")


@pytest.mark.parametrize(
    "bomb",
    [
        json.dumps({"type": "integer", "multipleOf": 999983}),  # 36 s and 440 MB, measured without bounds
        json.dumps({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 20)]}),
    ],
    ids=["multiple", "intersection"],
)
def test_a_bomb_is_given_up_and_others_go_on(grammars, bomb) -> None:
    with pytest.raises(SpecError, match="the json_schema cannot be used"):
        grammars.check(bomb)
    assert said_by_noise(grammars, "regex:[ab]", 0) in ("a", "b")


def test_a_grammar_under_trial_stops_nobody_who_has_one(grammars) -> None:
    """The loop that serves asks for masks while a client's bomb is tried."""
    grammars.check("regex:x")
    bomb = json.dumps({"type": "integer", "multipleOf": 999979})
    trial = threading.Thread(target=lambda: pytest.raises(SpecError, grammars.check, bomb))
    trial.start()
    for _ in range(50):
        assert grammars.mask_of(SamplingParameters(grammar="regex:x")) is not None
    assert trial.is_alive()
    trial.join()


def test_different_grammars_are_kept_up_to_a_number_and_nothing_is_written(
    grammars, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(MOST_KEPT + 20):
        grammars.check(f"regex:{number}")
    assert grammars.num_kept == MOST_KEPT
    assert not list(tmp_path.iterdir())
    assert said_by_noise(grammars, "regex:0", 0) == "0"


def test_a_process_that_dies_is_replaced(grammars) -> None:
    grammars.check("regex:alive")
    os.kill(grammars._process._process.pid, signal.SIGKILL)
    with pytest.raises(SpecError, match="its process ended"):
        grammars.check("regex:dead")
    grammars.check("regex:dead")


def test_a_request_without_grammar_starts_nothing() -> None:
    grammars = Grammars(VOCABULARY, V)
    assert grammars.mask_of(SamplingParameters()) is None and grammars._process is None


def test_a_model_without_an_end_cannot_end_a_grammar() -> None:
    endless = SmallVocabulary()
    endless.end_ids = ()
    with pytest.raises(SpecError, match="the model has no end of text"):
        Grammars(endless, V).check("regex:a")
