"""What is served: a model's name, its text, and the service that computes its tokens."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.serving.api.error import BAD_REQUEST, NOT_FOUND, ApiError, told
from meshwright.serving.api.generation.generation import Generation, GenerationObserver, Unobserved
from meshwright.serving.api.generation.model_text import ModelText
from meshwright.serving.api.limit import DEFAULT_LIMITS, ServerLimits
from meshwright.serving.engine.served_adapters import ServedAdapters, name_of_key
from meshwright.serving.loop.service import Service
from meshwright.serving.request.request import Request
from meshwright.serving.stored.pooling import Pooling
from meshwright.specs.error import MeshwrightError, UnknownNameError


@dataclass(frozen=True)
class ModelService:
    """A model that answers.

    Args:
        name: under which clients ask for it.
        service: computes tokens.
        text: its tokenizer and chat template.
        max_model_tokens: of a prompt and its output together.
        vocabulary_size: of the model, which may have tokens that its tokenizer does not.
        check_grammar: raises SpecError where outputs cannot be held to a grammar.
        adapters: LoRA adapters, which clients ask for as for a model.
        adapters_folder: from below which adapters may be loaded over HTTP, resolved; None: from nowhere.
        limits: of one request.
        pooling: how texts become vectors; None: they do not.
        observer: is told how generations go.
        created_s: when it was loaded, seconds since 1970.
    """

    name: str
    service: Service
    text: ModelText
    max_model_tokens: int
    vocabulary_size: int
    check_grammar: Callable[[str], None]
    adapters: ServedAdapters = field(default_factory=ServedAdapters)
    adapters_folder: Path | None = None
    limits: ServerLimits = DEFAULT_LIMITS
    observer: GenerationObserver = field(default_factory=Unobserved)
    pooling: Pooling | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for."""
        return (self.name, *self.adapters.names)

    def adapter_of(self, name: str) -> str:
        """The key of the adapter that a model's name asks for; "" is the model itself. Raises ApiError."""
        if name == self.name:
            return ""
        try:
            return self.adapters.key_of(name)
        except UnknownNameError:
            raise self._unknown(name) from None

    def room_behind(self, num_prompt_tokens: int, asked: int | None, param: str = "max_tokens") -> int:
        """How many tokens may follow a prompt, at most as many as were asked for. Raises ApiError where none may."""
        if num_prompt_tokens == 0:
            raise ApiError(BAD_REQUEST, "the prompt is empty; a token at least is needed", param="prompt")
        room = self.max_model_tokens - num_prompt_tokens
        if room < (asked or 1):
            raise ApiError(
                BAD_REQUEST,
                f"the prompt has {num_prompt_tokens} tokens and {asked or 1} are to follow; {self.name} takes "
                f"{self.max_model_tokens} together",
                param=param if room >= 1 else "prompt", code="context_length_exceeded",
            )  # fmt: skip
        return asked or room

    def check_tokens(self, token_ids: Iterable[int], param: str) -> None:
        """Raises ApiError where one is not of the vocabulary."""
        largest = max(token_ids, default=0)
        if largest >= self.vocabulary_size:
            said = f"token {largest}; {self.name} has tokens 0 to {self.vocabulary_size - 1}"
            raise ApiError(BAD_REQUEST, said, param=param)

    async def begin(self, request: Request, timeout_s: float | None) -> Generation:
        """Submit a request. Raises ApiError where it is refused."""
        seconds = min(timeout_s or self.limits.timeout_s, self.limits.timeout_s)
        self.check_tokens(request.prompt or (), "prompt")
        try:
            if request.sampling.grammar:
                await asyncio.to_thread(self.check_grammar, request.sampling.grammar)
            if not request.adapter:
                return Generation(self.service, self.text, request, seconds, self.observer)
            return self._adapted(request, seconds)
        except MeshwrightError as error:
            raise told(error) from error

    def _adapted(self, request: Request, seconds: float) -> Generation:
        """One that holds its adapter for as long as it is under way. Raises ApiError where that has been unloaded."""
        key = request.adapter
        try:
            self.adapters.hold(key)
        except UnknownNameError:
            raise self._unknown(name_of_key(key)) from None
        try:
            return Generation(
                self.service, self.text, request, seconds, self.observer, lambda: self.adapters.release(key)
            )
        except BaseException:
            self.adapters.release(key)
            raise

    def _unknown(self, name: str) -> ApiError:
        return ApiError(
            NOT_FOUND, f"there is no model named {name[:80]!r}; allowed: {', '.join(self.names)}", param="model",
            code="model_not_found",
        )  # fmt: skip


def new_id(kind: str) -> str:
    """A name for an answer, which no other one has: "cmpl-" and 32 digits."""
    return f"{kind}-{uuid.uuid4().hex}"
