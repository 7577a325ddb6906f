"""Runs a command in this process or in a fresh interpreter, and keeps what it printed."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from meshwright.executor.measure.measure import device_name
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.cluster.profile import Profile, Sample

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Ran:
    """Exit code and both streams of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found


Runner = Callable[..., Ran]


def runner(capsys: pytest.CaptureFixture[str]) -> Runner:
    """A function that runs `meshwright ARGUMENTS` in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = left.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


def start(arguments: Sequence[object], folder: Path, environment: Mapping[str, str] | None = None) -> Ran:
    """The same in a fresh interpreter, for what depends on one."""
    result = subprocess.run(
        [sys.executable, "-m", "meshwright", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Ran(result.returncode, result.stdout, result.stderr)


def small_plan(**choices: Any) -> Plan:
    """A plan of seconds for two processes of this machine."""
    model = ModelSpec.decoder(4, 32, 2, max_sequence_length=16, name="small")
    return Plan.of(model, Cluster.detect(2), Workload(8, 16), **{"pp": 2, "dp": 1, **choices})


def rough_profile(**fields: Any) -> Profile:
    """A profile of this machine that nobody measured: enough to predict with."""
    messages = (Sample((1024,), 2e-4), Sample((1 << 20,), 1e-3))
    return Profile(
        **{
            "device": device_name(),
            "num_processes": 2,
            "tables": {
                "elementwise": (Sample((64, 64), 5e-6), Sample((1024, 1024), 1e-3)),
                "matmul": (Sample((128, 128, 128), 1e-4), Sample((512, 512, 512), 5e-3)),
                "send_receive": messages,
                "all_reduce": messages,
            },
            "measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "source": "made up for tests",
            **fields,
        }
    )
