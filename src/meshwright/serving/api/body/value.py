"""What fields of bodies are made of: numbers that are not read from texts, and bodies that refuse what they do not know."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

MOST_CHOICES = 128  # OpenAI's own bound of n
MOST_LOGPROBS = 20  # OpenAI's own bound of top_logprobs
MOST_STOPS = 16  # OpenAI takes 4
MOST_SEED = 2**63 - 1
MOST_PRIORITY = 2**31 - 1
MOST_TOKEN = 2**31 - 1

Whole = Annotated[int, Strict()]
Switch = Annotated[bool, Strict()]
Real = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Count = Annotated[Whole, Field(ge=1, le=MOST_TOKEN)]
TokenId = Annotated[Whole, Field(ge=0, le=MOST_TOKEN)]
Seed = Annotated[Whole, Field(ge=-MOST_SEED, le=MOST_SEED)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Element = TypeVar("Element")
Some = Annotated[list[Element], Field(min_length=1)]


def _in_one_sentence(given: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """A prompt as it is read; what is none is told once, not once for every form that a prompt may have."""
    try:
        return read(given)
    except ValidationError:
        raise PydanticCustomError(
            "no_prompt",
            "{what}; allowed: a text, a list of token ids, or several of either; no empty list",
            {"what": "an empty list" if given == [] else "no prompt"},
        ) from None


Prompts = Annotated[str | Some[TokenId] | Some[str] | Some[Some[TokenId]], WrapValidator(_in_one_sentence)]
# A field of an answer that is left out where it says nothing.
Told = Annotated[Element | None, Field(default=None, exclude_if=lambda value: value is None)]


class Body(BaseModel):
    """A body, or a part of one, that a client sends. A field that it does not know is refused: a misspelt one would
    silently do nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def field_names() -> list[str]:
    """Of all bodies that are known, sorted."""
    bodies, names = [Body], set[str]()
    while bodies:
        bodies += (body := bodies.pop()).__subclasses__()
        names |= body.model_fields.keys()
    return sorted(names)


class Answered(BaseModel):
    """A body, or a part of one, that a client is sent."""

    model_config = ConfigDict(frozen=True)
