"""/v1/chat/completions: the next message of a conversation, or calls of the tools that the client offers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from meshwright.serving.api.body.sampling import FinishReason, SamplingBody, TokenUsage
from meshwright.serving.api.body.value import (
    MOST_LOGPROBS,
    Answered,
    Body,
    Count,
    Name,
    Some,
    Switch,
    Told,
    Whole,
)

MOST_TOOLS = 128  # OpenAI's own bound
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]


class ContentPart(Body):
    """A part of a message. Text is taken; everything else is refused by its name, and its fields are not looked at."""

    model_config = {"extra": "allow"}

    type: Name
    text: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("a part of type text has a text")
        return self


class CalledFunction(Body):
    """Which function, and its arguments as JSON text."""

    name: FunctionName
    arguments: str


class ToolCall(Body):
    """A call of a tool in a message of the assistant."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    """A message of the conversation so far."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Some[ContentPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ValueError("a message has content; one of the assistant has content or tool_calls")
        return self


class OfferedFunction(Body):
    """A function that the model may call: its parameters are a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: Switch | None = None


class OfferedTool(Body):
    """A tool that the model may call."""

    type: Literal["function"]
    function: OfferedFunction


class NamedFunction(Body):
    """The name of a function."""

    name: FunctionName


class NamedTool(Body):
    """The one tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingBody):
    """A conversation. `chat_template_kwargs` is an extension, named as vLLM names it: plain values that the model's own chat
    template reads, such as enable_thinking.
    """

    messages: Some[ChatMessage]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: Switch | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: Switch | None = None
    chat_template_kwargs: dict[Name, str | Whole | Switch | float | None] | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs stands beside logprobs: true only")
        offered = {tool.function.name for tool in self.tools or ()}
        if self.tool_choice == "required" and not offered:
            raise ValueError("tool_choice is required, and no tools are offered")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in offered:
            raise ValueError(
                f"tool_choice names {self.tool_choice.function.name}, which tools does not offer"
            )
        return self


class LikelyToken(Answered):
    """A token, its UTF-8 bytes, and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChosenToken(LikelyToken):
    """The token that was drawn, and those that were most probable there."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answered):
    """Log-probabilities of the tokens of a message."""

    content: list[ChosenToken] | None
    refusal: None = None


class AnsweredFunction(Answered):
    """The function that the model calls; in a stream the name comes first and the arguments follow in parts."""

    name: Told[str] = None
    arguments: str


class AnsweredToolCall(Answered):
    """A call that the model makes; `index` tells those of a stream apart."""

    index: Told[int] = None
    id: Told[str] = None
    type: Told[Literal["function"]] = "function"
    function: AnsweredFunction


class AnsweredMessage(Answered):
    """The message that the model wrote."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    tool_calls: Told[list[AnsweredToolCall]] = None


class MessageDelta(Answered):
    """The next part of a message."""

    role: Told[Literal["assistant"]] = None
    content: Told[str] = None
    tool_calls: Told[list[AnsweredToolCall]] = None


class ChatChoice(Answered):
    """One output."""

    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: Told[str | int] = None
    token_ids: Told[list[int]] = None


class ChatCompletion(Answered):
    """The answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    prompt_token_ids: Told[list[int]] = None


class ChatChunkChoice(Answered):
    """The next part of one output."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: Told[str | int] = None
    token_ids: Told[list[int]] = None


class ChatChunk(Answered):
    """One chunk of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Told[TokenUsage] = None
    prompt_token_ids: Told[list[int]] = None
