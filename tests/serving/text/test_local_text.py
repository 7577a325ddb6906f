"""Chats as prompts: as the template says, and nothing that a template does harms more than its own text."""

from __future__ import annotations

import json
import logging
import os
import signal
from datetime import datetime

import pytest
from tests.serving.text.text_folders import BEGIN, END, SETTINGS, TEMPLATE, write_folder
from tokenizers import Tokenizer

from meshwright.serving.confined.confined_process import AnswerBounds
from meshwright.serving.text.chat_writer import ChatWriter
from meshwright.serving.text.local_text import LocalText
from meshwright.serving.text.template_source import TemplateSource
from meshwright.serving.text.tokenizer import ByteTokenizer
from meshwright.specs.error import SpecError

CHAT = [{"role": "user", "content": "the cat"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
BOUNDS = AnswerBounds(seconds=0.5, characters=1000, memory_bytes=600 << 20)
# A template for every kind of chat, by the text of its message.
BOMBS = {
    "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ n ** (n ** n) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "string": "{{ 'a' * n ** 11 }}",
    "join": "{% for a in range(90000) %}{{ 'aaaaaaaa' }}{% endfor %}",
    "list": "{% set ns = namespace(a=[1]) %}{% for b in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "attribute": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "refusal": "{{ raise_exception('roles must alternate') }}",
    "missing": "{{ messages[7].content.strip() }}",
    "include": "{% include 'secret' %}",
}
SAID = {
    "loop": "longer than 0.5 s", "power": "memory|longer", "string": "memory", "list": "memory|longer",
    "join": "more than 1000 characters", "attribute": "unsafe", "refusal": "roles must alternate",
    "recursion": "recursion depth", "missing": "no element 7", "include": "loader",
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    found = LocalText.of_folder(write_folder(tmp_path_factory.mktemp("model"), "byte level"))
    yield found
    found.close()


def test_a_chat_is_the_tokens_of_its_template(text) -> None:
    said = f"{BEGIN}user: the cat{END}"
    assert text.chat(CHAT) == text.encode(said + "assistant: ", adds_special=False)
    assert text.chat(CHAT, adds_prompt=False) == text.encode(said, adds_special=False)
    with_tools = text.encode(said + json.dumps(TOOLS), adds_special=False)
    assert text.chat(CHAT, TOOLS, adds_prompt=False) == with_tools
    assert text.chat_template == TEMPLATE and not text.is_plain


def test_what_a_caller_adds_for_the_template_replaces_nothing_of_ours(text) -> None:
    forged = {"messages": [], "add_generation_prompt": False, "bos_token": "x", "tools": TOOLS}
    assert text.chat(CHAT, values=forged) == text.chat(CHAT)


def test_growing_text_has_no_special_tokens(text) -> None:
    growing = text.growing(["sat"])
    ids = text.encode(f"cat{END} on sat on", adds_special=False)
    assert "".join(map(growing.add, ids)) + growing.end() == "cat on " and growing.stopped == "sat"


def test_marks_of_calls_are_shown(tmp_path) -> None:
    folder = write_folder(tmp_path, "byte level")
    file = folder / "tokenizer.json"
    library = Tokenizer.from_file(str(file))
    library.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    library.save(str(file))
    text = LocalText.of_folder(folder)
    growing = text.growing()
    ids = text.encode(f"[TOOL_CALLS]look[ARGS]{{}}{END}", adds_special=False)
    assert "".join(map(growing.add, ids)) == "[TOOL_CALLS]look[ARGS]{}" and text.decode(ids) == "look{}"
    text.close()


def test_a_folder_without_template_writes_plainly_and_says_so(tmp_path, caplog) -> None:
    folder = write_folder(tmp_path, "byte level", {"eos_token": END})
    with caplog.at_level(logging.WARNING):
        plain = LocalText.of_folder(folder)
        assert plain.is_plain and not caplog.text  # it matters to those who chat
        assert [plain.decode(plain.chat(CHAT)) for _ in range(2)] == ["user: the cat\nassistant:"] * 2
    assert caplog.text.count("has no chat template: chats are written as lines") == 1
    plain.close()


def test_a_template_that_cannot_be_read_is_not_a_missing_one(tmp_path) -> None:
    folder = write_folder(tmp_path, "byte level", {**SETTINGS, "chat_template": "{% if %}"})
    with pytest.raises(SpecError, match="is no chat template: Expected an expression"):
        LocalText.of_folder(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(SpecError, match="cannot be read"):
        LocalText.of_folder(folder)


@pytest.fixture(scope="module")
def writer():
    """Its template is the bomb that the first message names."""
    cases = "".join(f"{{% elif messages[0].content == '{name}' %}}{bomb}" for name, bomb in BOMBS.items())
    whole = "{% set n = messages | length * 9 %}{% if false %}" + cases + "{% else %}fine{% endif %}"
    found = ChatWriter(TemplateSource(whole, "it", {}), BOUNDS)
    yield found
    found.close()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_told_and_the_next_chat_is_written(writer, name) -> None:
    with pytest.raises(SpecError, match=f"cannot write these messages: .*({SAID[name]})"):
        writer.write([{"role": "user", "content": name}])
    assert writer.write(CHAT) == "fine"


@pytest.mark.parametrize("constant", ["{{ 9 ** (9 ** 9) }}", "{{ ('a' * 10 ** 10)[0] }}"])
def test_a_bomb_of_constants_goes_off_within_the_bounds(constant) -> None:
    """Jinja works out constants when it reads a template."""
    with pytest.raises(SpecError, match="memory|longer than 0.5 s"):
        ChatWriter(TemplateSource(constant, "it", {}), BOUNDS).write(CHAT)


def test_a_process_that_dies_is_replaced(writer) -> None:
    assert writer.write(CHAT) == "fine"
    os.kill(writer._process._process.pid, signal.SIGKILL)
    with pytest.raises(SpecError, match="its process ended"):
        writer.write(CHAT)
    assert writer.write(CHAT) == "fine"


def test_large_chats_pass_and_deep_ones_are_refused(writer) -> None:
    assert writer.write([{"role": "user", "content": "é" * 300_000}]) == "fine"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SpecError, match="nested too deep"):
        writer.write([{"role": "user", "content": deep}])
    assert writer.write(CHAT) == "fine"


def test_templates_know_the_day_and_what_the_assistant_says_itself() -> None:
    template = "{{ strftime_now('%Y') }}{% generation %} a{% endgeneration %}"
    writer = ChatWriter(TemplateSource(template, "it", {}))
    assert writer.write(CHAT) in {f"{datetime.now().year + late} a" for late in (0, -1)}
    writer.close()


def test_bytes_chat_plainly() -> None:
    text = LocalText(ByteTokenizer())
    assert bytes(text.chat([{"role": "user", "content": None}])) == b"user: \nassistant:"
    text.close()
