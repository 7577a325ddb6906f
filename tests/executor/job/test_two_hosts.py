"""Two hosts with a slow link between them: everything that is exchanged passes it, and the result is one host's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.running import SOURCE, rough_profile, small_plan
from tests.executor.job.launched_case import END_S, TRAIN, ends_of, free_port, start, write_inputs
from tests.executor.job.slow_link import Lane, SlowLink

from meshwright.api import compare
from meshwright.api.trainings.training import Training, run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.specs import Cluster, Plan
from meshwright.specs.training.source import Source

LINK_BYTES_PER_S = 400_000.0
NUM_STEPS, EVALUATE_EVERY = 4, 2
EXACT = 1e-10  # of losses in float64, of another number of processes
CLOCK_S = 1e-6  # what a sum of floating-point seconds may be off
PEAKS = 0.02  # of bytes: how far an exchange has come when another one begins is not the same in two runs
RANK = (str(Path(__file__).with_name("launched_rank.py")),)


def launched(hosts: Sequence[Path], link: SlowLink, store: int, *options: object) -> dict[str, Any]:
    """A rank on each of two hosts, which share no folder. What rank 0 said; the other one says nothing."""
    meeting_points = (store, link.port_to(0, store))
    processes = [
        start(
            folder, rank, port, *options, program=RANK, LOCAL_RANK="0", HOST=str(rank), LINK_PORT=str(link.port),
            HEARD="heard.jsonl",
        )
        for rank, (folder, port) in enumerate(zip(hosts, meeting_points))
    ]  # fmt: skip
    ends = ends_of(processes)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert ends[1][1] == "" and not (hosts[1] / "trace.npz").exists()
    said: dict[str, Any] = json.loads(ends[0][1])
    return said


def on_one_host(folder: Path, plan: Plan, pool: Pool) -> Training:
    """The same with processes of our own."""
    source = Source(folder / "text.txt", evaluate_every=EVALUATE_EVERY)
    return run_training(plan, iterations=NUM_STEPS, source=source, profile=rough_profile(), pool=pool)


def sent_bytes(trace: Trace, plan: Plan) -> list[int]:
    """What each rank of a pipeline sends at least, over all steps: the hidden states of a microbatch with every SEND."""
    program, model = trace.program, plan.model
    message = plan.microbatch_size * plan.workload.sequence_length * model.hidden_size * np.float64().itemsize
    return [
        NUM_STEPS
        * message
        * int((program.kinds[program.offsets[r] : program.offsets[r + 1]] == Kind.SEND).sum())
        for r in range(program.num_lists)
    ]


def check_never_faster(lane: Lane) -> None:
    """By the lane's own clock no piece passed sooner after the one before than its bytes take at the rate."""
    when, sizes = np.array(lane.passed).T
    assert len(sizes) > 1 and (np.diff(when) >= sizes[1:] / lane.bytes_per_s - CLOCK_S).all()


@pytest.mark.slow
def test_all_that_two_hosts_exchange_passes_a_slow_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gloo_pool: Pool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts, plan, port = [tmp_path / "zero", tmp_path / "one"], small_plan(dtype="float64"), free_port()
    for folder in hosts:
        write_inputs(folder, dtype="float64")
    options = (
        "--iterations",
        NUM_STEPS,
        "--evaluate-every",
        EVALUATE_EVERY,
        "-o",
        "trace.npz",
        "--json",
        "-q",
    )
    with SlowLink(LINK_BYTES_PER_S) as link:
        said = launched(hosts, link, port, *options)
    trace = Trace.load(hosts[0] / "trace.npz")
    # the messages of the program are among what passed, which without the link's own port is all gloo's
    for lane, least in zip(link.sent_by, sent_bytes(trace, plan)):
        passed = sum(count for target, count in lane.num_bytes.items() if target != port)
        assert 0 < least <= passed
        assert said["trained_s"] >= least / LINK_BYTES_PER_S  # the training has waited for its messages
        check_never_faster(lane)
    one = Plan.of(plan.model, Cluster.detect(1), plan.workload, pp=1, dp=1, dtype="float64")
    alone = on_one_host(hosts[0], one, gloo_pool)
    assert said["losses"] == pytest.approx(alone.result.losses, rel=EXACT)
    beside = on_one_host(hosts[0], plan, gloo_pool)
    assert said["losses"] == beside.result.losses
    assert {one["step"]: one["loss"] for one in said["held_out_losses"]} == beside.held_out_losses
    check_like(trace, said, beside)
    check_heard(hosts[0] / "heard.jsonl")


def check_like(trace: Trace, said: dict[str, Any], beside: Training) -> None:
    """Rank 0 has of all ranks what a run on one host has: times of every row, memory, the comparison."""
    expected = beside.trace
    assert expected is not None and trace.digest == expected.digest and trace.engine == expected.engine
    assert trace.metadata == expected.metadata and trace.end_s.shape == expected.end_s.shape
    assert (trace.end_s >= trace.start_s).all() and (trace.start_s >= trace.posted_s).all()
    for first, end in zip(trace.program.offsets, trace.program.offsets[1:]):
        assert (np.diff(trace.end_s[:, first:end].max(axis=1)) > 0).all()  # one iteration after the other
    assert [(c.device, c.tier) for c in trace.memory] == [(c.device, c.tier) for c in expected.memory]
    assert {c.device for c in trace.memory} == {0, 1}
    peaks = [c.peak_bytes for c in expected.memory]
    assert [c.peak_bytes for c in trace.memory] == pytest.approx(peaks, rel=PEAKS)
    names = [row["name"] for row in said["comparison"]["rows"]]
    wanted = compare(beside.predicted, expected).to_dict()
    assert names == [row["name"] for row in wanted["rows"]]
    assert set(said["comparison"]) == set(wanted)


def check_heard(path: Path) -> None:
    """After every step rank 0 knows where the seconds of every rank went."""
    heard = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["number"] for one in heard] == list(range(NUM_STEPS))
    for one in heard:
        assert set(one["computes"]) == {"0", "1"} == set(one["waits"])
        assert all({"F", "B", "STEP"} == set(names) for names in one["computes"].values())
        assert all(sum(names.values()) <= one["seconds"] for names in one["computes"].values())


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
def test_two_hosts_are_two_network_namespaces(tmp_path: Path) -> None:
    if not can_shape():
        pytest.skip(
            "unshare -Urn, ip link and tc are not allowed here, so there are no two hosts with a shaped link"
        )
    write_inputs(tmp_path)
    environment: dict[str, Any] = {
        **os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    train = [sys.executable, "-m", "meshwright", *TRAIN, "--iterations", "6", "--json", "-q"]
    done = subprocess.run(
        ["unshare", "-Urn", "bash", "-c", NAMESPACES, "bash", *train],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=2 * END_S,
    )  # fmt: skip
    words = [(tmp_path / name).read_text() for name in ("zero.err", "one.err") if (tmp_path / name).exists()]
    assert done.returncode == 0, (done.stderr, words)
    said = json.loads((tmp_path / "zero.out").read_text())
    assert said["num_iterations"] == 6 and said["losses"][-1] < 6.0
    assert (tmp_path / "one.out").read_text() == ""
