"""The place of a process in a launched job, read from what torchrun and Slurm set."""

from __future__ import annotations

import pytest

from meshwright.executor.job.launch import FIRST_PORT, NUM_PORTS, Launch, first_host, launch_of
from meshwright.executor.team.host_interface import interface_to
from meshwright.specs.error import ExecutionError, SpecError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[07-09,12]",
    "SLURM_JOB_ID": "123456",
}


def test_torchrun() -> None:
    expected = Launch(3, 8, 1, "10.0.0.1", 29500, "torchrun", starter_listens=True, attempt=2)
    assert launch_of(TORCHRUN) == expected


def test_slurm() -> None:
    found = launch_of(SLURM)
    assert found is not None and (found.process, found.num_processes, found.local_process) == (5, 8, 1)
    assert found.address == "node07" and found.port == FIRST_PORT + 123456 % NUM_PORTS
    assert not found.starter_listens and found.by == "slurm"
    chosen = launch_of({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"})
    assert chosen is not None and (chosen.address, chosen.port) == ("10.0.0.9", 1234)


def test_nobody_has_started_several() -> None:
    assert launch_of({}) is None
    assert launch_of({**SLURM, "SLURM_NTASKS": "1"}) is None
    batch_script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert launch_of(batch_script) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node07", "node07"), ("node[07-09,12]", "node07"), ("a,b", "a"), ("rack[1,3]-x,b", "rack1-x")],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("missing", ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(SpecError, match=missing):
        launch_of({name: value for name, value in TORCHRUN.items() if name != missing})


@pytest.mark.parametrize(
    "changes", [{"RANK": "8"}, {"RANK": "-1"}, {"MASTER_PORT": "0"}, {"MASTER_PORT": "99999"}]
)
def test_numbers_that_cannot_be(changes: dict[str, str]) -> None:
    with pytest.raises(ExecutionError):
        launch_of({**TORCHRUN, **changes})
    with pytest.raises(SpecError, match="WORLD_SIZE"):
        launch_of({**TORCHRUN, "WORLD_SIZE": "eight"})


def test_a_job_of_another_size_is_refused() -> None:
    found = launch_of(TORCHRUN)
    assert found is not None
    found.check(8)
    with pytest.raises(ExecutionError, match="4 devices, torchrun has started 8"):
        found.check(4)


def test_the_way_to_this_host_is_the_loopback() -> None:
    assert interface_to("127.0.0.1", 1) in ("lo", None)
    with pytest.raises(ExecutionError, match="MASTER_ADDR"):
        interface_to("no such host", 1)
