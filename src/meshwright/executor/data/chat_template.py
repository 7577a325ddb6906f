"""Conversations as text, by the Jinja template that a tokenizer's folder has, with the places of what the assistant says.

A template may mark what the assistant says itself ({% generation %} .. {% endgeneration %}, as transformers reads it). Of
one that does not, an answer is what a conversation has more with it than without it, behind the words that ask for one.
Templates run in Jinja's sandbox, which sees no attribute of Python and no file. They are told no time of day, so that a
conversation is the same text tomorrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from meshwright.executor.data.tokenization import TOKENIZER_SETTINGS
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

TEMPLATE_FILE = "chat_template.jinja"
ASSISTANT = "assistant"
MARKS = ("\ue000", "\ue001")  # before and behind what the assistant says: of Unicode's area for private use
Message = Mapping[str, Any]


class AnswerSpan(NamedTuple):
    """Characters from `begin` to before `end`."""

    begin: int
    end: int


class RenderedChat(NamedTuple):
    """A conversation as text, and where the assistant speaks in it, in order."""

    text: str
    answers: tuple[AnswerSpan, ...]


class ChatTemplate:
    """A template and the words it may use; `text` and `words` tell it from others."""

    def __init__(self, text: str, place: str, words: Mapping[str, str]) -> None:
        """`place`: where it stands, for messages. `words`: bos_token and others by name.

        Raises SpecError where it is no template.
        """
        self.text, self.place, self.words = text, place, dict(words)
        try:
            self._template = _environment().from_string(text)
        except TemplateError as error:
            raise SpecError(
                f"{place} is no chat template: {error}",
                allowed="a template of Jinja, as transformers reads it",
            ) from error

    @classmethod
    def of_folder(cls, folder: Path, file: Path | None = None) -> ChatTemplate:
        """Of a tokenizer's folder: chat_template.jinja, else `chat_template` of its settings (of several the one called
        default); or of a `file`. Raises SpecError where there is none.
        """
        settings = _settings(folder / TOKENIZER_SETTINGS)
        words = {name: _content(said) for name, said in settings.items() if name.endswith("_token")}
        words = {name: said for name, said in words.items() if said}
        beside = folder / TEMPLATE_FILE if file is None else file
        if file is not None or beside.is_file():
            return cls(_read(beside), str(beside), words)
        found = settings.get("chat_template")
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default")
        if not isinstance(found, str):
            raise SpecError(
                f"{folder} has no chat template",
                allowed=f"{TEMPLATE_FILE} in the tokenizer's folder, or chat_template in its {TOKENIZER_SETTINGS}",
                next="name one with --chat-template FILE",
            )
        return cls(found, f"{folder / TOKENIZER_SETTINGS}, chat_template", words)

    def rendered(self, messages: Sequence[Message], tools: Any, place: str) -> RenderedChat:
        """A conversation as text. `tools`: what the assistant may call, as the template wants it; None: nothing.

        Raises SpecError where the template refuses it, or does not let an answer be found.
        """
        whole = self._run(messages, tools, place)
        if MARKS[0] in whole:
            return _unmarked(whole)
        return RenderedChat(whole, tuple(self._answers(messages, tools, whole, place)))

    def _answers(
        self, messages: Sequence[Message], tools: Any, whole: str, place: str
    ) -> Iterator[AnswerSpan]:
        """What each answer adds to the conversation before it."""
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            asked = self._run(messages[:number], tools, place, add_generation_prompt=True)
            answered = self._run(messages[: number + 1], tools, place)
            if not (whole.startswith(answered) and answered.startswith(asked)):
                raise SpecError(
                    f"{place}: {self.place} writes message {number + 1} otherwise where it is asked for, or where more "
                    "follows, so nobody can tell which tokens are the answer",
                    allowed="a template that only adds, or one that marks answers: {% generation %} .. {% endgeneration %}",
                    next="give one with --chat-template FILE",
                )
            yield AnswerSpan(len(asked), len(answered))

    def _run(
        self, messages: Sequence[Message], tools: Any, place: str, *, add_generation_prompt: bool = False
    ) -> str:
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **self.words
            )  # fmt: skip
        # a template may add a number to a text, or ask for what a message has not
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise SpecError(
                f"{place}: {self.place} cannot write these messages: {error}",
                allowed="conversations of the kind that the template is for",
            ) from error


class GenerationBlock(Extension):
    """Marks what stands in {% generation %} .. {% endgeneration %}."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's own nodes with a mark before and behind them."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        first, last = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in MARKS)
        return [first, *body, last]


def _environment() -> ImmutableSandboxedEnvironment:
    """As transformers has it, without a clock."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _json_text
    environment.globals["raise_exception"] = _refuse
    return environment


def _json_text(value: Any, ensure_ascii: bool = False, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **more)


def _refuse(message: str) -> NoReturn:
    """What templates call where they do not like a conversation."""
    raise TemplateError(message)


def _unmarked(marked: str) -> RenderedChat:
    """The text without marks, and what stood between them."""
    texts, answers, place = [], [], 0
    for number, part in enumerate(marked.split(MARKS[0])):
        inside, _, behind = part.partition(MARKS[1]) if number else ("", "", part)
        if number:
            answers.append(AnswerSpan(place, place + len(inside)))
        texts += [inside, behind]
        place += len(inside) + len(behind)
    return RenderedChat("".join(texts), tuple(answers))


def _settings(path: Path) -> Mapping[str, Any]:
    """A tokenizer_config.json; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        found = json_of(_read(path))
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    """A token of the settings: a string, or an object with the string as content."""
    said = token.get("content") if isinstance(token, dict) else token
    return said if isinstance(said, str) else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}", allowed="a file of text") from error
