"""A soak in miniature: random clients of every kind, good and bad, for a while; afterwards nothing is left of them.

pytest -m slow tests/serving/api/test_soak.py --soak-seconds 3600
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.serving.api.conftest import Served, serving
from tests.serving.api.test_faults import NUM_KINDS, bad_client
from tests.serving.api.test_messages import CALL, TOOL
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.stored.pooling import Pooling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
NUM_CLIENTS, MAX_QUEUE, NUM_BLOCKS = 24, 16, 400
OBJECTS, MEGABYTES = 2000, 32  # that a process may have more of at the end than when it was warm
GOOD = (200, 400, 404, 429, 504)
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": TOOL["input_schema"]}}


def asked(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body: most of them good, of every kind that there is."""
    text = draw.choice(
        ("count", "SAY:good day|", "a" * draw.randint(1, 3000), f"SAY:{CALL}|", "x" * 5000, "SAY:" + "ü" * 50 + "|")
    )  # fmt: skip
    model = draw.choice(("said", "said", "said", "loud", "gone"))
    more: dict[str, Any] = {"model": model, "stream": draw.random() < 0.5}
    few = {
        "max_tokens": draw.randint(1, 200),
        "temperature": draw.choice((0, 1.0)),
        "stop": draw.choice((None, "q")),
    }
    late = {"timeout_s": draw.choice((0.001, 0.05, 30.0))}
    say = [{"role": "user", "content": text}]
    return draw.choice(
        (
            (
                "/v1/completions",
                {**more, **few, **late, "prompt": text, "n": draw.randint(1, 5), "logprobs": 2},
            ),
            ("/v1/completions", {**more, **few, "prompt": [text[:90], [1, 2, 3]]}),
            ("/v1/chat/completions", {**more, **few, **late, "messages": say, "tools": [CHAT_TOOL]}),
            ("/v1/chat/completions", {**more, **few, "messages": say, "logprobs": True, "top_logprobs": 3}),
            ("/v1/responses", {**more, **late, "input": text, "max_output_tokens": few["max_tokens"]}),
            ("/v1/messages", {**more, "messages": say, "max_tokens": few["max_tokens"], "tools": [TOOL]}),
            ("/v1/messages", {**more, "messages": say}),
            ("/tokenize", {"prompt": text}),
            ("/v1/load_lora_adapter", {"lora_name": "loud", "lora_path": "one"}),
            ("/v1/unload_lora_adapter", {"lora_name": "loud"}),
            ("/v1/embeddings", {"model": model, "input": [text, "b"]}),
            ("/v1/rerank", {"model": model, "query": text, "documents": ["a", text]}),
        )
    )


async def clients(url: str, seconds: float, draw: random.Random) -> Counter[int]:
    """Several at once; each asks, reads all, a part or nothing of the answer, and asks again."""
    found: Counter[int] = Counter()
    ends_s = time.monotonic() + seconds

    async def good(client: httpx.AsyncClient) -> None:
        path, body = asked(draw)
        body = {key: value for key, value in body.items() if value is not None}
        async with client.stream("POST", url + path, json=body, timeout=60) as answer:
            found[answer.status_code] += 1
            left = draw.choice((1, 3, 10**9, 10**9))
            async for part in answer.aiter_bytes():
                assert b"Traceback" not in part
                left -= 1
                if not left:
                    return
                if draw.random() < 0.02:
                    await asyncio.sleep(0.05)

    async def one(number: int) -> None:
        async with httpx.AsyncClient() as client:
            while time.monotonic() < ends_s:
                if number % 4 == 0:
                    await bad_client(url, draw.randrange(NUM_KINDS), draw)
                else:
                    await good(client)

    await asyncio.gather(*(one(number) for number in range(NUM_CLIENTS)))
    return found


def at_rest(served: Served) -> tuple[int, int, set[str], float, int]:
    """Tasks of the server, connections, threads, megabytes and objects of the process, when all have left."""
    state = wait_for_rest(served.service, 30)
    assert (state.num_open, state.num_running, state.num_waiting, state.num_held_blocks) == (0, 0, 0, 0), (
        state
    )
    ends_s = time.monotonic() + 20
    while len(asyncio.all_tasks(served.loop)) > 1 and time.monotonic() < ends_s:
        time.sleep(0.1)
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    threads = {each.name for each in threading.enumerate() if not each.name.startswith(("asyncio_", "AnyIO"))}
    return (
        len(asyncio.all_tasks(served.loop)),
        served.lifecycle.num_answering,
        threads,
        resident,
        len(gc.get_objects()),
    )


def test_a_soak_leaves_nothing_behind(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    seconds, draw = request.config.getoption("--soak-seconds"), random.Random(11)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "adapter.txt").touch()
    limits = ServerLimits(read_s=1.0, write_s=1.0, timeout_s=20.0)
    threads = threading.active_count()
    with serving(
        limits=limits,
        adapters_folder=tmp_path,
        step_s=0.001,
        max_queue=MAX_QUEUE,
        num_blocks=NUM_BLOCKS,
        pooling=Pooling(True),
    ) as served:
        asyncio.run(clients(served.url, seconds / 2, draw))
        warm = at_rest(served)
        found = asyncio.run(clients(served.url, seconds / 2, draw))
        end = at_rest(served)
        state = served.service.snapshot()
        done = served.client().completions.create(model="said", prompt="SAY:still here|", max_tokens=20)
    assert done.choices[0].text == "still here" and state.num_failures == 0
    assert set(found) <= set(GOOD) and {200, 400, 404, 429, 504} <= set(found), found
    assert end[:3] == warm[:3] and end[:2] == (1, 0), (warm, end)
    assert end[3] - warm[3] < MEGABYTES and end[4] - warm[4] < OBJECTS, (warm, end)
    assert threading.active_count() <= threads
    print(
        f"{sum(found.values())} requests in {seconds / 2:g} s, {dict(found)}; at rest {warm[3:]}, then {end[3:]}"
    )
