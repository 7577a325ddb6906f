"""Replicas that die, clients that leave, models that cannot be served: who is told what, and what is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.serving.api.test_faults import children_of
from tests.serving.front.conftest import TOLD, FrontServed, fronting, replicas_of

from meshwright.serving.front.forwarding import REPLICA
from meshwright.specs.error import SpecError, UnknownNameError

pytestmark = pytest.mark.slow
NUM = 2
STARTING = """
from tests.serving.front.conftest import replicas_of
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.server import Address, answer_until_told
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.front import front_of
address = Address(port=0)
served = front_of(replicas_of(2), ServerLimits(), ApiKeys())
answer_until_told(served, address, address.listen(), print)
"""


@pytest.fixture(scope="module")
def front() -> Iterator[FrontServed]:
    with fronting(NUM, step_s=0.005) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(front: FrontServed) -> None:
    """Every test begins with all replicas."""
    front.wait_ready(NUM)
    front.route_by("least_loaded")


def num_running(front: FrontServed, number: int) -> int:
    """As the replica itself says."""
    asked = f"uds of {number}"
    transport = httpx.HTTPTransport(uds=str(front.replicas._replicas[number].path))
    with httpx.Client(transport=transport, base_url="http://replica") as client:
        return int(client.get("/ready", headers={"x-asked": asked}).json()["num_running"])


def wait_running(front: FrontServed, number: int, num: int) -> None:
    ends_s = time.monotonic() + 20
    while num_running(front, number) != num:
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_is_aborted_in_the_replica(front: FrontServed, streams: bool) -> None:
    body = {"model": "said", "prompt": "count", "max_tokens": 4000, "stream": streams}
    with httpx.Client(timeout=30) as client:
        if streams:
            with client.stream("POST", f"{front.url}/v1/completions", json=body) as answer:
                lines = answer.iter_lines()  # which ends the stream when it goes
                assert next(lines)
                wait_running(front, 0, 1)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{front.url}/v1/completions", json=body, timeout=0.5)
    wait_running(front, 0, 0)
    ends_s = time.monotonic() + 5
    while front.replicas.router.replicas[0].num_open:
        assert time.monotonic() < ends_s
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["completions", "responses"])
def test_the_raw_end_of_a_broken_stream(front: FrontServed, kind: str) -> None:
    """Whole events only, then the error in the form of the path."""
    said = {"prompt": "count", "max_tokens": 4000} if kind == "completions" else {"input": "count"}
    body = {"model": "said", "stream": True, **said}
    with httpx.stream("POST", f"{front.url}/v1/{kind}", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        os.kill(front.pid(int(answer.headers[REPLICA.decode()])), signal.SIGKILL)
        found = [line for line in [first, *lines] if line]
    if kind == "completions":
        assert '"code":"replica_lost"' in found[-2] and found[-1] == "data: [DONE]"
    else:
        assert found[-2] == "event: error" and '"code":"replica_lost"' in found[-1]
    assert sum("replica_lost" in line for line in found) == 1


def test_what_nobody_has_read_of_is_asked_again(front: FrontServed) -> None:
    """A whole answer, whose replica is killed while it computes: the other computes it from the beginning."""
    body = {"model": "said", "prompt": "count", "max_tokens": 300}

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            asking = asyncio.create_task(client.post(f"{front.url}/v1/completions", json=body))
            await asyncio.to_thread(wait_running, front, 0, 1)
            os.kill(front.pid(0), signal.SIGKILL)
            return await asking

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.headers[REPLICA.decode()]) == (200, "1")
    assert answer.json()["usage"]["completion_tokens"] == 300


def test_a_request_that_kills_replicas_is_given_up(front: FrontServed) -> None:
    """After two; a third is not tried."""
    answer = front.complete("DIE", 5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")
    nobody = front.complete("abc")
    assert nobody.status_code in (200, 503)
    assert nobody.status_code == 200 or nobody.json()["error"]["code"] == "no_replica"
    front.wait_ready(NUM)
    assert front.complete("abc").status_code == 200


def test_a_replica_that_does_not_answer_is_routed_around(front: FrontServed) -> None:
    """It is stopped and cannot say that it is ready; when it goes on it is asked again."""
    os.kill(front.pid(0), signal.SIGSTOP)
    try:
        front.replicas._replicas[0].status = "failed"  # as the look finds after its ten seconds
        assert front.complete("abc").headers[REPLICA.decode()] == "1"
    finally:
        os.kill(front.pid(0), signal.SIGCONT)
    front.wait_ready(NUM)


def test_a_model_that_cannot_be_served_is_told_and_nothing_is_left() -> None:
    replicas = replicas_of(2, refuses=True)

    async def begun() -> None:
        async with replicas:
            raise AssertionError("it serves")

    with pytest.raises(SpecError, match="this model cannot be served"):
        asyncio.run(begun())
    assert all(each.process and each.process.process.returncode is not None for each in replicas._replicas)
    with pytest.raises(UnknownNameError, match="prefix_aware"):
        replicas_of(2, "prefix")


def test_a_replica_ends_with_its_front(tmp_path: Path) -> None:
    """However that ended: all it sees is that nobody can tell it anything any more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.serving.front.saying_replica"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({**TOLD, "path": str(tmp_path / "s"), "number": 0}).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["num_tokens"] > 0
    process.stdin.close()
    assert process.wait(20) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_front_that_is_told_to_end_while_it_starts_leaves_nothing(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """No process, no socket and no word of what it had not yet done."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    children: list[int] = []
    while len(children) < 2:
        assert process.poll() is None
        time.sleep(0.01)
        children = children_of(process.pid)
    process.send_signal(number)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert said == "" and "never retrieved" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in children) and not list(tmp_path.iterdir())
