"""How requests end that do not run to their end: clients that leave, deadlines, full queues, servers that stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx2 as httpx
import openai
import pytest
from tests.serving.api.conftest import Served, serving
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.limit import ServerLimits

LONG = {"model": "said", "prompt": "count", "max_tokens": 4000}


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """4000 tokens take 20 seconds at least; three requests fit."""
    with serving(step_s=0.005, max_queue=3) as made:
        yield made


def wait_until(served: Served, num_open: int) -> None:
    ends_s = time.monotonic() + 10
    while served.service.snapshot().num_open != num_open:
        assert time.monotonic() < ends_s, served.service.snapshot()
        time.sleep(0.005)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_is_aborted_and_the_blocks_are_free(slow: Served, streams: bool, path: str) -> None:
    messages = {"messages": [{"role": "user", "content": "count"}]}
    body = {"/v1/completions": LONG, "/v1/chat/completions": {"model": "said", **messages}}
    asked = body.get(path, {"model": "said", "input": "count"})
    with httpx.Client(timeout=30) as client:
        if streams:
            with client.stream("POST", slow.url + path, json={**asked, "stream": True}) as answer:
                lines = answer.iter_lines()  # which ends the stream when it goes
                assert next(lines)
                wait_until(slow, 1)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(slow.url + path, json=asked, timeout=0.2)
    state = wait_for_rest(slow.service)
    assert (state.num_open, state.num_held_blocks) == (0, 0)


def test_who_leaves_the_queue_is_aborted(slow: Served) -> None:
    with httpx.Client(timeout=30) as client, pytest.raises(httpx.ReadTimeout):
        client.post(
            slow.url + "/v1/completions", json={**LONG, "prompt": ["a", "b", "c"], "n": 4}, timeout=0.1
        )
    state = wait_for_rest(slow.service)
    assert (state.num_open, state.num_held_blocks) == (0, 0)


def test_a_stop_text_ends_the_work(slow: Served) -> None:
    done = slow.client().completions.create(model="said", prompt="count", max_tokens=4000, stop="hij")
    assert done.choices[0].text == "fg"
    assert wait_for_rest(slow.service).num_open == 0


@pytest.mark.parametrize(
    ("body", "header"),
    [({"timeout_s": 0.2}, {}), ({}, {"X-Timeout-S": "0.2"}), ({"timeout_s": 9}, {"X-Timeout-S": "0.2"})],
)
def test_a_deadline_ends_a_request(slow: Served, body: dict[str, float], header: dict[str, str]) -> None:
    answer = httpx.post(slow.url + "/v1/completions", json={**LONG, **body}, headers=header, timeout=30)
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"
    assert wait_for_rest(slow.service).num_held_blocks == 0


def test_a_deadline_ends_a_stream_with_an_error(slow: Served) -> None:
    with pytest.raises(openai.APIError, match="deadline"):
        list(slow.client().completions.create(**LONG, stream=True, extra_body={"timeout_s": 0.2}))


def test_a_full_queue_is_told_with_the_time_to_come_again(slow: Served) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(httpx.post, slow.url + "/v1/completions", json={**LONG, "timeout_s": 1.0}, timeout=30)
            for _ in range(3)
        ]
        wait_until(slow, 3)
        for prompt in ("a", ["a", "b"]):
            full = httpx.post(slow.url + "/v1/completions", json={**LONG, "prompt": prompt})
            assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
            assert full.json()["error"]["type"] == "rate_limit_error"
        assert slow.service.snapshot().num_open == 3
        assert httpx.get(slow.url + "/ready").status_code == 200
        assert [each.result().status_code for each in waiting] == [504] * 3


def test_what_can_never_fit_is_refused_at_once() -> None:
    with serving(num_blocks=8) as served:
        refused = httpx.post(served.url + "/v1/completions", json={**LONG, "max_tokens": 1000})
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "request_refused"


def test_part_of_a_list_that_does_not_fit_leaves_nothing_behind() -> None:
    with serving(step_s=0.005, max_queue=2) as served:
        full = httpx.post(served.url + "/v1/completions", json={**LONG, "prompt": ["a", "b", "c"]})
        assert full.status_code == 429
        assert wait_for_rest(served.service).num_open == 0


@pytest.mark.slow
def test_a_slow_reader_is_left_and_holds_nothing() -> None:
    async def read_nothing(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.get_extra_info("socket").setsockopt(1, 8, 1024)  # SOL_SOCKET, SO_RCVBUF
        body = json.dumps({**LONG, "n": 64, "stream": True, "return_token_ids": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await asyncio.sleep(3.0)
        writer.close()

    with serving(limits=ServerLimits(write_s=0.5)) as served:
        asyncio.run(read_nothing(served.url))
        assert wait_for_rest(served.service, 5).num_open == 0


SERVER = """
import logging
from tests.serving.api.said import MAX_TOKENS, VOCABULARY, ByteText, no_grammar, saying_service
from tests.serving.rest import wait_for_rest
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.server import Address, serve_until_told
from meshwright.serving.api.limit import ServerLimits
metrics = ServerMetrics("said", MAX_TOKENS)
service = saying_service(step_s=0.01, observers=[metrics])
metrics.watch(service.snapshot)
model = ModelService(
    "said", service, ByteText(), MAX_TOKENS, VOCABULARY, no_grammar, limits=ServerLimits(drain_s=1.5), observer=metrics
)
address = Address(port=0)
serve_until_told(model, metrics, address, address.listen(), ApiKeys(), lambda url: print(url, flush=True))
state = wait_for_rest(service)
print(state.num_open, state.num_held_blocks, flush=True)
service.close()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield made
    made.kill()
    made.wait(10)


