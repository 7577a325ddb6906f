"""/v1/responses: the newer form of a chat; what was said before is sent along, nothing is stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from meshwright.serving.api.body.chat import FunctionName
from meshwright.serving.api.body.value import Answered, Body, Count, Name, Real, Some, Switch, Told


class InputPart(Body):
    """A part of an item. Text is taken; everything else is refused by its name, and its fields are not looked at."""

    model_config = {"extra": "allow"}

    type: Name
    text: str | None = None


class InputItem(Body):
    """A message, a call that the model made, or what the call gave."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Some[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    call_id: Name | None = None
    name: FunctionName | None = None
    arguments: str | None = None
    output: str | None = None
    phase: str | None = None


class ResponseTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: Switch | None = None


class ResponseNamedTool(Body):
    """The one function that has to be called."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(Body):
    """What the text has to be; name and schema stand beside json_schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: Switch | None = None


class TextSettings(Body):
    """How the text is written."""

    format: TextFormat | None = None


class ResponseBody(Body):
    """What was said, and how to answer."""

    model: Name
    input: str | Some[InputItem]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[Real, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[Real, Field(gt=0.0, le=1.0)] | None = None
    stream: Switch | None = None
    text: TextSettings | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
    parallel_tool_calls: Switch | None = None
    metadata: dict[str, str] | None = None
    store: Switch | None = None
    previous_response_id: str | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    timeout_s: Annotated[Real, Field(gt=0.0)] | None = None


class AnsweredText(Answered):
    """Text that the model wrote."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[JsonValue] = []


class OutputItem(Answered):
    """A message that the model wrote, or a function that it calls."""

    type: Literal["message", "function_call"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Told[Literal["assistant"]] = None
    content: Told[list[AnsweredText]] = None
    call_id: Told[str] = None
    name: Told[str] = None
    arguments: Told[str] = None


class IncompleteDetails(Answered):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(Answered):
    """Of the tokens that went in."""

    cached_tokens: int = 0


class OutputTokensDetails(Answered):
    """Of the tokens that came out."""

    reasoning_tokens: int = 0


class ResponseUsage(Answered):
    """How many tokens it took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseAnswer(Answered):
    """The answer: its items, and the settings it was made with."""

    id: str
    object: Literal["response"] = "response"
    created_at: float
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    tool_choice: Any = "auto"
    tools: list[Any] = []
    text: Any = None
    store: Literal[False] = False
