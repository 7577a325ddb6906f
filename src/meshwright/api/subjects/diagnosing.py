"""`doctor`: is this environment fit to plan, simulate and train, and if not, what to do next."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshwright.executor.measure.measure import device_name
from meshwright.serving.openvino import support
from meshwright.specs.cluster.computer import memory_available_bytes, num_cores
from meshwright.specs.cluster.profile import cache_path, kept
from meshwright.specs.error import ExecutionError, MeshwrightError
from meshwright.specs.units import format_bytes

Status = Literal["ok", "warn", "fail"]

TESTED_PYTHON = ((3, 11), (3, 14))  # from, to below: what is tested
BUSY_SHARE = 0.5  # of the cores; beyond it what is measured is too slow
# Traces and parameters of a job go through the folder for temporary files.
LEAST_DISK_BYTES = 1 << 30
LEAST_SHARED_BYTES = 1 << 30  # NCCL keeps its buffers there; Docker gives 64 MiB unless told otherwise
STALE_DAYS = 30
TRAINING_LIBRARIES = ("torch", "safetensors", "tokenizers", "transformers")
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+?)\s*((?:[<>=!~]=?[^;,\s]+,?\s*)*)(?:;.*)?$")
_BOUND = re.compile(r"(>=|<=|<|>|==)\s*([0-9.]+)")


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and what to do where it is not well."""

    name: str
    status: Status
    found: str
    next: str = ""


def doctor() -> list[Finding]:
    """Look at Python, libraries, torch, devices, cores, memory, folders, network and the kept profile.

    Nothing leaves this machine, and no process is started. What cannot be looked at is a finding, never an error.
    """
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _libraries, _torch, _openvino, _cores, _memory, _folders, _loopback, _launcher, _profile,
    )  # fmt: skip
    return [finding for look in looks for finding in look()]


def _python() -> Iterator[Finding]:
    version = sys.version_info[:2]
    low, high = TESTED_PYTHON
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    tested = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1} are tested"
    if version < low:
        yield Finding("Python", "fail", text, f"install a newer one: {tested}")
    elif version >= high:
        yield Finding("Python", "warn", text, f"newer than what is tested: {tested}")
    elif sys.platform == "win32":
        yield Finding("Python", "warn", text, "plan, simulate and view work; train on Linux or macOS")
    else:
        yield Finding("Python", "ok", text)


def _libraries() -> Iterator[Finding]:
    """Every library that the package asks for, against the range that it names."""
    for name, bounds in sorted(required().items()):
        needed = name in TRAINING_LIBRARIES
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if needed:
                yield Finding(name, "warn", "not installed", "to train: pip install 'meshwright[torch]'")
            else:
                yield Finding(name, "fail", "not installed", "pip install meshwright")
            continue
        if is_within(version, bounds):
            yield Finding(name, "ok", version)
        else:
            yield Finding(name, "warn", f"{version}, supported is {bounds}", f"pip install '{name}{bounds}'")


def required() -> Mapping[str, str]:
    """Library -> range of versions, of the core and of the extra that trains."""
    try:
        lines = importlib.metadata.requires("meshwright") or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # run from a checkout that was never installed
    found: dict[str, str] = {}
    for line in lines:
        if "extra ==" in line and 'extra == "torch"' not in line.replace("'", '"'):
            continue
        if match := _REQUIREMENT.match(line):
            found[match[1]] = match[2].replace(" ", "").rstrip(",")
    return found


