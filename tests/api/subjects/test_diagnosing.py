"""The doctor: each thing that can be wrong is told, with what to do; what is well is told, too."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import rough_profile

from meshwright.api.subjects.diagnosing import Finding, doctor, is_within, required
from meshwright.serving.openvino import support


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(name: str) -> Finding:
    (finding,) = (one for one in doctor() if one.name == name)
    return finding


def test_this_environment_trains(no_network: None) -> None:
    findings = doctor()
    assert not [one for one in findings if one.status == "fail"]
    names = [one.name for one in findings]
    wanted = {"Python", "torch", "backends", "devices", "cores", "memory", "loopback", "profile", "numpy"}
    assert wanted <= set(names) and len(set(names)) == len(names)
    assert all(one.next or one.status == "ok" for one in findings)


def test_the_engine_for_cpus_says_what_it_leaves_to_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "absence", lambda: "openvino is not installed")
    assert found("OpenVINO").found.startswith("openvino is not installed: CPUs serve with PyTorch")
    monkeypatch.undo()
    if support.absence():
        pytest.skip(support.absence())
    said = found("OpenVINO").found
    assert all(f"no {what}: " in said for what in ("experts", "tensor parallelism", "adapters"))


def test_ranges_are_those_of_the_package() -> None:
    ranges = required()
    assert ranges["torch"] == ">=2.6,<3" or set(ranges["torch"].split(",")) == {">=2.6", "<3"}
    assert {"numpy", "typer", "scipy"} <= set(ranges) and "pytest" not in ranges


@pytest.mark.parametrize(
    ("version", "bounds", "holds"),
    [
        ("2.13.0+cpu", ">=2.6,<3", True),
        ("2.5.1", ">=2.6,<3", False),
        ("3.0", ">=2.6,<3", False),
        ("2.6", ">=2.6", True),
        ("1.26", ">=1.26.0", True),
        ("0.4.2", ">=0.4.3", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, holds: bool) -> None:
    assert is_within(version, bounds) is holds


def test_a_library_that_is_missing_or_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "scipy":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "numpy" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert found("scipy").status == "fail"
    assert found("numpy").status == "warn" and "pip install 'numpy" in found("numpy").next


def test_a_busy_machine_and_little_room_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(os, "getloadavg", lambda: (50.0, 1.0, 1.0))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2, 1, 1000))
    assert found("cores").status == "warn" and "idle" in found("cores").next
    assert found("temporary files").status == "warn"
    if Path("/dev/shm").is_dir():
        assert "--shm-size" in found("shared memory").next


def test_no_loopback_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **choices: Any) -> Any:
        raise OSError("no such interface")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert found("loopback").status == "fail"


def test_the_launcher_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert found("launcher").status == "warn" and "MASTER_ADDR" in found("launcher").found
    for name, value in {"WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert found("launcher").status == "ok" and "rank 3 of 8" in found("launcher").found
    monkeypatch.setenv("MASTER_PORT", "none")
    assert found("launcher").status == "fail"


def test_a_profile_is_missing_old_of_another_machine_or_well(cache: Path) -> None:
    path = cache / "meshwright" / "profile.json"
    assert "none" in found("profile").found
    rough_profile().save(path)
    assert found("profile").status == "ok"
    rough_profile(measured="2020-01-01T00:00:00+00:00").save(path)
    assert "older than" in found("profile").found
    rough_profile(device="another").save(path)
    assert "this is" in found("profile").found
    path.write_text("{")
    assert found("profile").status == "warn"


def test_without_torch_nothing_of_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert not [one for one in doctor() if one.name in ("backends", "devices")]
