"""A front under load: clients that vanish, queues that are full and replicas that die, all at once, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading

import pytest
from tests.serving.api.test_faults import bad_client, load_of, quiet
from tests.serving.front.conftest import FrontServed, fronting

from meshwright.serving.load.event_client import ServerAddress
from meshwright.serving.load.load_generator import LoadPlan, send_load
from meshwright.serving.load.load_record import LoadRecord

pytestmark = pytest.mark.slow
NUM, NUM_BAD, NUM_GOOD = 3, 90, 400
SECONDS = 60.0  # which no request may take
TOLD = ("replica that computed", "status 429", "no replica is ready")


def loaded(front: FrontServed, clients: int) -> list[LoadRecord]:
    plan = LoadPlan(clients=clients, vocabulary=256, timeout_s=SECONDS)
    return send_load(ServerAddress.of_url(front.url), load_of(NUM_GOOD, 12), plan, quiet)


def test_a_soak_in_miniature() -> None:
    """Every request ends, whole or with one of three errors; a replica is killed every four seconds."""
    draw, done = random.Random(5), threading.Event()

    def kill(front: FrontServed) -> None:
        while not done.wait(4.0):
            os.kill(front.pid(draw.randrange(NUM)), signal.SIGKILL)

    async def bad(front: FrontServed) -> None:
        await asyncio.gather(*(bad_client(front.url, n % 8, draw) for n in range(NUM_BAD)))

    with fronting(NUM, router="prefix_aware", step_s=0.002, max_queue=40) as front:
        killing = threading.Thread(target=kill, args=(front,))
        killing.start()
        harming = threading.Thread(target=lambda: asyncio.run(bad(front)))
        harming.start()
        records = [each for clients in (20, 200) for each in loaded(front, clients)]
        harming.join()
        done.set()
        killing.join()
        front.wait_ready(NUM)
        front.route_by("round_robin")  # which waits until nothing is open
        assert [front.complete("SAY:well|", 9).json()["choices"][0]["text"] for _ in range(NUM)] == [
            "well"
        ] * NUM
    assert len(records) == 2 * NUM_GOOD and sum(each.is_good for each in records) >= NUM_GOOD / 4
    assert all(each.is_good or any(word in each.error for word in TOLD) for each in records)
    assert max(each.e2e_s for each in records if each.is_good) < SECONDS


def test_a_load_is_shared_and_overload_is_refused() -> None:
    """As many as fit are served, by all replicas; the others hear 429."""
    with fronting(NUM, step_s=0.005, max_queue=10) as front:
        records = loaded(front, 200)
        refused = [each for each in records if "status 429" in each.error]
        good = [each for each in records if each.is_good]
        assert len(refused) + len(good) == NUM_GOOD and len(good) >= 10 * NUM and refused
    assert front.replicas.figures["num_requests"] == len(good)
