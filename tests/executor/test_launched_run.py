"""A job whose processes somebody else started: the same numbers as in a pool, one voice, one end for all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.trace import Trace
from tests.cli.running import SOURCE, small_plan

PROXY_BYTES_PER_S, PROXY_PIECE_BYTES = 200_000.0, 4096
END_S = 200.0  # processes import torch, several at once, on a machine that may be busy


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    small_plan().save(path)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 300)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def start(
    plan: Path, rank: int, port: int, *options: object, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """One process of two, as torchrun would start it."""
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_PORT": str(port),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SOURCE),
        "XDG_CACHE_HOME": str(plan.parent / "cache"),
    }
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "train",
        str(plan),
        "--data",
        str(plan.parent / "text.txt"),
    ]
    return subprocess.Popen(
        [*prefix, *command, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=plan.parent,
        env={**os.environ, **given, **environment},
    )


def ends_of(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code and both streams of each; none outlives the test."""
    try:
        texts = [one.communicate(timeout=END_S) for one in processes]
        return [(one.returncode, *text) for one, text in zip(processes, texts)]
    finally:
        for one in processes:
            one.kill()
            one.wait()


def wait_for_steps(path: Path, number: int) -> None:
    end_s = time.monotonic() + END_S
    while time.monotonic() < end_s:
        if path.exists() and len(path.read_text().splitlines()) >= number:
            return
        time.sleep(0.05)
    pytest.fail("the training did not begin")


@pytest.mark.slow
def test_it_gives_what_processes_of_our_own_give(plan: Path) -> None:
    options = ("--iterations", 6, "--evaluate-every", 3, "--json", "-q")
    port, trace = free_port(), plan.parent / "trace.npz"
    saving = ("--checkpoints", plan.parent / "runs", "-o", trace)
    ends = ends_of([start(plan, rank, port, *options, *saving) for rank in (0, 1)])
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert ends[1][1] == ""  # one voice
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(plan.parent / "cache")}
    alone = subprocess.run(
        [sys.executable, "-m", "meshwright", "train", plan, "--data", plan.parent / "text.txt", *map(str, options)],
        capture_output=True, text=True, env=environment, check=True, timeout=END_S,
    )  # fmt: skip
    launched, own = json.loads(ends[0][1]), json.loads(alone.stdout)
    assert launched["losses"] == own["losses"] and launched["held_out_losses"] == own["held_out_losses"]
    found = Trace.load(trace)
    assert found.num_iterations == 6 and (found.end_s >= found.start_s).all()
    assert (plan.parent / "runs" / "step-6" / "checkpoint.json").is_file()


@pytest.mark.slow
def test_sigterm_on_one_host_ends_all_after_saving(plan: Path) -> None:
    port, metrics = free_port(), plan.parent / "m.jsonl"
    options = (
        "--iterations",
        1_000_000,
        "--checkpoints",
        plan.parent / "runs",
        "--metrics",
        metrics,
        "--json",
    )
    processes = [start(plan, rank, port, *options) for rank in (0, 1)]
    wait_for_steps(metrics, 3)
    processes[1].send_signal(signal.SIGTERM)
    ends = ends_of(processes)
    assert [code for code, _, _ in ends] == [130, 130], ends
    said = json.loads(ends[0][1])
    assert said["interrupted"] and (plan.parent / "runs" / f"step-{said['num_iterations']}").is_dir()


@pytest.mark.slow
def test_one_that_dies_ends_the_others_with_a_message(plan: Path) -> None:
    port, metrics = free_port(), plan.parent / "m.jsonl"
    processes = [start(plan, rank, port, "--iterations", 1_000_000, "--metrics", metrics) for rank in (0, 1)]
    wait_for_steps(metrics, 3)
    processes[1].kill()
    ends = ends_of(processes)
    assert ends[0][0] == 1 and "rank 0" in ends[0][2] and "failed" in ends[0][2], ends


