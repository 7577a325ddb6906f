"""From the messages and tools of a chat to its prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from meshwright.serving.api.answer.tool_call import (
    ForcedCalls,
    NoCalls,
    ToolReader,
    calls_schema,
    parameters_of,
    reader_of,
)  # fmt: skip
from meshwright.serving.api.body.chat import ChatBody, ChatMessage, ContentPart, NamedTool, OfferedTool
from meshwright.serving.api.error import BAD_REQUEST, ApiError, told
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.generation.parameters import check_size, schema_grammar
from meshwright.specs.error import MeshwrightError

ROLES = {"developer": "system"}  # as chat templates know them
# What a template must not be told by a client: its own machinery.
RESERVED = frozenset(
    "messages tools documents chat_template tokenize add_generation_prompt continue_final_message padding truncation"
    " max_length return_tensors return_dict bos_token eos_token pad_token unk_token".split()
)


async def prompt_of(model: ModelService, body: ChatBody) -> list[int]:
    """Tokens of a chat. Raises ApiError."""
    tools = [] if body.tool_choice == "none" else body.tools or []
    return await chat_tokens(model, body.messages, tools, body.chat_template_kwargs or {})


async def chat_tokens(
    model: ModelService, messages: list[ChatMessage], tools: list[OfferedTool], values: dict[str, Any],
    adds_prompt: bool = True,
) -> list[int]:  # fmt: skip
    """Tokens of messages in the model's own form. Raises ApiError."""
    if not model.text.chat_template:
        raise ApiError(
            BAD_REQUEST,
            f"{model.name} has no chat template; /v1/completions takes text",
            code="no_chat_template",
        )
    reserved = sorted(RESERVED & values.keys())
    if reserved:
        raise ApiError(
            BAD_REQUEST, f"chat_template_kwargs names {', '.join(reserved)}, which the server itself says",
            param="chat_template_kwargs",
        )  # fmt: skip
    said = [_plain(message) for message in messages]
    offered = [tool.model_dump(exclude_none=True) for tool in tools]
    try:
        return await asyncio.to_thread(model.text.chat, said, offered, adds_prompt, values)
    except MeshwrightError as error:
        raise told(error) from error


def reading_of(model: ModelService, body: ChatBody) -> tuple[Callable[[], ToolReader], str]:
    """Who reads each output's calls, as a function that makes a new reader, and the grammar that forces them ("": none).

    Raises ApiError where the model's template knows no tools.
    """
    if not body.tools or body.tool_choice == "none":
        return NoCalls, ""
    names = [tool.function.name for tool in body.tools]
    check_size(
        json.dumps([tool.model_dump() for tool in body.tools]), model.limits.tools_bytes, "tools", "tools"
    )
    if reader_of(model.text.chat_template, names) is None:
        raise ApiError(
            BAD_REQUEST, f"the chat template of {model.name} teaches no form of calls that is read here", param="tools",
            code="no_tools",
        )  # fmt: skip
    if isinstance(body.tool_choice, NamedTool):
        named = next(tool for tool in body.tools if tool.function.name == body.tool_choice.function.name)
        return NoCalls, schema_grammar(parameters_of(named), model.limits, "tools")
    if body.tool_choice == "required":
        schema = calls_schema(body.tools, body.parallel_tool_calls is not False)
        return lambda: ForcedCalls(names), schema_grammar(schema, model.limits, "tools")

    return lambda: reader_of(model.text.chat_template, names) or NoCalls(), ""


def _plain(message: ChatMessage) -> dict[str, Any]:
    """A message as templates read it. Raises ApiError for what is no text."""
    plain: dict[str, Any] = {"role": ROLES.get(message.role, message.role), "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        plain["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return plain


def _text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text":
            raise ApiError(
                BAD_REQUEST, f"a part of type {part.type[:40]!r}; allowed: text; no images, audio or files are taken",
                param="messages", code="unsupported_content",
            )  # fmt: skip
    return "\n".join(part.text or "" for part in content)


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(
            BAD_REQUEST,
            "arguments of a tool call that are no JSON object",
            param="messages",
            code="bad_arguments",
        )
    return found
