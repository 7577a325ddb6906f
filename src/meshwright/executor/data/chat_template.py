"""Conversations as text, by the Jinja template that a tokenizer's folder has, with the places of what the assistant says.

A template may mark what the assistant says itself ({% generation %} .. {% endgeneration %}, as transformers reads it). Of
one that does not, an answer is what a conversation has more with it than without it, behind the words that ask for one.
Templates run in Jinja's sandbox, which sees no attribute of Python and no file. They are told no time of day, so that a
conversation is the same text tomorrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from meshwright.serving.text.template_environment import TEMPLATE_ERRORS, template_environment
from meshwright.serving.text.template_source import template_source
from meshwright.specs.error import SpecError

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
            self._template = template_environment(MARKS).from_string(text)
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
        return cls(*template_source(folder, file))

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
        except TEMPLATE_ERRORS as error:
            raise SpecError(
                f"{place}: {self.place} cannot write these messages: {error}",
                allowed="conversations of the kind that the template is for",
            ) from error


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
