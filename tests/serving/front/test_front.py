"""A front of real processes: it answers as one server does, and decides as the simulated fleet does."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serving.api.said import BLOCK_TOKENS
from tests.serving.front.conftest import FrontServed, fronting
from tests.serving.simulated_case import program, table

from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.fleet.fleet import serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.front.forwarding import REPLICA
from meshwright.serving.load.load_prompt import prompt_of
from meshwright.serving.request.request import Request
from meshwright.serving.routing.router import ROUTERS
from meshwright.serving.simulated.replica_layout import ReplicaLayout

NUM = 3
# session and blocks of the prompt
SESSIONS = ((0, 4), (1, 5), (2, 4), (1, 6), (0, 5), (3, 4), (2, 6), (4, 9), (1, 7), (0, 6))


@pytest.fixture(scope="module")
def front() -> Iterator[FrontServed]:
    with fronting(NUM, step_s=0.002) as made:
        yield made


def raw_status(url: str, line: str) -> int:
    """Of the answer to a request line that clients do not send by themselves."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as made:
        made.sendall(f"{line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return int(made.recv(4096).split()[1])


def test_answers_are_those_of_one_server(front: FrontServed) -> None:
    """Whole and as a stream, by each of its clients' ways; what is wrong is told by the replica, or by the front."""
    client = front.client()
    for _ in range(NUM):
        done = client.completions.create(model="said", prompt="SAY:hello|", max_tokens=20)
        assert (done.choices[0].text, done.choices[0].finish_reason) == ("hello", "stop")
    messages: list[openai.types.chat.ChatCompletionUserMessageParam] = [
        {"role": "user", "content": "SAY:well|"}
    ]
    stream = client.chat.completions.create(model="said", messages=messages, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in stream if each.choices) == "well"
    assert [each.id for each in client.models.list()] == ["said"]
    asked = httpx.post(f"{front.url}/tokenize", json={"model": "said", "prompt": "abc"})
    assert asked.json()["count"] == 3
    for body, status, code in (
        ({"model": "said", "prompt": "a", "max_tokens": -1}, 400, "invalid_body"),
        ({"model": "none", "prompt": "a"}, 404, "model_not_found"),
    ):
        answer = httpx.post(f"{front.url}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert httpx.post(f"{front.url}/v1/completions", content=b"{" * 9_000_000).status_code == 413
    for path in ("/nothing", "//nothing", "/v1/models/none?a=b%20c", "/v1/%2e%2e/models"):
        assert httpx.get(front.url + path).status_code == 404
    for target in ("http://other/v1/models", "*"):
        assert raw_status(front.url, f"GET {target} HTTP/1.1") == 404
    assert httpx.get(f"{front.url}/ready").json()["status"] == "ready"


def test_events_pass_as_they_come(front: FrontServed) -> None:
    """The first is here long before the last: a hundred tokens of two milliseconds each, and one that is read at once."""
    body = {"model": "said", "prompt": "count", "max_tokens": 1000, "stream": True}
    with httpx.stream("POST", f"{front.url}/v1/completions", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        number = int(answer.headers[REPLICA.decode()])
        assert front.replicas.router.replicas[number].num_open == 1, "it still runs"
    front.wait_ready(NUM)


def test_metrics_are_told_apart_by_replica(front: FrontServed) -> None:
    front.route_by("round_robin")
    for _ in range(NUM):
        assert front.complete("abc").status_code == 200
    text = httpx.get(f"{front.url}/metrics").text
    found = {each.name: each for each in text_string_to_metric_families(text)}
    tokens = {each.labels["engine"]: each.value for each in found["vllm:generation_tokens"].samples}
    assert set(tokens) == {"0", "1", "2"} and min(tokens.values()) >= 4
    ready = {each.labels["engine"]: each.value for each in found["meshwright:replica_ready"].samples}
    assert ready == {"0": 1.0, "1": 1.0, "2": 1.0}
    mine = [each for each in found["http_requests"].samples if each.labels["handler"] == "/v1/completions"]
    assert sum(each.value for each in mine if each.labels["status"] == "2xx") >= NUM
    assert sum(line.startswith("# TYPE vllm:generation_tokens_total ") for line in text.splitlines()) == 1


def sessions() -> list[Request]:
    """Prompts of five sessions, which begin alike and grow; one has a beginning of its own."""
    found = []
    for number, (session, blocks) in enumerate(SESSIONS):
        keys = tuple((session, block) for block in range(blocks))
        tokens = blocks * BLOCK_TOKENS + 3
        found.append(Request(f"r{number}", tokens, 40, num_output_tokens=40, block_keys=keys))
    return found


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "router",
    [name if name == "prefix_aware" else pytest.param(name, marks=pytest.mark.slow) for name in ROUTERS],
)
def test_the_front_decides_as_the_simulated_fleet(front: FrontServed, router: str, at_once: bool) -> None:
    """The same requests go to the same replicas: one behind the other, and while all of them run."""
    gap_s = 1e-6 if at_once else 100.0
    requests = [replace(each, arrival_s=gap_s * n) for n, each in enumerate(sessions())]
    plan = ServingPlan(
        ReplicaLayout(), NUM, max_batch_tokens=128, max_sequences=32, router=router, block_tokens=BLOCK_TOKENS
    )
    logs = serve(plan, program(), table(), requests, 2048).logs
    simulated = {record.request.id: number for number, log in enumerate(logs) for record in log.records}
    front.route_by(router)
    real: dict[str, int] = {}
    with ExitStack() as open_ones:
        for each in requests:
            prompt = prompt_of(each, BLOCK_TOKENS, 200, seed=1)
            body = {"model": "said", "prompt": prompt, "max_tokens": 2000 if at_once else 2, "stream": True}
            url = f"{front.url}/v1/completions"
            answer = open_ones.enter_context(httpx.stream("POST", url, json=body, timeout=30))
            if not at_once:
                answer.read()
            real[each.id] = int(answer.headers[REPLICA.decode()])
    assert real == simulated
    assert len(set(real.values())) == (NUM if at_once or router == "round_robin" else 1)


def test_a_replica_that_is_killed_is_started_again(front: FrontServed) -> None:
    """Its stream ends with one clear error, others are served meanwhile by the others, and it comes back."""
    front.route_by("least_loaded")
    stream = front.client().completions.create(model="said", prompt="count", max_tokens=4000, stream=True)
    assert next(iter(stream)).choices
    os.kill(front.pid(0), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="replica that computed this request was lost"):
        for _ in stream:
            continue
    assert front.complete("abc").headers[REPLICA.decode()] == "1"
    assert [each["num_starts"] for each in front.wait_ready(NUM)] == [2, 1, 1]
    assert front.complete("abc").headers[REPLICA.decode()] == "0", "it is sent requests again"


@pytest.mark.slow
def test_keys_are_asked_for_by_the_front_and_by_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_API_KEYS", "open sesame")
    body = {"model": "said", "prompt": "abc", "max_tokens": 2}
    with fronting(1, ApiKeys(["open sesame"])) as front:
        for key, status in (("open sesame", 200), ("sesame", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.post(f"{front.url}/v1/completions", json=body, headers=headers)
            assert answer.status_code == status
        assert httpx.get(f"{front.url}/ready").status_code == 200


@pytest.mark.slow
def test_a_queue_that_is_full_is_told_when_all_are() -> None:
    """One request fits into each replica."""
    with fronting(2, step_s=0.005, max_queue=1) as front, ExitStack() as open_ones:
        front.route_by("round_robin")
        body = {"model": "said", "prompt": "count", "max_tokens": 2000, "stream": True}
        numbers = []
        for _ in range(2):
            url = f"{front.url}/v1/completions"
            answer = open_ones.enter_context(httpx.stream("POST", url, json=body, timeout=30))
            numbers.append(answer.headers[REPLICA.decode()])
        refused = front.complete("abc")
        assert sorted(numbers) == ["0", "1"] and refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert json.loads(refused.content)["error"]["code"] == "queue_full"


@pytest.mark.slow
def test_adapters_are_loaded_and_dropped_in_every_replica_and_in_who_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "adapter.txt").touch()
    with fronting(2, router="round_robin", adapters=str(tmp_path)) as front:
        body = {"lora_name": "loud", "lora_path": "one"}
        assert httpx.post(front.url + "/v1/load_lora_adapter", json=body).status_code == 200
        said = [front.complete("SAY:yes|", model="loud").json()["choices"][0]["text"] for _ in range(4)]
        assert said == ["YES"] * 4
        os.kill(front.pid(0), signal.SIGKILL)
        while front.wait_ready(2)[0]["num_starts"] < 2:
            time.sleep(0.02)
        said = [front.complete("SAY:yes|", model="loud").json()["choices"][0]["text"] for _ in range(4)]
        assert said == ["YES"] * 4
        assert httpx.post(front.url + "/v1/load_lora_adapter", json=body).status_code == 400
        assert (
            httpx.post(front.url + "/v1/unload_lora_adapter", json={"lora_name": "loud"}).status_code == 200
        )
        assert {front.complete("SAY:yes|", model="loud").status_code for _ in range(4)} == {404}
