"""What plans and simulates runs where nothing of Linux's own is: a process without it stands for macOS and Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright

# What neither Windows nor (of the last ones) macOS has; files without an encoding, and letters beyond Latin, are errors.
WITHOUT = """
import builtins, os, pathlib, signal, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "termios", "pwd", "grp"):
            raise ModuleNotFoundError(f"{name} is not here", name=name)

sys.meta_path.insert(0, Blocker())
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
for name in ("sched_getaffinity", "getloadavg", "fork", "killpg", "getuid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGPIPE", "SIGUSR1"):
    delattr(signal, name)
opened = builtins.open

def checked(file, *args, **kwargs):
    if str(file).startswith(("/proc", "/dev/shm")):
        raise FileNotFoundError(2, "there is no such file", str(file))
    return opened(file, *args, **kwargs)

builtins.open = checked
from meshwright.cli import main
sys.argv = ["meshwright", *sys.argv[1:]]
main()
"""
SOURCES = str(Path(meshwright.__file__).parents[1])  # commands run in folders of their own
JOB = ("llama-3.2-1b", "2xH100", "--global-batch", "4", "--seq", "512", "--fix", "tp=2,microbatch_size=1")


@pytest.mark.parametrize(
    "words",
    [
        ("plan", *JOB, "-o", "plan.toml"),
        ("simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2", "-o", "trace.npz"),
        ("show", "8xH100", "-o", "cluster.toml"),
        ("list", "schedules"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_needs_nothing_of_linux_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "cp1252", "COLUMNS": "100", "PYTHONPATH": SOURCES}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-c", WITHOUT, *words],
        cwd=tmp_path, env=env, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    said = done.stderr.decode("cp1252")
    assert done.returncode == 0, said
    assert "Traceback" not in said and "mistake in meshwright" not in said
    assert not words[-1].endswith((".toml", ".npz")) or (tmp_path / words[-1]).stat().st_size
