"""Calls of tools in what a model writes: found in the form that its chat template teaches it, or forced by a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshwright.serving.api.body.chat import OfferedTool


@dataclass(frozen=True)
class FoundCall:
    """A call: which function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolReader(Protocol):
    """Reads one output as it comes."""

    def add(self, text: str) -> str:
        """The part of the text so far that is certainly no call."""
        ...

    def end(self) -> tuple[str, list[FoundCall]]:
        """The rest of the text, and the calls."""
        ...


class TaggedCalls:
    """Each call is a JSON object between <tool_call> and </tool_call>: Hermes, Qwen2.5, Qwen3."""

    BEGIN, END = "<tool_call>", "</tool_call>"

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._held = frozenset(names), ""

    def add(self, text: str) -> str:
        """Everything before the first call, but what may be the beginning of one."""
        said, self._held = _before(self.BEGIN, self._held + text)
        return said

    def end(self) -> tuple[str, list[FoundCall]]:
        """The calls; where one of them cannot be read, all is text."""
        parts = self._held.split(self.BEGIN)
        calls = [call_of(part.split(self.END)[0], self._names) for part in parts[1:]]
        found = [call for call in calls if call is not None]
        return ("", found) if found and len(found) == len(calls) else (self._held, [])


class BareCalls:
    """The whole output is one JSON object with name and parameters: Llama 3.1 and 3.2."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._held, self._is_text = frozenset(names), "", False

    def add(self, text: str) -> str:
        """Nothing while it may be a call."""
        self._held += text
        begun = self._held.lstrip()
        if begun and begun[0] != "{":
            self._is_text = True
        said, self._held = (self._held, "") if self._is_text else ("", self._held)
        return said

    def end(self) -> tuple[str, list[FoundCall]]:
        """The call; where it cannot be read, all is text."""
        call = None if self._is_text else call_of(self._held, self._names)
        return (self._held, []) if call is None else ("", [call])


class MarkedCalls:
    """Behind [TOOL_CALLS] a JSON list of calls; or, each behind a mark of its own, a name and its arguments, with [ARGS]
    between them or not: older and newer models of Mistral."""

    BEGIN, BETWEEN = "[TOOL_CALLS]", "[ARGS]"

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._held = frozenset(names), ""

    def add(self, text: str) -> str:
        """Everything before the first mark, but what may be the beginning of one."""
        said, self._held = _before(self.BEGIN, self._held + text)
        return said

    def end(self) -> tuple[str, list[FoundCall]]:
        """The calls; where one of them cannot be read, all is text."""
        calls = [call for part in self._held.split(self.BEGIN)[1:] for call in self._calls(part.strip())]
        found = [call for call in calls if call is not None]
        return ("", found) if found and len(found) == len(calls) else (self._held, [])

    def _calls(self, part: str) -> list[FoundCall | None]:
        if part.startswith("["):
            entries = _json(part)
            return [_call(each, self._names) for each in entries] if isinstance(entries, list) else [None]
        name, brace, arguments = part.partition("{")
        entry = {"name": name.removesuffix(self.BETWEEN).strip(), "arguments": _json(brace + arguments)}
        return [_call(entry, self._names)]


class ForcedCalls:
    """The whole output is a JSON list of calls, because its grammar is `calls_schema`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._held = frozenset(names), ""

    def add(self, text: str) -> str:
        """It is all calls."""
        self._held += text
        return ""

    def end(self) -> tuple[str, list[FoundCall]]:
        """The calls; where the output was cut off, it is text."""
        entries = _json(self._held)
        calls = [_call(entry, self._names) for entry in entries] if isinstance(entries, list) else []
        found = [call for call in calls if call is not None]
        return ("", found) if found and len(found) == len(calls) else (self._held, [])


class NoCalls:
    """All is text."""

    def add(self, text: str) -> str:
        """The text."""
        return text

    def end(self) -> tuple[str, list[FoundCall]]:
        """Nothing is held."""
        return "", []


def reader_of(chat_template: str, names: Sequence[str]) -> ToolReader | None:
    """The form that a chat template teaches; None: it teaches none that is known here."""
    if "<tool_call>" in chat_template and "<function=" not in chat_template:
        return TaggedCalls(names)
    if "<|python_tag|>" in chat_template and '"parameters"' in chat_template:
        return BareCalls(names)
    if MarkedCalls.BEGIN in chat_template:
        return MarkedCalls(names)
    return None


def calls_schema(tools: Sequence[OfferedTool], is_parallel: bool) -> dict[str, Any]:
    """The JSON schema of at least one call of these tools."""
    kinds = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": parameters_of(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    bound = {} if is_parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **bound, "items": {"anyOf": kinds}}


def parameters_of(tool: OfferedTool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments; a tool that says none takes an object of any."""
    return dict(tool.function.parameters or {"type": "object"})


def call_of(text: str, names: frozenset[str]) -> FoundCall | None:
    """A call as JSON text; None: it is none of these functions'."""
    return _call(_json(text), names)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(found: Any, names: frozenset[str]) -> FoundCall | None:
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return FoundCall(str(found["name"]), json.dumps(arguments, ensure_ascii=False))


def _before(mark: str, text: str) -> tuple[str, str]:
    """What stands before a mark, or before what may be its beginning, and the rest."""
    at = text.find(mark)
    if at < 0:
        at = len(text) - _overlap(text, mark)
    return text[:at], text[at:]


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of a text are the beginning of a marker."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)
