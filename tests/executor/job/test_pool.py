"""Pools: nothing survives them, whatever happened inside; jobs use as many workers as they have ranks."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.executor.relay_handlers import first_values, relay
from tests.gloo_pool import HELD_THREADS, SETTLED_S, thread_ids
from tests.planned_case import Planned

from meshwright.executor import run_program
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.error import ExecutionError


def is_alive(process_id: int) -> bool:
    """Is there such a process?"""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def listening_ports(process_ids: tuple[int, ...]) -> list[str]:
    """Local addresses of listening sockets of these processes, as the kernel writes them (Linux)."""
    inodes = set()
    for process_id in process_ids:
        for link in Path(f"/proc/{process_id}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


def num_new_threads(pool: Pool, before: list[set[str]]) -> int:
    """The most that one of its workers has and did not have before (Linux)."""
    return max(len(now - was) for was, now in zip(before, thread_ids(pool), strict=True))


def run(pool: Pool, **options: object) -> float:
    """The relay's total after two iterations."""
    result = run_program(
        relay(),
        initial_values=first_values(),
        iterations=2,
        keep=("total",),
        pool=pool,
        **options,
    )
    return float(result.values[1][ValueName("total")])


@pytest.mark.slow
def test_it_starts_again_after_a_failure_and_nothing_survives_it() -> None:
    threads = threading.active_count()
    with Pool(2) as pool:
        with pytest.raises(ExecutionError):
            run(pool, options={"rank": 0, "iteration": 0, "how": "raise"})
        assert run(pool) == 3.0
        process_ids = pool.process_ids
        folder = pool._folder
        assert all(is_alive(process_id) for process_id in process_ids)
    assert not any(is_alive(process_id) for process_id in process_ids)
    assert threading.active_count() == threads
    assert not folder.exists()


def test_nothing_survives_an_error_inside() -> None:
    with pytest.raises(ZeroDivisionError), Pool(1) as pool:
        pool.start()
        process_ids = pool.process_ids
        raise ZeroDivisionError
    assert len(process_ids) == 1 and not is_alive(process_ids[0])


def test_ranks_may_sit_on_other_workers(gloo_pool: Pool) -> None:
    assert run(gloo_pool, places=(3, 1)) == 3.0
    with pytest.raises(ExecutionError, match="different ones of the pool's 4"):
        run(gloo_pool, places=(2, 2))


def test_where_ranks_meet_stays_when_the_folder_of_their_job_goes(gloo_pool: Pool) -> None:
    """torch's store looks at its file again when it is let go of, maybe after the job: without it, it ends the process."""
    found: set[Path] = set()
    run(gloo_pool, progress=lambda _: found.update(gloo_pool._folder.rglob("*rendezvous*")))
    assert found and {path.parent for path in found} == {gloo_pool._folder}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_ports_are_on_the_loopback_only(gloo_pool: Pool) -> None:
    run(gloo_pool)
    loopback = {int.from_bytes(socket.inet_aton("127.0.0.1"), "little"), 0x7F000001}
    for address in listening_ports(gloo_pool.process_ids):
        assert int(address.split(":")[0], 16) in loopback


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_threads_of_a_job_end_with_it(gloo_pool: Pool) -> None:
    """A process group that lives on wakes a hundred times a second: after some hundred jobs an idle pool took a core."""
    run(gloo_pool)
    before = thread_ids(gloo_pool)  # what jobs of other tests have left is not looked at here
    case = Planned(choices={"tp": 2, "dp": 2, "sharding": "zero3", "microbatch_size": 4})
    for _ in range(2):
        case.run(gloo_pool, 1)
    until_s = time.monotonic() + SETTLED_S
    while (found := num_new_threads(gloo_pool, before)) > HELD_THREADS:
        assert time.monotonic() < until_s, found
        time.sleep(0.01)


def test_a_job_says_what_it_cannot_be() -> None:
    with pytest.raises(ExecutionError, match="float32, float64, bfloat16"):
        Job.of(relay(), 1, dtype="float8")
    with pytest.raises(ExecutionError, match="0 iterations"):
        Job.of(relay(), 0)
    with pytest.raises(ExecutionError, match="initial values for 1 ranks"):
        Job.of(relay(), 1, initial_values=[{}])
