"""Chats as text, by a template in a process of its own: one that loops, grows or breaks harms nobody and is told by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.serving.confined.confined_process import AnswerBounds, ConfinedProcess
from meshwright.serving.text.template_source import TemplateSource

WORKER_MODULE = "meshwright.serving.text.template_worker"
# For a folder without a template: a model that was never taught one.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatWriter:
    """Writes chats. Threads wait for each other."""

    def __init__(self, source: TemplateSource, bounds: AnswerBounds | None = None) -> None:
        """Starts the process. Raises SpecError where `source` is no template."""
        self.source = source
        said = f"{source.place} is no chat template"
        self._process = ConfinedProcess(WORKER_MODULE, {"text": source.text}, bounds or AnswerBounds(), said)

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        adds_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as text.

        Args:
            messages, tools: as the template reads them.
            adds_prompt: does it end with the words that ask for an answer?
            values: more for the template; what is said here and in the tokenizer's settings wins.

        Raises SpecError where the template refuses them, or is beyond a bound.
        """
        told = {
            **(values or {}), "documents": None, **self.source.words,
            "messages": messages, "tools": tools or None, "add_generation_prompt": adds_prompt,
        }  # fmt: skip
        return self._process.ask(told, "the chat template cannot write these messages")

    def close(self) -> None:
        """End the process."""
        self._process.close()