@pytest.mark.slow
def test_sigterm_lets_finish_what_runs_and_takes_nothing_more(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        short = pool.submit(httpx.post, url + "/v1/completions", json={**LONG, "max_tokens": 80}, timeout=30)
        long = pool.submit(httpx.post, url + "/v1/completions", json=LONG, timeout=30)
        time.sleep(0.4)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        ready = httpx.get(url + "/ready")
        assert ready.status_code == 503 and ready.json()["status"] == "draining"
        refused = httpx.post(url + "/v1/completions", json=LONG)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert len(short.result().json()["choices"][0]["text"]) == 80
        ended = long.result()
        assert ended.status_code == 503 and ended.json()["error"]["code"] == "draining"
    assert process.stdout.readline().split() == ["0", "0"]
    assert process.wait(10) == 0


def test_a_head_that_never_ends_is_timed_out_and_others_are_served_meanwhile() -> None:
    """A byte now and then keeps no place: neither in a first head, nor in one behind an answer."""
    with serving(limits=ServerLimits(read_s=0.5)) as served:
        host, port = served.url.removeprefix("http://").split(":")

        def drip(begun: bytes) -> tuple[float, bytes]:
            """Seconds until the server says that it was too slow, and all that it said."""
            with socket.create_connection((host, int(port)), 5) as made:
                made.sendall(begun)
                made.settimeout(0.1)
                at, answer = time.monotonic(), b""
                while b"408" not in answer and time.monotonic() < at + 10:
                    with contextlib.suppress(TimeoutError):
                        made.sendall(b"x")
                        answer += made.recv(65536)
                return time.monotonic() - at, answer

        heads = [
            b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nX: ",
            b"",
            b"G",
        ]
        with concurrent.futures.ThreadPoolExecutor(len(heads)) as pool:
            ended = list(pool.map(drip, heads))
            done = served.client().completions.create(model="said", prompt="SAY:yes|", max_tokens=9)
        assert done.choices[0].text == "yes"
        for seconds, answer in ended:
            assert 0.3 < seconds < 3 and b"HTTP/1.1 408 Request Timeout" in answer, ended
        assert ended[0][1].startswith(b"HTTP/1.1 200")
