"""/v1/messages: a chat in Anthropic's form, made of a chat and told as one, in blocks and events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from meshwright.serving.api.answer.chat_prompt import prompt_of
from meshwright.serving.api.answer.chatting import ChatRun, begin_chat
from meshwright.serving.api.answer.message_event import MessageEvent, MessageEvents, event_of
from meshwright.serving.api.body.chat import AnsweredMessage, ChatBody
from meshwright.serving.api.body.message import (
    AnsweredBlock,
    ConversationMessage,
    CountAnswer,
    CountBody,
    MessageAnswer,
    MessageBlock,
    MessageBody,
    MessageUsage,
    StopReason,
)  # fmt: skip
from meshwright.serving.api.error import BAD_REQUEST, ApiError
from meshwright.serving.api.generation.caller import NOBODY, Caller
from meshwright.serving.api.generation.model_service import ModelService, new_id

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOPS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}


async def begin_message(model: ModelService, body: MessageBody, caller: Caller = NOBODY) -> MessageRun:
    """Submit what a body asks for. Raises ApiError where it is refused."""
    return MessageRun(await begin_chat(model, chat_body_of(body), caller), body)


async def count_tokens(model: ModelService, body: CountBody) -> CountAnswer:
    """Tokens of what would be asked. Raises ApiError."""
    model.adapter_of(body.model)
    return CountAnswer(input_tokens=len(await prompt_of(model, chat_body_of(body))))


def chat_body_of(body: CountBody) -> ChatBody:
    """The chat that a body means. Raises ApiError."""
    chat: dict[str, Any] = {"model": body.model, "messages": _messages(body)}
    if body.tools:
        chat["tools"] = [
            {
                "type": "function",
                "function": {"name": each.name, "description": each.description, "parameters": each.input_schema},
            }
            for each in body.tools
        ]  # fmt: skip
    if (choice := body.tool_choice) is not None:
        named = {"type": "function", "function": {"name": choice.name or ""}}
        chat["tool_choice"] = CHOICES.get(choice.type, named)
        chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if isinstance(body, MessageBody):
        chat |= {
            "max_completion_tokens": body.max_tokens, "temperature": body.temperature, "top_p": body.top_p,
            "top_k": body.top_k, "stop": body.stop_sequences or None, "timeout_s": body.timeout_s,
            "user": body.metadata.user_id if body.metadata else None,
        }  # fmt: skip
    try:
        return ChatBody.model_validate(chat)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ApiError(BAD_REQUEST, str(first["msg"]), param=".".join(map(str, first["loc"]))) from error


def _messages(body: CountBody) -> list[dict[str, Any]]:
    """All that was said, as messages of a chat. Raises ApiError."""
    system = body.system if isinstance(body.system, str) else _text(body.system or ())
    found: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in body.messages:
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        else:
            found += _from_assistant(message) if message.role == "assistant" else _from_user(message)
    return found


def _from_user(message: ConversationMessage) -> list[dict[str, Any]]:
    """What calls gave, each a message, and the text behind it."""
    blocks = [each for each in message.content if isinstance(each, MessageBlock)]
    results = [each for each in blocks if each.type == "tool_result"]
    found: list[dict[str, Any]] = []
    for each in results:
        if each.tool_use_id is None:
            raise _wrong("a block of type 'tool_result' without tool_use_id")
        content = each.content if isinstance(each.content, str) else _text(each.content or ())
        found.append({"role": "tool", "tool_call_id": each.tool_use_id, "content": content})
    rest = [each for each in blocks if each.type != "tool_result"]
    return [*found, {"role": "user", "content": _text(rest)}] if rest else found


def _from_assistant(message: ConversationMessage) -> list[dict[str, Any]]:
    """Its text and its calls, as one message."""
    blocks = [each for each in message.content if isinstance(each, MessageBlock)]
    calls = []
    for each in blocks:
        if each.type != "tool_use":
            continue
        if each.id is None or each.name is None:
            raise _wrong("a block of type 'tool_use' without id or name")
        function = {"name": each.name, "arguments": json.dumps(each.input or {}, ensure_ascii=False)}
        calls.append({"id": each.id, "function": function})
    text = _text(each for each in blocks if each.type != "tool_use")
    return [{"role": "assistant", "content": text, "tool_calls": calls or None}]


def _text(blocks: Iterable[MessageBlock]) -> str:
    """Blocks of text as one. Raises ApiError for any other."""
    texts = []
    for each in blocks:
        if each.type != "text":
            raise ApiError(
                BAD_REQUEST, f"a block of type {each.type[:40]!r}; allowed: text, tool_use of the assistant and tool_result "
                "of the user; no images or documents are taken", param="messages", code="unsupported_content",
            )  # fmt: skip
        texts.append(each.text or "")
    return "\n".join(texts)


def _wrong(said: str) -> ApiError:
    return ApiError(BAD_REQUEST, said, param="messages")


@dataclass
class MessageRun:
    """An answer in the making, by the chat that it is."""

    chat: ChatRun
    body: MessageBody
    id: str = field(default_factory=lambda: new_id("msg"))

    def close(self) -> None:
        """What still runs is aborted."""
        self.chat.close()

    async def whole(self) -> MessageAnswer:
        """All its blocks."""
        choice = (await self.chat.whole()).choices[0]
        return self.answer(blocks_of(choice.message), *_ended(choice.finish_reason, choice.stop_reason))

    async def chunks(self) -> AsyncIterator[MessageEvent]:
        """Its events, in the order of Anthropic's."""
        events = MessageEvents()
        yield event_of("message_start", message=self.answer([]))
        reason, stop = "stop", None
        async for chunk in self.chat.chunks():
            choice = chunk.choices[0]
            for event in events.take(choice.delta):
                yield event
            reason, stop = choice.finish_reason or reason, choice.stop_reason
        for event in events.end():
            yield event
        ended, sequence = _ended(reason, stop)
        told = {"stop_reason": ended, "stop_sequence": sequence}
        yield event_of("message_delta", delta=told, usage={"output_tokens": self._usage.output_tokens})
        yield event_of("message_stop")

    def answer(
        self, blocks: list[AnsweredBlock], reason: StopReason | None = None, sequence: str | None = None
    ) -> MessageAnswer:
        """The answer as it is now; without a reason it goes on."""
        return MessageAnswer(
            id=self.id, model=self.body.model, content=blocks, stop_reason=reason, stop_sequence=sequence,
            usage=self._usage,
        )  # fmt: skip

    @property
    def _usage(self) -> MessageUsage:
        used = self.chat.generations.usage
        return MessageUsage(input_tokens=used.prompt_tokens, output_tokens=used.completion_tokens)


def blocks_of(message: AnsweredMessage) -> list[AnsweredBlock]:
    """A whole message as blocks."""
    text = [AnsweredBlock(type="text", text=message.content)] if message.content else []
    calls = [
        AnsweredBlock(type="tool_use", id=call.id, name=call.function.name, input=json_object(call.function.arguments))
        for call in message.tool_calls or ()
    ]  # fmt: skip
    return [*text, *calls]


def json_object(text: str) -> dict[str, Any]:
    """Arguments of a call; those that were cut off are none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _ended(reason: str, stop: str | int | None) -> tuple[StopReason, str | None]:
    """Why it ended, and the stop text that ended it."""
    if reason == "stop" and isinstance(stop, str):
        return "stop_sequence", stop
    return STOPS.get(reason, "end_turn"), None