@pytest.mark.slow
def test_another_plan_or_too_few_processes_are_refused(plan: Path) -> None:
    port = free_port()
    options = (("--iterations", 4), ("--iterations", 5))
    ends = ends_of([start(plan, rank, port, *options[rank]) for rank in (0, 1)])
    assert ends[1][0] == 1 and "the same command" in ends[1][2]
    assert ends[0][0] == 1 and "the same command" in ends[0][2], ends
    (alone,) = ends_of([start(plan, 0, free_port(), WORLD_SIZE="1")])
    assert alone[0] == 1 and "the plan has 2 devices" in alone[2]


@contextmanager
def slow_proxy(target: int) -> Iterator[int]:
    """A port that passes connections on to another one, no more than a rate in each direction."""

    def carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(PROXY_PIECE_BYTES):
                time.sleep(len(data) / PROXY_BYTES_PER_S)
                sink.sendall(data)
        except OSError:
            return  # one side is gone; the other one notices by itself
        finally:
            sink.close()

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            far = reach(target)
            for ends in ((client, far), (far, client)):
                threading.Thread(target=carry, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def reach(port: int) -> socket.socket:
    """A connection to a process that may still be starting."""
    end_s = time.monotonic() + END_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=END_S)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_two_hosts_meet_through_a_slow_proxy(plan: Path) -> None:
    """The rendezvous and the watch only: gloo tells its own addresses, and messages of the program go past the proxy."""
    port = free_port()
    options = ("--iterations", 4, "--json", "-q")
    with slow_proxy(port) as proxied:
        ends = ends_of([start(plan, 0, port, *options), start(plan, 1, proxied, *options, LOCAL_RANK="0")])
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert json.loads(ends[0][1])["num_iterations"] == 4


NAMESPACES = """
set -e
ip link set lo up
unshare -n sleep 120 & other=$!
trap 'kill $other' EXIT
for i in $(seq 100); do  # until it is in a namespace of its own; before, the other end would stay in ours
  [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ] || break; sleep 0.1
done
ip link add veth0 type veth peer name veth1 netns $other
ip addr add 10.9.0.1/24 dev veth0; ip link set veth0 up
inside="nsenter -t $other -n"
$inside ip addr add 10.9.0.2/24 dev veth1; $inside ip link set veth1 up; $inside ip link set lo up
tc qdisc add dev veth0 root tbf rate 200mbit burst 32kbit latency 400ms
$inside tc qdisc add dev veth1 root tbf rate 200mbit burst 32kbit latency 400ms
export MASTER_ADDR=10.9.0.1 MASTER_PORT=29511 WORLD_SIZE=2 LOCAL_RANK=0
RANK=1 $inside "$@" > one.out 2> one.err & one=$!
code=0; RANK=0 "$@" > zero.out 2> zero.err || code=$?
wait $one || code=$?
exit $code
"""


def can_shape() -> bool:
    """May this user make two network namespaces with a shaped link between them?"""
    probe = NAMESPACES.split("export")[0]
    try:
        done = subprocess.run(["unshare", "-Urn", "bash", "-c", probe], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@pytest.mark.slow
def test_two_hosts_are_two_network_namespaces(plan: Path) -> None:
    if not can_shape():
        pytest.skip(
            "unshare -Urn, ip link and tc are not allowed here, so there are no two hosts with a shaped link"
        )
    environment: dict[str, Any] = {
        **os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(plan.parent / "cache"),
    }  # fmt: skip
    train = [sys.executable, "-m", "meshwright", "train", str(plan), "--data", str(plan.parent / "text.txt")]
    done = subprocess.run(
        ["unshare", "-Urn", "bash", "-c", NAMESPACES, "bash", *train, "--iterations", "6", "--json", "-q"],
        cwd=plan.parent, env=environment, capture_output=True, text=True, timeout=2 * END_S,
    )  # fmt: skip
    words = [
        (plan.parent / name).read_text() for name in ("zero.err", "one.err") if (plan.parent / name).exists()
    ]
    assert done.returncode == 0, (done.stderr, words)
    said = json.loads((plan.parent / "zero.out").read_text())
    assert said["num_iterations"] == 6 and said["losses"][-1] < 6.0
    assert (plan.parent / "one.out").read_text() == ""
