"""The events of a message in Anthropic's form: blocks are opened, filled and closed, one behind the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict

from meshwright.serving.api.body.chat import AnsweredToolCall, MessageDelta
from meshwright.serving.api.body.message import AnsweredBlock
from meshwright.serving.api.body.value import Answered


class MessageEvent(Answered):
    """One event; its other fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str


def event_of(type: str, **fields: Any) -> MessageEvent:
    """One with these fields."""
    return MessageEvent(type=type, **fields)


class MessageEvents:
    """Makes the events of one message's blocks from the deltas of a chat."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None  # the type of the block that is open

    def take(self, delta: MessageDelta) -> Iterator[MessageEvent]:
        """Those of a delta."""
        if delta.content:
            if self._open != "text":
                yield from self._begin(AnsweredBlock(type="text", text=""))
            yield self._filled({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls or ():
            yield from self._hear(call)

    def end(self) -> Iterator[MessageEvent]:
        """Close what is open."""
        if self._open is not None:
            yield event_of("content_block_stop", index=self._index)
            self._open = None

    def _hear(self, call: AnsweredToolCall) -> Iterator[MessageEvent]:
        if call.function.name is not None:
            yield from self._begin(
                AnsweredBlock(type="tool_use", id=call.id, name=call.function.name, input={})
            )
        if call.function.arguments:
            yield self._filled({"type": "input_json_delta", "partial_json": call.function.arguments})

    def _begin(self, block: AnsweredBlock) -> Iterator[MessageEvent]:
        yield from self.end()
        self._index += 1
        self._open = block.type
        yield event_of("content_block_start", index=self._index, content_block=block)

    def _filled(self, delta: dict[str, Any]) -> MessageEvent:
        return event_of("content_block_delta", index=self._index, delta=delta)
