"""/v1/models, /tokenize, /detokenize: what is served, and what its tokens are."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from meshwright.serving.api.body.chat import ChatMessage
from meshwright.serving.api.body.value import Answered, Body, Name, Some, Switch, TokenId, Told


class ModelCard(Answered):
    """A model that is served; an adapter has the model below it as `parent`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "meshwright"
    root: Told[str] = None
    parent: Told[str] = None
    max_model_len: int | None = None
    vocab_size: int | None = None


class ModelList(Answered):
    """Every model that is served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeBody(Body):
    """A text, or the messages of a chat."""

    model: Name | None = None
    prompt: str | None = None
    messages: Some[ChatMessage] | None = None
    add_special_tokens: Switch = True
    add_generation_prompt: Switch = True
    return_token_strs: Switch | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages")
        return self


class TokenizeAnswer(Answered):
    """Its tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Told[list[str]] = None


class DetokenizeBody(Body):
    """Tokens."""

    model: Name | None = None
    tokens: list[TokenId]


class DetokenizeAnswer(Answered):
    """Their text."""

    prompt: str


class HealthAnswer(Answered):
    """Is the server there, does it take requests, and what is it doing?"""

    status: Literal["ok", "ready", "draining", "failed"]
    num_running: int
    num_waiting: int
