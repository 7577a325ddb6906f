"""How a process finds its place in a job that torchrun or Slurm has started on one or several hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from meshwright.specs.error import ExecutionError, SpecError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
TOKEN = "MESHWRIGHT_TOKEN"
# Ports of Slurm jobs: above those of services, below those that Linux gives to clients (32768 and up).
FIRST_PORT, NUM_PORTS = 20_000, 12_000


@dataclass(frozen=True)
class Launch:
    """One process of a job: which of how many, which on its host, and where all meet.

    ``starter_listens``: torchrun keeps the store at that place; otherwise process 0 does. ``attempt``: restarts so far.
    ``token``: a word that the processes of this job have and others do not; empty: there is none.
    """

    process: int
    num_processes: int
    local_process: int
    address: str
    port: int
    by: Literal["torchrun", "slurm"]
    starter_listens: bool = False
    attempt: int = 0
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if (
            not 0 <= self.process < self.num_processes
            or not 0 < self.port < 1 << 16
            or self.local_process < 0
        ):
            raise ExecutionError(
                f"process {self.process} of {self.num_processes}, number {self.local_process} on its host, "
                f"meeting at {self.address}:{self.port}",
                allowed="numbers from 0, below the number of processes; a port from 1 to 65535",
            )

    def check(self, num_devices: int) -> None:
        """Raises ExecutionError where the job has not one process for each device of a plan."""
        if self.num_processes != num_devices:
            raise ExecutionError(
                f"the plan has {num_devices} devices, {self.by} has started {self.num_processes} processes",
                allowed=f"{num_devices} processes",
                next=f"torchrun --nproc-per-node, --nnodes or srun --ntasks with {num_devices} in all, or another plan",
            )


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """The place of this process, None where nobody started several.

    Raises:
        SpecError: some of the starter's variables are missing, or are no numbers.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        given = _all_of(environment, TORCHRUN, "torchrun")
        return Launch(
            _number(given, "RANK"), _number(given, "WORLD_SIZE"), _number(given, "LOCAL_RANK"),
            given["MASTER_ADDR"], _number(given, "MASTER_PORT"), "torchrun",
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")), environment.get(TOKEN, ""),
        )  # fmt: skip
    # a batch script has SLURM_PROCID, too; only a step that srun started has a step's number
    if "SLURM_STEP_ID" in environment and environment.get("SLURM_NTASKS", "1") != "1":
        given = _all_of(environment, SLURM, "Slurm")
        return Launch(
            _number(given, "SLURM_PROCID"), _number(given, "SLURM_NTASKS"), _number(given, "SLURM_LOCALID"),
            environment.get("MASTER_ADDR") or first_host(given["SLURM_STEP_NODELIST"]),
            int(environment.get("MASTER_PORT") or FIRST_PORT + _number(given, "SLURM_JOB_ID") % NUM_PORTS),
            "slurm", attempt=int(environment.get("SLURM_RESTART_COUNT", "0")), token=environment.get(TOKEN, ""),
        )  # fmt: skip
    return None


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts: "node[07-09,12],login" -> "node07"."""
    head = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)", nodes.strip())
    if head is None:
        raise SpecError(f"SLURM_STEP_NODELIST is {nodes!r}", allowed="host names such as node[01-04]")
    first = re.split(r"[-,]", head[2])[0] if head[2] else ""
    return f"{head[1]}{first}{head[3]}"


def _all_of(environment: Mapping[str, str], names: tuple[str, ...], who: str) -> dict[str, str]:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise SpecError(
            f"{', '.join(missing)} not set, which {who} gives to every process",
            allowed=f"all of {', '.join(names)}",
            next="start with torchrun or srun, or unset the others to train on this machine alone",
        )
    return {name: environment[name] for name in names}


def _number(given: Mapping[str, str], name: str) -> int:
    try:
        return int(given[name])
    except ValueError:
        raise SpecError(f"{name} is {given[name]!r}", allowed="a whole number") from None
