"""/v1/messages: a conversation in Anthropic's form: blocks in messages, and blocks in the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from meshwright.serving.api.body.chat import MOST_TOOLS, FunctionName
from meshwright.serving.api.body.value import (
    MOST_STOPS,
    Answered,
    Body,
    Count,
    Name,
    Real,
    Some,
    Switch,
    Told,
    Whole,
)

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageBlock(Body):
    """A part of a message: text, a call that the model made, or what a call gave. Everything else is refused by its name, and
    its fields are not looked at; so are hints for a cache, which is kept without them."""

    model_config = {"extra": "allow"}

    type: Name
    text: str | None = None
    id: Name | None = None
    name: FunctionName | None = None
    input: dict[str, JsonValue] | None = None
    tool_use_id: Name | None = None
    content: str | list[MessageBlock] | None = None
    is_error: Switch | None = None


class ConversationMessage(Body):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: str | Some[MessageBlock]


class MessageTool(Body):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, JsonValue]
    cache_control: dict[str, JsonValue] | None = None


class MessageToolChoice(Body):
    """Whether it has to call one, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: Switch | None = None


class MessageMetadata(Body):
    """Whose request it is."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class MessageThinking(Body):
    """Thinking apart from the answer is not told here; a model that thinks does so in its text."""

    type: Literal["disabled"]


class CountBody(Body):
    """What /v1/messages/count_tokens counts."""

    model: Name
    messages: Some[ConversationMessage]
    system: str | list[MessageBlock] | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: MessageThinking | None = None


class MessageBody(CountBody):
    """A conversation, and how to go on. `timeout_s` is an extension."""

    max_tokens: Count
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS)] | None
    ) = None
    stream: Switch | None = None
    temperature: Annotated[Real, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[Real, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[Whole, Field(ge=0)] | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    timeout_s: Annotated[Real, Field(gt=0.0)] | None = None


class AnsweredBlock(Answered):
    """Text that the model wrote, or a call that it makes."""

    type: Literal["text", "tool_use"]
    text: Told[str] = None
    id: Told[str] = None
    name: Told[str] = None
    input: Told[Any] = None


class MessageUsage(Answered):
    """How many tokens it took."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class MessageAnswer(Answered):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnsweredBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class CountAnswer(Answered):
    """Tokens of a conversation as the model's prompt."""

    input_tokens: int


class MessageErrorDetail(Answered):
    """What was wrong."""

    type: str
    message: str


class MessageError(Answered):
    """The whole body of an answer that is an error."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
