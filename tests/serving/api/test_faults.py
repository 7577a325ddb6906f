"""Many clients and bad ones, all at once: nothing hangs, nothing is held afterwards, and who behaves is served."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.executor.serving.paged_case import SIZES, their_model
from tests.serving.api.conftest import Served, serving
from tests.serving.api.test_ends import SERVER
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.load.event_client import ServerAddress
from meshwright.serving.load.load_generator import LoadPlan, send_load
from meshwright.serving.load.load_record import LoadFigures
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.request import Request

pytestmark = pytest.mark.slow
NUM_CLIENTS, NUM_BAD = 2000, 150
FILES = 2 * NUM_CLIENTS + 200  # both ends of every connection are in this process
SECONDS = 30.0


def quiet(num: int, of: int) -> None:
    return None


def load_of(num: int, tokens: int) -> list[Request]:
    return [Request(f"r{n}", 5 + n % 20, tokens, num_output_tokens=tokens) for n in range(num)]


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FILES, reason=f"ulimit -n is below {FILES}"
)
def test_two_thousand_connections_at_once_are_all_served() -> None:
    with serving(max_queue=4000, num_blocks=20_000) as served:
        address = ServerAddress.of_url(served.url)
        plan = LoadPlan(clients=NUM_CLIENTS, vocabulary=256, timeout_s=250)
        records = send_load(address, load_of(NUM_CLIENTS, 16), plan, quiet)
        found = LoadFigures.of(records, LatencyObjective())
        assert (found.num_finished, dict(found.errors)) == (NUM_CLIENTS, {})
        assert all(each.num_tokens == 16 for each in records)


def test_overload_is_refused_and_what_is_taken_is_served_in_bounded_time() -> None:
    with serving(step_s=0.005, max_queue=50) as served:
        plan = LoadPlan(clients=300, vocabulary=256, timeout_s=60)
        records = send_load(ServerAddress.of_url(served.url), load_of(300, 20), plan, quiet)
    refused = [each for each in records if "status 429" in each.error]
    good = [each for each in records if each.is_good]
    assert len(refused) + len(good) == 300 and len(good) >= 50 and refused
    assert max(each.e2e_s for each in good) < SECONDS


NUM_KINDS = 8  # of bad clients


async def bad_client(url: str, kind: int, draw: random.Random) -> None:
    """One of: vanishes in its head, in its body, in its stream; reads slowly; talks nonsense; sends a bomb."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    asked = {"model": "said", "prompt": "count", "max_tokens": 3000, "stream": True, "n": draw.randint(1, 4)}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"never": 1}}}
    bodies = {
        3: b"{" * 1000,
        4: json.dumps({**asked, "prompt": "a" * 400_000}).encode(),
        5: b"\x00\xff" * 500,
        6: json.dumps({**asked, "response_format": schema}).encode(),
        7: json.dumps({**asked, "prompt": [["a"]]}).encode(),
    }
    body = bodies.get(kind, json.dumps(asked).encode())
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sent = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    try:
        writer.write(sent[: draw.randrange(1, len(head))] if kind == 0 else sent[:-3] if kind == 1 else sent)
        await writer.drain()
        if kind >= 2:
            await asyncio.wait_for(reader.read(200), 20)
        await asyncio.sleep(draw.random())
    except (OSError, TimeoutError):
        return
    finally:
        writer.transport.abort()


def test_bad_clients_harm_nobody_and_leave_nothing_behind() -> None:
    draw = random.Random(7)

    async def all_of_them(url: str) -> None:
        await asyncio.gather(*(bad_client(url, n % NUM_KINDS, draw) for n in range(NUM_BAD)))

    with serving(step_s=0.001, limits=ServerLimits(read_s=1.0, write_s=1.0)) as served:
        address = ServerAddress.of_url(served.url)

        async def both() -> list[bool]:
            good = asyncio.to_thread(
                send_load, address, load_of(60, 12), LoadPlan(clients=10, vocabulary=256, timeout_s=60), quiet
            )
            found, _ = await asyncio.gather(good, all_of_them(served.url))
            return [each.is_good for each in found]

        assert all(asyncio.run(both()))
        state = wait_for_rest(served.service, SECONDS)
        assert (state.num_open, state.num_held_blocks, state.num_failures) == (0, 0, 0)
        assert httpx.get(served.url + "/ready").json() == {
            "status": "ready",
            "num_running": 0,
            "num_waiting": 0,
        }


