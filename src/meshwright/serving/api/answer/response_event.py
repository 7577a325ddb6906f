"""The events of a streamed response: items are opened, filled and closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict

from meshwright.serving.api.body.chat import AnsweredToolCall, MessageDelta
from meshwright.serving.api.body.response import AnsweredText, OutputItem
from meshwright.serving.api.body.value import Answered
from meshwright.serving.api.generation.model_service import new_id


class ResponseEvent(Answered):
    """One event; its fields beside these two depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


class ResponseEvents:
    """Makes the events of one response from the deltas of its message."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._number = -1
        self._text: str | None = None  # of the message that is open
        self._call: AnsweredToolCall | None = None  # that is open
        self._arguments = ""
        self._id = ""

    def of(self, type: str, **fields: Any) -> ResponseEvent:
        """The next one."""
        self._number += 1
        return ResponseEvent(type=type, sequence_number=self._number, **fields)

    def take(self, delta: MessageDelta) -> Iterator[ResponseEvent]:
        """Those of a delta."""
        if delta.content:
            yield from self._write(delta.content)
        for call in delta.tool_calls or ():
            yield from self._hear(call)

    def end(self) -> Iterator[ResponseEvent]:
        """Close what is open; a message with nothing in it is a message, too."""
        if self._text is None and self._call is None and not self.items:
            yield from self._write("")
        yield from self._close()

    def _write(self, text: str) -> Iterator[ResponseEvent]:
        if self._text is None:
            yield from self._close()
            self._id, self._text = new_id("msg"), ""
            yield self.of("response.output_item.added", **self._at(), item=self._message("in_progress", []))
            yield self.of("response.content_part.added", **self._in_part(), part=AnsweredText(text=""))
        self._text = (self._text or "") + text
        yield self.of("response.output_text.delta", **self._in_part(), delta=text, logprobs=[])

    def _hear(self, call: AnsweredToolCall) -> Iterator[ResponseEvent]:
        if call.function.name is not None:
            yield from self._close()
            self._id, self._call, self._arguments = new_id("fc"), call, ""
            yield self.of("response.output_item.added", **self._at(), item=self._function("in_progress"))
        self._arguments += call.function.arguments
        yield self.of(
            "response.function_call_arguments.delta", **self._in_item(), delta=call.function.arguments
        )

    def _close(self) -> Iterator[ResponseEvent]:
        if self._text is not None:
            part = AnsweredText(text=self._text)
            yield self.of("response.output_text.done", **self._in_part(), text=self._text, logprobs=[])
            yield self.of("response.content_part.done", **self._in_part(), part=part)
            yield from self._done(self._message("completed", [part]))
        if self._call is not None:
            name = self._call.function.name
            yield self.of(
                "response.function_call_arguments.done", **self._in_item(), name=name, arguments=self._arguments
            )  # fmt: skip
            yield from self._done(self._function("completed"))
        self._text = self._call = None

    def _done(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield self.of("response.output_item.done", **self._at(), item=item)
        self.items.append(item)

    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self.items)}

    def _in_item(self) -> dict[str, Any]:
        return {**self._at(), "item_id": self._id}

    def _in_part(self) -> dict[str, Any]:
        return {**self._in_item(), "content_index": 0}

    def _message(self, status: Any, content: list[AnsweredText]) -> OutputItem:
        return OutputItem(type="message", id=self._id, status=status, role="assistant", content=content)

    def _function(self, status: Any) -> OutputItem:
        assert self._call is not None, "a call is open"
        return OutputItem(
            type="function_call", id=self._id, status=status, call_id=self._call.id, name=self._call.function.name,
            arguments=self._arguments,
        )  # fmt: skip
