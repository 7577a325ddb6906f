"""What bodies of completions and chats share: how tokens are drawn, how many, how they are sent, and when it ends."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from meshwright.serving.api.body.value import (
    MOST_CHOICES,
    MOST_PRIORITY,
    MOST_STOPS,
    Answered,
    Body,
    Name,
    Real,
    Seed,
    Switch,
    TokenId,
    Told,
    Whole,
)  # fmt: skip

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
StopText = Annotated[str, Field(min_length=1)]


class StreamOptions(Body):
    """How a stream is sent: with `include_usage` its last chunk has the number of tokens."""

    include_usage: Switch = False


class JsonSchemaFormat(Body):
    """The schema that an output has to match."""

    name: Name
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: Switch | None = None


class ResponseFormat(Body):
    """What an output has to be: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema stands beside type json_schema, and nowhere else")
        return self


class SamplingBody(Body):
    """The fields that a completion and a chat share. Those below `user` are extensions, named as vLLM names them."""

    model: Name
    temperature: Annotated[Real, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[Real, Field(gt=0.0, le=1.0)] | None = None
    n: Annotated[Whole, Field(ge=1, le=MOST_CHOICES)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    presence_penalty: Annotated[Real, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[Real, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: dict[
        Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[Real, Field(ge=-100.0, le=100.0)]
    ] | None = None  # fmt: skip
    stream: Switch | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[Real, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[Real, Field(gt=0.0, le=10.0)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOPS)] | None = None
    ignore_eos: Switch = False
    return_token_ids: Switch | None = None
    priority: Annotated[Whole, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    timeout_s: Annotated[Real, Field(gt=0.0)] | None = None

    @model_validator(mode="after")
    def _streams_where_it_says_how(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options stands beside stream: true only")
        return self


class PromptDetails(Answered):
    """How many tokens of the prompt were computed before, for other requests."""

    cached_tokens: int = 0


class TokenUsage(Answered):
    """How many tokens a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Told[PromptDetails] = None
