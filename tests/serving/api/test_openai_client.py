"""What the real openai client gets: completions, chats, streams, usage, several outputs, stop texts, log-probabilities."""

from __future__ import annotations

import openai
import pytest


def test_a_text_is_continued(client: openai.OpenAI) -> None:
    done = client.completions.create(model="said", prompt="count", max_tokens=9)
    assert done.choices[0].text == "fghijklmn" and done.choices[0].finish_reason == "length"
    assert done.usage is not None and (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 9)
    assert done.object == "text_completion" and done.model == "said"


def test_a_stream_says_the_same_in_parts(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="said", prompt="count", max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "fghijklmn"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 8 + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 14


def test_prompts_of_tokens_and_lists_of_prompts(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="said", prompt=[list(b"SAY:one|"), list(b"SAY:two|")], n=2, max_tokens=20,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert [(c.index, c.text) for c in done.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    extra = done.choices[2].model_extra or {}
    assert extra["prompt_token_ids"] == list(b"SAY:two|") and extra["token_ids"] == [*b"two", 256]


def test_the_end_of_text_can_be_ignored(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="said", prompt="SAY:ab|", max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None and done.usage.completion_tokens == 6


@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_text_ends_the_output_and_is_not_part_of_it(client: openai.OpenAI, streams: bool) -> None:
    asked = client.completions.create(
        model="said", prompt="SAY:one two three|", max_tokens=99, stop=["x", "wo th"], stream=streams
    )
    choices = [each.choices[0] for each in (asked if streams else [asked])]  # type: ignore[union-attr]
    assert "".join(choice.text for choice in choices) == "one t"
    assert choices[-1].finish_reason == "stop"
    assert (choices[-1].model_extra or {})["stop_reason"] == "wo th"


def test_characters_of_several_tokens_come_whole(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="said", prompt="SAY:aä€😀z|", max_tokens=99, stream=True)
    parts = [chunk.choices[0].text for chunk in stream]
    assert "".join(parts) == "aä€😀z" and all("\ufffd" not in part for part in parts)


def test_log_probabilities_of_completions(client: openai.OpenAI) -> None:
    done = client.completions.create(model="said", prompt="SAY:abc|", max_tokens=9, logprobs=2)
    found = done.choices[0].logprobs
    assert found is not None
    assert found.tokens == ["a", "b", "c", ""] and found.text_offset == [0, 1, 2, 3]
    assert found.token_logprobs == [0.0] * 4
    assert found.top_logprobs is not None and found.top_logprobs[1] == {"b": 0.0, "A": -40.0}


def test_echo_puts_the_prompt_before(client: openai.OpenAI) -> None:
    done = client.completions.create(model="said", prompt="SAY:abc|", max_tokens=9, echo=True)
    assert done.choices[0].text == "SAY:abc|abc"


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model="said", messages=[{"role": "user", "content": [{"type": "text", "text": "SAY:hello|"}]}], n=2
    )
    assert [choice.message.content for choice in done.choices] == ["hello", "hello"]
    assert done.choices[0].message.role == "assistant" and done.choices[0].finish_reason == "stop"
    assert done.usage is not None and done.usage.completion_tokens == 12


def test_a_chat_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="said", messages=[{"role": "user", "content": "SAY:hello|"}], stream=True, logprobs=True, top_logprobs=1,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in said) == "hello"
    assert said[0].delta.role == "assistant" and said[-1].finish_reason == "stop"
    assert said[0].logprobs is not None and said[0].logprobs.content is not None
    first = said[0].logprobs.content[0]
    assert (first.token, first.bytes, first.top_logprobs[0].logprob) == ("h", [104], 0.0)
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6


CALL = 'SAY:I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>|'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def test_calls_of_tools_are_found(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model="said", messages=[{"role": "user", "content": CALL}], tools=TOOLS  # type: ignore[call-overload]
    )  # fmt: skip
    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look. "
    assert choice.message.tool_calls[0].function.name == "weather"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Bern"}'


def test_calls_of_tools_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="said", messages=[{"role": "user", "content": CALL}], tools=TOOLS  # type: ignore[arg-type]
    ) as stream:  # fmt: skip
        done = stream.get_final_completion()
    message = done.choices[0].message
    assert message.content == "I look. " and done.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"city": "Bern"}'


def test_a_named_tool_gets_the_output_as_its_arguments(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    done = client.chat.completions.create(
        model="said", messages=[{"role": "user", "content": 'SAY:{"city": "Bern"}|'}], tools=TOOLS, tool_choice=named,
    )  # type: ignore[call-overload]  # fmt: skip
    assert done.choices[0].message.tool_calls[0].function.arguments == '{"city": "Bern"}'


def test_a_response(client: openai.OpenAI) -> None:
    done = client.responses.create(model="said", input="SAY:hello|", instructions="be short")
    assert done.output_text == "hello" and done.status == "completed"
    assert done.usage is not None and done.usage.output_tokens == 6


def test_a_response_streams(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="said", input="SAY:hello|", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "hello"
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "hello"


def test_a_response_that_calls_and_is_cut(client: openai.OpenAI) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    done = client.responses.create(model="said", input=CALL, tools=[tool])  # type: ignore[list-item]
    assert [item.type for item in done.output] == ["message", "function_call"]
    cut = client.responses.create(model="said", input="count", max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_the_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["said"]
    assert client.models.retrieve("said").id == "said"
    with pytest.raises(openai.NotFoundError, match="allowed: said"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "other"}, "there is no model named 'other'"),
        ({"max_tokens": 5000}, "takes 4096 together"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [300]}, "token 300"),
        ({"prompt": ["a"] * 65}, "65 prompts; allowed: 64"),
        ({"prompt": ["a"] * 64, "n": 3}, "3 outputs of 64 prompts"),
        ({"stop": "s" * 300}, "300 characters"),
        ({"temperature": 3.0}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"max_token": 5}, "max_token"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"999": 1.0}}, "token 999"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    client: openai.OpenAI, body: dict[str, object], words: str
) -> None:
    asked = {"model": "said", "prompt": "a", **body}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        client.post("/completions", body=asked, cast_to=object)
    assert words in str(refused.value)
    assert refused.value.body is not None and set(refused.value.body) == {"message", "type", "param", "code"}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "'image_url'",
        ),
        ({"tool_choice": "required"}, "no tools are offered"),
        ({"chat_template_kwargs": {"tokenize": False}}, "tokenize"),
        ({"chat_template_kwargs": {"refuse": True}}, "the template refuses"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": 9999}, "takes 4096"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ],
)
def test_what_a_chat_cannot_be_is_refused(client: openai.OpenAI, body: dict[str, object], words: str) -> None:
    asked = {"model": "said", "messages": [{"role": "user", "content": "a"}], **body}
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/chat/completions", body=asked, cast_to=object)
    assert words in str(refused.value)
