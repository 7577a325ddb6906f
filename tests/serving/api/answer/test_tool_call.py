"""Calls of tools are found in the form that a chat template teaches, and text that is none stays text."""

from __future__ import annotations

import json

import pytest

from meshwright.serving.api.answer.tool_call import FoundCall, reader_of

NAMES = ("look", "go")
TEMPLATES = {
    "tagged": "{{ '<tool_call>' }}",
    "bare": """{{ '<|python_tag|>' }}{{ '"parameters"' }}""",
    "marked": "{{ '[TOOL_CALLS]' }}",
}
LOOK, GO = FoundCall("look", '{"at": "où"}'), FoundCall("go", "{}")
A_LOOK = '{"name": "look", "arguments": {"at": "où"}}'
A_GO = '{"name": "go", "parameters": {}}'
CALLS = [
    ("tagged", f"<tool_call>\n{A_LOOK}\n</tool_call>", "", [LOOK]),
    (
        "tagged",
        f"I see. <tool_call>{A_LOOK}</tool_call>\n<tool_call>{A_GO}</tool_call>",
        "I see. ",
        [LOOK, GO],
    ),
    ("bare", f" {A_GO}", "", [GO]),
    ("marked", f"[TOOL_CALLS] [{A_LOOK}, {A_GO}]", "", [LOOK, GO]),
    ("marked", '[TOOL_CALLS]look[ARGS]{"at": "où"}[TOOL_CALLS]go[ARGS]{}', "", [LOOK, GO]),
    ("marked", 'Well: [TOOL_CALLS]look{"at": "où"}', "Well: ", [LOOK]),
]
TEXTS = [
    ("tagged", "a < b, <tool_ but no call"),
    ("tagged", '<tool_call>{"name": "look", "arguments": {</tool_call>'),
    ("tagged", f"<tool_call>{A_LOOK}</tool_call><tool_call>none</tool_call>"),
    ("bare", "No call {}"),
    ("bare", '{"name": "other", "parameters": {}}'),
    ("marked", "[TOOL_ no call"),
    ("marked", '[TOOL_CALLS][{"name": "look"}]'),
    ("marked", "[TOOL_CALLS]other[ARGS]{}"),
    ("marked", "[TOOL_CALLS] [1, 2"),
    ("marked", "[TOOL_CALLS][" * 3000),
]


def read(form: str, text: str, size: int) -> tuple[str, list[FoundCall]]:
    """What comes of a text in pieces of a size."""
    reader = reader_of(TEMPLATES[form], NAMES)
    assert reader is not None
    said = "".join(reader.add(text[begin : begin + size]) for begin in range(0, len(text), size))
    rest, calls = reader.end()
    return said + rest, calls


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("form", "text", "said", "calls"), CALLS)
def test_calls_are_found(form, text, said, calls, size) -> None:
    assert read(form, text, size) == (said, calls)
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("form", "text"), TEXTS, ids=lambda each: each[:24])
def test_what_is_no_call_is_text(form, text, size) -> None:
    assert read(form, text, size) == (text, [])


def test_a_template_that_teaches_no_known_form_has_no_reader() -> None:
    assert reader_of("{{ messages }}", NAMES) is None
