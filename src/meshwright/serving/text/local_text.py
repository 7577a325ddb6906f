"""The text of a model in a local folder: its tokenizer, its chat template, and outputs as they grow."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.serving.text.chat_writer import PLAIN_TEMPLATE, ChatWriter
from meshwright.serving.text.output_text import OutputText
from meshwright.serving.text.template_source import TemplateSource, found_template
from meshwright.serving.text.tokenizer import TextTokenizer, decoded, tokenizer_of

# Special tokens that are shown: they mark calls of tools, and without them nobody could tell a call from text (Mistral).
SHOWN = (b"[TOOL_CALLS]", b"[ARGS]")

logger = logging.getLogger(__name__)


class LocalText:
    """What a model reads and writes. Methods may be called from several threads; close it, for its process.

    Attributes:
        vocabulary_size: of the tokenizer.
        end_ids: tokens with which the model ends an output.
        chat_template: the template's source.
        is_plain: has the model no template of its own, so that chats are lines "role: text"?
    """

    def __init__(self, tokenizer: TextTokenizer, source: TemplateSource | None = None) -> None:
        """`source`: None writes chats plainly. Raises SpecError where it is no template."""
        self.tokenizer, self.is_plain, self._has_told = tokenizer, source is None, False
        self.vocabulary_size, self.end_ids = tokenizer.vocabulary_size, tokenizer.end_ids
        self._silent = frozenset(
            token for token in tokenizer.special_ids if tokenizer.token_bytes(token) not in SHOWN
        )
        plain = TemplateSource(PLAIN_TEMPLATE, "the plain template", {})
        self._writer = ChatWriter(source or plain)
        self.chat_template = self._writer.source.text

    @classmethod
    def of_folder(
        cls, folder: Path, template: Path | None = None, vocabulary_size: int | None = None
    ) -> LocalText:
        """Of a Hugging Face folder, or of a model of bytes.

        Args:
            template: a file with another chat template.
            vocabulary_size: of the model, where the caller knows it; else as config.json says.

        Raises SpecError where the tokenizer or the template cannot be read.
        """
        tokenizer = tokenizer_of(folder, vocabulary_size)
        source = found_template(folder, template)
        return cls(tokenizer, source)

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """Tokens of a text; with `adds_special` those that the model expects around every text, too. Raises SpecError."""
        return self.tokenizer.encode(text, adds_special)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens that are a whole text, without special ones."""
        return decoded(self.tokenizer, token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, a special one its name."""
        return self.tokenizer.token_bytes(token_id)

    def growing(self, stop: Sequence[str] = ()) -> OutputText:
        """The text of a new output, which ends before any of `stop`, without special tokens but `SHOWN`. Raises SpecError."""
        return OutputText(self._said, stop)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        adds_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Tokens of a conversation, as `ChatWriter.write`; the first that is written plainly is told. Raises SpecError."""
        if self.is_plain and not self._has_told:
            self._has_told = True
            logger.warning("the model has no chat template: chats are written as lines 'role: text'")
        return self.tokenizer.encode(self._writer.write(messages, tools, adds_prompt, values), False)

    def close(self) -> None:
        """End the process that writes chats."""
        self._writer.close()

    def _said(self, token_id: int) -> bytes:
        return b"" if token_id in self._silent else self.tokenizer.token_bytes(token_id)
