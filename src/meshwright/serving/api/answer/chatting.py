"""/v1/chat/completions: from a conversation to a generation, and from its text to messages and calls of tools."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from meshwright.serving.api.answer.chat_prompt import prompt_of, reading_of
from meshwright.serving.api.answer.logprob import chat_logprobs
from meshwright.serving.api.answer.run import Generations, now
from meshwright.serving.api.answer.tool_call import FoundCall, ToolReader
from meshwright.serving.api.body.chat import (
    AnsweredFunction,
    AnsweredMessage,
    AnsweredToolCall,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChosenToken,
    MessageDelta,
    NamedTool,
)  # fmt: skip
from meshwright.serving.api.body.sampling import FinishReason
from meshwright.serving.api.error import BAD_REQUEST, ApiError
from meshwright.serving.api.generation.caller import NOBODY, Caller
from meshwright.serving.api.generation.generation import TextDelta
from meshwright.serving.api.generation.model_service import ModelService, new_id
from meshwright.serving.api.generation.parameters import sampling_of
from meshwright.serving.request.request import Request


async def begin_chat(model: ModelService, body: ChatBody, caller: Caller = NOBODY) -> ChatRun:
    """Submit what a body asks for. Raises ApiError where it is refused."""
    adapter = model.adapter_of(body.model)
    if (body.n or 1) > model.limits.outputs:
        raise ApiError(BAD_REQUEST, f"{body.n} outputs; allowed: {model.limits.outputs}", param="n")
    new_reader, grammar = reading_of(model, body)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = sampling_of(body, model, num_logprobs, grammar)
    prompt = await prompt_of(model, body)
    asked = body.max_completion_tokens or body.max_tokens
    param = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
    id = new_id("chatcmpl")
    request = Request(
        id=id, num_prompt_tokens=len(prompt), prompt=prompt,
        max_output_tokens=model.room_behind(len(prompt), asked, param), priority=body.priority,
        user=body.user or caller.user, sampling=sampling, num_outputs=body.n or 1, adapter=adapter,
    )  # fmt: skip
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else ""
    generation = await model.begin(request, caller.wait_s(body.timeout_s))
    return ChatRun(model, body, id, prompt, Generations([generation]), new_reader, named)


@dataclass
class _Output:
    """One output so far."""

    reader: ToolReader
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[ChosenToken] = field(default_factory=list)
    is_begun: bool = False
    last: TextDelta | None = None


@dataclass
class ChatRun:
    """A message in the making, or several.

    Args:
        new_reader: makes who reads the calls of an output.
        named: the one function whose arguments the whole output is; "": none.
    """

    model: ModelService
    body: ChatBody
    id: str
    prompt: Sequence[int]
    generations: Generations
    new_reader: Callable[[], ToolReader]
    named: str
    created: int = field(default_factory=now)

    def close(self) -> None:
        """What still runs is aborted."""
        self.generations.close()

    async def whole(self) -> ChatCompletion:
        """All its messages."""
        outputs: dict[int, _Output] = {}
        async for delta in self.generations[0].deltas():
            self._take(outputs.setdefault(delta.index, _Output(self.new_reader())), delta)
        return ChatCompletion(
            id=self.id, created=self.created, model=self.body.model,
            choices=[self._choice(output) for _, output in sorted(outputs.items())], usage=self.generations.usage,
            prompt_token_ids=list(self.prompt) if self.body.return_token_ids else None,
        )  # fmt: skip

    async def chunks(self) -> AsyncIterator[ChatChunk]:
        """One for every few tokens of an output; a last one with the usage, where it is asked for."""
        readers: dict[int, ToolReader] = {}
        async for delta in self.generations[0].deltas():
            is_first = delta.index not in readers
            reader = readers.setdefault(delta.index, self.new_reader())
            for part in self._parts(reader, delta, is_first):
                yield part
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield self._chunk([]).model_copy(update={"usage": self.generations.usage})

    def _take(self, output: _Output, delta: TextDelta) -> None:
        """Add a delta to an output that is told whole."""
        output.text += output.reader.add(delta.text)
        output.token_ids += delta.token_ids
        logprobs = self._logprobs(delta)
        output.logprobs += (logprobs.content or ()) if logprobs else ()
        output.last = delta

    def _choice(self, output: _Output) -> ChatChoice:
        assert output.last is not None, "an output has a delta at least"
        rest, calls = output.reader.end()
        text = output.text + rest
        if self.named:
            text, calls = "", [FoundCall(self.named, text)]
        calls = self._allowed(calls)
        return ChatChoice(
            index=output.last.index,
            message=AnsweredMessage(
                content=text if text or not calls else None, tool_calls=[_whole_call(call) for call in calls] or None
            ),
            logprobs=ChatLogprobs(content=output.logprobs) if self.body.logprobs else None,
            finish_reason=_finish(output.last, bool(calls)), stop_reason=output.last.stop_reason,
            token_ids=output.token_ids if self.body.return_token_ids else None,
        )  # fmt: skip

    def _parts(self, reader: ToolReader, delta: TextDelta, is_first: bool) -> list[ChatChunk]:
        """The chunks of a delta: its text, and where the output ends its calls."""
        text, calls = reader.add(delta.text), list[FoundCall]()
        if delta.finish_reason:
            rest, calls = reader.end()
            text, calls = text + rest, self._allowed(calls)
        if self.named:
            message = MessageDelta(tool_calls=[_part_of_call(self.named, text, is_first)])
        else:
            told = [_whole_call(call, number) for number, call in enumerate(calls)]
            message = MessageDelta(content=text or ("" if is_first else None), tool_calls=told or None)
        if is_first:
            message = message.model_copy(update={"role": "assistant"})
        has_news = (
            text
            or calls
            or is_first
            or delta.finish_reason
            or self.body.logprobs
            or self.body.return_token_ids
        )
        if not has_news:
            return []
        choice = ChatChunkChoice(
            index=delta.index, delta=message, logprobs=self._logprobs(delta),
            finish_reason=_finish(delta, bool(calls or self.named)) if delta.finish_reason else None,
            stop_reason=delta.stop_reason, token_ids=delta.token_ids if self.body.return_token_ids else None,
        )  # fmt: skip
        prompt = list(self.prompt) if is_first and self.body.return_token_ids else None
        return [self._chunk([choice]).model_copy(update={"prompt_token_ids": prompt})]

    def _allowed(self, calls: list[FoundCall]) -> list[FoundCall]:
        return calls[:1] if self.body.parallel_tool_calls is False else calls

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(id=self.id, created=self.created, model=self.body.model, choices=choices)

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(self.model.text, delta.token_ids, delta.logprobs, self.body.top_logprobs or 0)


def _finish(delta: TextDelta, has_calls: bool) -> FinishReason:
    """Why an output ended; one that ends with calls waits for what they give."""
    is_called = has_calls and delta.finish_reason == "stop"
    return cast("FinishReason", "tool_calls" if is_called else delta.finish_reason)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _whole_call(call: FoundCall, index: int | None = None) -> AnsweredToolCall:
    function = AnsweredFunction(name=call.name, arguments=call.arguments)
    return AnsweredToolCall(index=index, id=_new_call_id(), function=function)


def _part_of_call(name: str, arguments: str, is_first: bool) -> AnsweredToolCall:
    if is_first:
        return _whole_call(FoundCall(name, arguments), 0)
    return AnsweredToolCall(index=0, type=None, function=AnsweredFunction(arguments=arguments))