def test_engines_that_break_under_load_are_replaced_until_it_is_no_use(served: Served) -> None:
    body = {"model": "said", "prompt": "count", "max_tokens": 20}
    assert httpx.post(served.url + "/v1/completions", json={**body, "prompt": "FAIL"}).status_code == 500
    assert httpx.post(served.url + "/v1/completions", json=body).status_code == 200
    for _ in range(2):
        assert httpx.post(served.url + "/v1/completions", json={**body, "prompt": "FAIL"}).status_code == 500
    ends_s = time.monotonic() + 10
    while httpx.get(served.url + "/ready").status_code == 200 and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert httpx.get(served.url + "/ready").json()["status"] == "failed"
    assert httpx.get(served.url + "/health").status_code == 503
    assert httpx.post(served.url + "/v1/completions", json=body).status_code == 503


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield made
    made.kill()
    made.wait(10)


def test_sigterm_under_load_ends_every_request_that_was_taken(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()

    async def loaded() -> list[str]:
        plan = LoadPlan(clients=60, vocabulary=256, timeout_s=60)
        load = asyncio.to_thread(send_load, ServerAddress.of_url(url), load_of(400, 30), plan, quiet)
        task = asyncio.create_task(load)
        await asyncio.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        return [each.error for each in await task]

    errors = asyncio.run(loaded())
    assert len(errors) == 400 and errors.count("") >= 60
    told = ("status 503", "the server is stopping", "cannot be reached", "is no HTTP")
    assert all(not error or any(word in error for word in told) for error in errors), set(errors)
    assert process.stdout.readline().split() == ["0", "0"] and process.wait(20) == 0


def children_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def commands_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="ranks are found in /proc")
def test_a_rank_that_is_killed_in_the_middle_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "bytes"
    their_model({"model_type": "llama", **SIZES, "vocab_size": 256}, folder)
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "serve",
        str(folder),
        "--engine",
        "torch",
        "--dtype",
        "float32",
    ]
    made = subprocess.Popen(
        [*command, "--tp", "2", "--blocks", "64", "--port", "0", "--device", "cpu"], stderr=subprocess.PIPE, text=True,
        env=dict(os.environ),
    )  # fmt: skip
    try:
        assert made.stderr is not None
        lines = iter(made.stderr.readline, "")
        url = next(line.split()[2] for line in lines if line.startswith("serving on ")).removesuffix("/v1")
        body = {"model": "bytes", "prompt": "abc", "max_tokens": 200, "ignore_eos": True}
        assert (
            httpx.post(url + "/v1/completions", json={**body, "max_tokens": 3}, timeout=60).status_code == 200
        )
        ranks = [pid for pid in children_of(made.pid) if "rank" in commands_of(pid)]
        assert len(ranks) == 2, [commands_of(pid) for pid in children_of(made.pid)]
        with httpx.stream(
            "POST", url + "/v1/completions", json={**body, "stream": True}, timeout=60
        ) as stream:
            told = stream.iter_lines()
            next(told)
            os.kill(ranks[1], signal.SIGKILL)
            rest = "".join(told)
        assert "error" in rest and "Traceback" not in rest and rest.endswith("[DONE]")
        again = httpx.post(url + "/v1/completions", json={**body, "max_tokens": 3}, timeout=120)
        assert again.status_code == 200 and httpx.get(url + "/ready").status_code == 200
        made.send_signal(signal.SIGTERM)
        assert made.wait(30) == 0
    finally:
        made.kill()
        made.wait(10)
