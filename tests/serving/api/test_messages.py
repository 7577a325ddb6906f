"""/v1/messages: Anthropic's form of a chat, whole and in events; its own client reads both, where it is installed."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from tests.serving.api.conftest import Served, serving

from meshwright.serving.api.answer.messaging import chat_body_of
from meshwright.serving.api.body.message import MessageBody
from meshwright.serving.api.error import ApiError
from meshwright.serving.api.http.api_key import ApiKeys

TOOL = {
    "name": "weather", "description": "Of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}  # fmt: skip
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "said", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


def post(served: Served, body: dict[str, Any], path: str = "/v1/messages") -> httpx.Response:
    return httpx.post(served.url + path, json=body, timeout=30)


def events(served: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of every event, whose name is its type."""
    with httpx.stream(
        "POST", served.url + "/v1/messages", json={**body, "stream": True}, timeout=30
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("event: ") for line in lines[::2])
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [each["type"] for each in found]
    return found


def test_a_message_is_answered_in_blocks(served: Served) -> None:
    answer = post(served, asked("SAY:good day|", system="be kind")).json()
    assert answer["content"] == [{"type": "text", "text": "good day"}] and answer["role"] == "assistant"
    assert (answer["type"], answer["stop_reason"], answer["stop_sequence"]) == ("message", "end_turn", None)
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (13, 9)
    assert post(served, asked("count", max_tokens=5)).json()["stop_reason"] == "max_tokens"
    stopped = post(served, asked("SAY:one two|", stop_sequences=[" t"])).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " t")
    assert stopped["content"][0]["text"] == "one"


def test_events_open_fill_and_close_blocks(served: Served) -> None:
    found = events(served, asked(f"SAY:so: {CALL}|", tools=[TOOL]))
    kinds = [each["type"] for each in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert found[0]["message"]["content"] == [] and found[0]["message"]["usage"]["input_tokens"] > 0
    blocks = [each["content_block"]["type"] for each in found if each["type"] == "content_block_start"]
    assert blocks == ["text", "tool_use"]
    assert [each["index"] for each in found if each["type"] == "content_block_stop"] == [0, 1]
    deltas = [each["delta"] for each in found if each["type"] == "content_block_delta"]
    assert "".join(each.get("text", "") for each in deltas) == "so: "
    assert json.loads("".join(each.get("partial_json", "") for each in deltas)) == {"place": "Oslo"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use" and found[-2]["usage"]["output_tokens"] > 10


def test_a_call_and_what_it_gave(served: Served) -> None:
    call = post(served, asked(f"SAY:{CALL}|", tools=[TOOL])).json()
    assert call["stop_reason"] == "tool_use" and call["content"][0]["input"] == {"place": "Oslo"}
    given = {
        "type": "tool_result",
        "tool_use_id": call["content"][0]["id"],
        "content": [{"type": "text", "text": "rain"}],
    }
    body = asked("", tools=[TOOL], messages=[
        {"role": "user", "content": "how is it?"}, {"role": "assistant", "content": call["content"]},
        {"role": "user", "content": [given, {"type": "text", "text": "SAY:wet|"}]},
    ])  # fmt: skip
    assert post(served, body).json()["content"] == [{"type": "text", "text": "wet"}]
    chat = chat_body_of(MessageBody.model_validate(body))
    assert [each.role for each in chat.messages] == ["user", "assistant", "tool", "user"]
    calls = chat.messages[1].tool_calls
    assert calls is not None and calls[0].id == chat.messages[2].tool_call_id
    assert json.loads(calls[0].function.arguments) == {"place": "Oslo"} and chat.messages[2].content == "rain"


@pytest.mark.parametrize(
    ("choice", "means", "is_parallel"),
    [
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "tool", "name": "weather"}, "weather", True),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], means: str, is_parallel: bool) -> None:
    chat = chat_body_of(MessageBody.model_validate(asked("a", tools=[TOOL], tool_choice=choice)))
    named = chat.tool_choice if isinstance(chat.tool_choice, str) else chat.tool_choice.function.name  # type: ignore[union-attr]
    assert (named, chat.parallel_tool_calls) == (means, is_parallel)


def test_what_is_not_taken_is_refused_by_its_name_in_anthropics_form(served: Served) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    wrong = {
        "'image'": asked("", messages=[{"role": "user", "content": [image]}]),
        "max_tokens": {"model": "said", "messages": [{"role": "user", "content": "a"}]},
        "thinking": asked("a", thinking={"type": "enabled", "budget_tokens": 1024}),
        "unknown": asked("a", unknown=1),
        "tool_choice": asked("a", tool_choice={"type": "tool", "name": "gone"}, tools=[TOOL]),
        "tool_use_id": asked("", messages=[{"role": "user", "content": [{"type": "tool_result"}]}]),
    }
    for word, body in wrong.items():
        answer = post(served, body)
        told = answer.json()
        assert answer.status_code == 400 and told["type"] == "error", (word, told)
        assert told["error"]["type"] == "invalid_request_error" and word in told["error"]["message"], told
    lost = post(served, {**asked("a"), "model": "gone"})
    assert (lost.status_code, lost.json()["error"]["type"]) == (404, "not_found_error")
    broken = events(served, asked("FAIL"))[-1]
    assert broken["type"] == "error" and broken["error"]["type"] == "api_error"
    with pytest.raises(ApiError, match="without id or name"):
        bad = [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]
        chat_body_of(MessageBody.model_validate(asked("", messages=bad)))


def test_tokens_are_counted_as_they_will_be_taken(served: Served) -> None:
    body = asked("SAY:good day|")
    counted = post(
        served, {key: body[key] for key in ("model", "messages")}, "/v1/messages/count_tokens"
    ).json()
    assert counted == {"input_tokens": post(served, body).json()["usage"]["input_tokens"]}


def test_keys_come_in_anthropics_header_too() -> None:
    with serving(ApiKeys(["secret"])) as served:
        for headers, status in (({"x-api-key": "secret"}, 200), ({"x-api-key": "other"}, 401), ({}, 401)):
            answer = httpx.post(served.url + "/v1/messages", json=asked("SAY:a|"), headers=headers)
            assert answer.status_code == status
        assert answer.json()["error"]["type"] == "authentication_error"


def test_anthropics_own_client_reads_answers_streams_and_errors(served: Served) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
    body = asked(f"SAY:so: {CALL}|", tools=[TOOL])
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == "so: " and final.stop_reason == whole.stop_reason == "tool_use"
    assert final.content[1].input == whole.content[1].input == {"place": "Oslo"}
    assert client.messages.count_tokens(model="said", messages=body["messages"]).input_tokens > 3
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**body, "model": "gone"})
