"""/v1/responses: a chat in the newer form, made of a chat and told as one, in items and events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from meshwright.serving.api.answer.chatting import ChatRun, begin_chat
from meshwright.serving.api.answer.response_event import ResponseEvent, ResponseEvents
from meshwright.serving.api.answer.run import now
from meshwright.serving.api.body.chat import AnsweredMessage, ChatBody
from meshwright.serving.api.body.response import (
    AnsweredText,
    IncompleteDetails,
    InputItem,
    OutputItem,
    ResponseAnswer,
    ResponseBody,
    ResponseUsage,
    TextFormat,
)  # fmt: skip
from meshwright.serving.api.body.sampling import TokenUsage
from meshwright.serving.api.error import BAD_REQUEST, ApiError
from meshwright.serving.api.generation.caller import NOBODY, Caller
from meshwright.serving.api.generation.model_service import ModelService, new_id

TEXT_PARTS = ("input_text", "output_text", "text")


async def begin_response(model: ModelService, body: ResponseBody, caller: Caller = NOBODY) -> ResponseRun:
    """Submit what a body asks for. Raises ApiError where it is refused."""
    if body.previous_response_id is not None:
        raise ApiError(
            BAD_REQUEST, "previous_response_id: no answers are stored; send what was said before as input",
            param="previous_response_id",
        )  # fmt: skip
    return ResponseRun(await begin_chat(model, chat_body_of(body), caller), body)


def chat_body_of(body: ResponseBody) -> ChatBody:
    """The chat that a body means. Raises ApiError."""
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    for item in items:
        _add(messages, item)
    choice: Any = body.tool_choice
    if choice is not None and not isinstance(choice, str):
        choice = {"type": "function", "function": {"name": choice.name}}
    functions = [
        {"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in body.tools or ()
    ]
    try:
        return ChatBody.model_validate(
            {
                "model": body.model, "messages": messages, "max_completion_tokens": body.max_output_tokens,
                "temperature": body.temperature, "top_p": body.top_p, "tools": functions or None, "tool_choice": choice,
                "response_format": _format(body.text.format if body.text else None), "user": body.user,
                "parallel_tool_calls": body.parallel_tool_calls, "timeout_s": body.timeout_s,
            }
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ApiError(BAD_REQUEST, str(first["msg"]), param=".".join(map(str, first["loc"]))) from error


def _add(messages: list[dict[str, Any]], item: InputItem) -> None:
    """An item as a message, or as a part of the last one. Raises ApiError."""
    if item.type == "message":
        if item.role is None or item.content is None:
            raise ApiError(BAD_REQUEST, "a message without role or content", param="input")
        messages.append({"role": item.role, "content": _text(item)})
        return
    if item.call_id is None:
        raise ApiError(BAD_REQUEST, f"an item of type {item.type} without call_id", param="input")
    if item.type == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output or ""})
        return
    call = {"id": item.call_id, "function": {"name": item.name or "", "arguments": item.arguments or ""}}
    if messages and messages[-1].get("tool_calls"):
        messages[-1]["tool_calls"].append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _text(item: InputItem) -> str:
    if isinstance(item.content, str):
        return item.content
    for part in item.content or ():
        if part.type not in TEXT_PARTS:
            raise ApiError(
                BAD_REQUEST, f"a part of type {part.type[:40]!r}; allowed: {', '.join(TEXT_PARTS)}", param="input",
                code="unsupported_content",
            )  # fmt: skip
    return "\n".join(part.text or "" for part in item.content or ())


def _format(wanted: TextFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else {"type": wanted.type}
    schema = {"name": wanted.name or "output", "schema": wanted.schema_ or {}, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": schema}


@dataclass
class ResponseRun:
    """An answer in the making, by the chat that it is."""

    chat: ChatRun
    body: ResponseBody
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=now)

    def close(self) -> None:
        """What still runs is aborted."""
        self.chat.close()

    async def whole(self) -> ResponseAnswer:
        """All its items."""
        done = await self.chat.whole()
        choice = done.choices[0]
        return self.answer(
            items_of(choice.message, choice.finish_reason == "length"), done.usage, choice.finish_reason
        )

    async def chunks(self) -> AsyncIterator[ResponseEvent]:
        """Its events, in the order of OpenAI's."""
        events = ResponseEvents()
        yield events.of("response.created", response=self.answer([], None, None))
        yield events.of("response.in_progress", response=self.answer([], None, None))
        reason = "stop"
        async for chunk in self.chat.chunks():
            choice = chunk.choices[0]
            for event in events.take(choice.delta):
                yield event
            reason = choice.finish_reason or reason
        for event in events.end():
            yield event
        usage = self.chat.generations.usage
        done = self.answer(events.items, usage, reason)
        yield events.of(f"response.{done.status}", response=done)

    def answer(self, items: list[OutputItem], usage: TokenUsage | None, reason: str | None) -> ResponseAnswer:
        """The answer as it is now; without a reason it goes on."""
        status = "in_progress" if reason is None else "incomplete" if reason == "length" else "completed"
        body = self.body
        return ResponseAnswer(
            id=self.id, created_at=self.created, model=body.model, status=cast("Any", status), output=items,
            usage=None if usage is None else _usage(usage),
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if reason == "length" else None,
            instructions=body.instructions, metadata=body.metadata or {}, temperature=body.temperature, top_p=body.top_p,
            max_output_tokens=body.max_output_tokens, parallel_tool_calls=body.parallel_tool_calls is not False,
            tool_choice=_dumped(body.tool_choice) or "auto", tools=[_dumped(tool) for tool in body.tools or ()],
            text=_dumped(body.text) or {"format": {"type": "text"}},
        )  # fmt: skip


def items_of(message: AnsweredMessage, is_cut: bool) -> list[OutputItem]:
    """A whole message as items."""
    items = []
    if message.content or not message.tool_calls:
        status: Any = "incomplete" if is_cut else "completed"
        text = AnsweredText(text=message.content or "")
        items.append(
            OutputItem(type="message", id=new_id("msg"), status=status, role="assistant", content=[text])
        )
    for call in message.tool_calls or ():
        items.append(
            OutputItem(
                type="function_call", id=new_id("fc"), status="completed", call_id=call.id, name=call.function.name,
                arguments=call.function.arguments,
            )
        )  # fmt: skip
    return items


def _usage(usage: TokenUsage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )


def _dumped(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value