def is_within(version: str, bounds: str) -> bool:
    """Is a version within bounds such as ">=2.6,<3"? What is no number ends the comparison."""
    own = _numbers(version)
    for sign, text in _BOUND.findall(bounds):
        other = _numbers(text)
        size = max(len(own), len(other))
        left, right = (part + (0,) * (size - len(part)) for part in (own, other))
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "<": left < right,
            ">": left > right,
            "==": left == right,
        }
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _torch() -> Iterator[Finding]:
    """Backends and devices, where torch is installed and can be imported."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        from meshwright.executor.job.environment import torch_facts

        facts = torch_facts()
    except (ImportError, OSError) as error:
        yield Finding("torch", "fail", f"cannot be imported: {error}", "pip install --force-reinstall torch")
        return
    if facts.has_gloo:
        yield Finding("backends", "ok", "gloo and NCCL" if facts.has_nccl else "gloo (CPU)")
    else:
        yield Finding("backends", "fail", "torch has no gloo", "install a torch that was built with it")
    if facts.problem:
        yield Finding("devices", "warn", f"CUDA: {facts.problem}", "look at nvidia-smi")
    elif facts.devices:
        names = ", ".join(f"{name} ({format_bytes(size)})" for name, size in facts.devices)
        yield Finding("devices", "ok", f"{names}; CUDA {facts.cuda}")
    elif facts.cuda:
        yield Finding(
            "devices", "warn", f"torch is for CUDA {facts.cuda} and sees no device", "look at nvidia-smi"
        )
    else:
        yield Finding("devices", "ok", "no GPU: processes of this machine train on CPU")


def _openvino() -> Iterator[Finding]:
    """Is the engine for CPUs here, and what does it leave to the other one?"""
    if why := support.absence():
        yield Finding("OpenVINO", "ok", f"{why}: CPUs serve with PyTorch, or after {support.INSTALL}")
        return
    left = "; ".join(f"no {what}: {reason}" for what, reason in support.LACKING.items())
    yield Finding(
        "OpenVINO",
        "ok",
        f"{importlib.metadata.version('openvino')} serves {', '.join(support.FAMILIES)}; {left}",
    )


def _cores() -> Iterator[Finding]:
    cores = num_cores()
    text = f"{cores} cores"
    if not hasattr(os, "getloadavg"):
        yield Finding("cores", "ok", text)
        return
    load = os.getloadavg()[0]
    text += f", {load:.1f} processes ran in the last minute"
    if load > max(1.0, BUSY_SHARE * cores):
        yield Finding("cores", "warn", text, "calibrate and compare when the machine is idle")
    elif cores == 1:
        yield Finding("cores", "warn", text, "processes of a plan share one core: times mean little")
    else:
        yield Finding("cores", "ok", text)


def _memory() -> Iterator[Finding]:
    yield Finding("memory", "ok", format_bytes(memory_available_bytes()))
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    size = shutil.disk_usage(shared).free
    if size < LEAST_SHARED_BYTES:
        what = "for NCCL: docker run --shm-size=8g (gloo does not use it)"
        yield Finding("shared memory", "warn", f"{format_bytes(size)} free", what)
    else:
        yield Finding("shared memory", "ok", f"{format_bytes(size)} free")


def _folders() -> Iterator[Finding]:
    """Folders that are written: temporary files of jobs, and the user's cache of profiles."""
    temporary = tempfile.gettempdir()
    free = shutil.disk_usage(temporary).free
    if free < LEAST_DISK_BYTES:
        yield Finding("temporary files", "warn", f"{format_bytes(free)} free in {temporary}", "set TMPDIR")
    else:
        yield Finding("temporary files", "ok", f"{format_bytes(free)} free in {temporary}")
    folder = cache_path().parent
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    if os.access(there, os.W_OK):
        yield Finding("cache", "ok", str(folder))
    else:
        yield Finding("cache", "warn", f"{folder} cannot be written", "set XDG_CACHE_HOME")


def _loopback() -> Iterator[Finding]:
    """Processes of this machine meet on the loopback interface, at ports that the system chooses."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2.0):
                yield Finding("loopback", "ok", f"connected to 127.0.0.1, port {port}")
    except OSError as error:
        yield Finding("loopback", "fail", f"127.0.0.1: {error}", "bring the interface up: ip link set lo up")


def _launcher() -> Iterator[Finding]:
    """Variables of torchrun or Slurm, where this is a process of a job."""
    found = {name: os.environ[name] for name in LAUNCHED if name in os.environ}
    if found and len(found) < len(LAUNCHED):
        missing = ", ".join(name for name in LAUNCHED if name not in found)
        yield Finding(
            "launcher", "warn", f"{missing} not set beside {', '.join(found)}", "start with torchrun"
        )
    elif found:
        yield _meeting(found)
    elif "SLURM_PROCID" in os.environ:
        text = f"rank {os.environ['SLURM_PROCID']} of {os.environ.get('SLURM_NTASKS', '?')}"
        yield Finding("launcher", "ok", f"Slurm: {text}")


def _meeting(found: Mapping[str, str]) -> Finding:
    """Can this process find the one where all meet?"""
    text = f"torchrun: rank {found['RANK']} of {found['WORLD_SIZE']}, meeting at {found['MASTER_ADDR']}"
    try:
        socket.getaddrinfo(found["MASTER_ADDR"], int(found["MASTER_PORT"]))
    except (OSError, ValueError) as error:
        return Finding(
            "launcher", "fail", f"{text}: {error}", "give MASTER_ADDR as a number, MASTER_PORT as a port"
        )
    return Finding("launcher", "ok", f"{text}:{found['MASTER_PORT']}")


def _profile() -> Iterator[Finding]:
    """The profile on which predictions rest."""
    measure = "meshwright calibrate (about 20 s)"
    try:
        profile = kept()
    except MeshwrightError as error:
        yield Finding("profile", "warn", f"{cache_path()} cannot be read: {error}", measure)
        return
    if profile is None:
        yield Finding("profile", "warn", "none: predictions rest on assumed rates", measure)
        return
    text = (
        f"{profile.device}, {profile.num_processes} processes, measured {profile.measured or 'some time ago'}"
    )
    if profile.device != device_name():
        yield Finding("profile", "warn", f"{text}; this is {device_name()}", measure)
    elif not profile.measured or _days_since(profile.measured) > STALE_DAYS:
        yield Finding("profile", "warn", f"{text}: older than {STALE_DAYS} days", measure)
    else:
        yield Finding("profile", "ok", text)


def _days_since(moment: str) -> float:
    then = datetime.datetime.fromisoformat(moment)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds() / 86400


def require_torch() -> None:
    """Raise ExecutionError where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ExecutionError(
            "PyTorch is not installed, and what trains, measures or executes needs it",
            next="pip install 'meshwright[torch]'",
        )
