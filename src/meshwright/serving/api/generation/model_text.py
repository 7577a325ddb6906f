"""What the API asks of a model's text: tokens of a text, text of tokens as they come, and chats as prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class GrowingText(Protocol):
    """The text of one output while its tokens come."""

    @property
    def stopped(self) -> str | None:
        """The stop text that ended it; None: none yet."""
        ...

    def add(self, token_id: int) -> str:
        """Text that is certain by now: no half characters, and nothing that may yet become a stop text."""
        ...

    def end(self) -> str:
        """What was held back, where no more tokens come."""
        ...


class ModelText(Protocol):
    """Text and tokens of one model. Methods may be called from several threads."""

    vocabulary_size: int
    chat_template: str  # its source; "": the model has none

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """Tokens of a text; special tokens are those that the model expects around every text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text."""
        ...

    def growing(self, stop: Sequence[str]) -> GrowingText:
        """The text of a new output, which ends before any of these."""
        ...

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], adds_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> list[int]:  # fmt: skip
        """Tokens of a conversation in the model's own form. Raises SpecError where its template refuses it."""
        ...
