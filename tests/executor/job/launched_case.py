"""Processes of a launched training as torchrun would start them, each in a folder and with files of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cli.running import SOURCE, rough_profile, small_plan

END_S = 200.0  # processes import torch, several at once, on a machine that may be busy
TEXT = "to be or not to be, that is the question. " * 300
TRAIN = ("train", "plan.toml", "--data", "text.txt", "--profile", "profile.json")
MESHWRIGHT = ("-m", "meshwright")


def write_inputs(folder: Path, **choices: object) -> None:
    """What `TRAIN` reads, with a plan of two devices."""
    folder.mkdir(parents=True, exist_ok=True)
    small_plan(**choices).save(folder / "plan.toml")
    rough_profile().save(folder / "profile.json")
    (folder / "text.txt").write_text(TEXT)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def start(
    folder: Path,
    rank: int,
    port: int,
    *options: object,
    program: Sequence[str] = MESHWRIGHT,
    **environment: str,
) -> subprocess.Popen[str]:
    """One process of two."""
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_PORT": str(port),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SOURCE),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, *program, *TRAIN, *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, **given, **environment},
    )  # fmt: skip


def ends_of(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code and both streams of each; none outlives the test."""
    try:
        texts = [one.communicate(timeout=END_S) for one in processes]
        return [(one.returncode, *text) for one, text in zip(processes, texts)]
    finally:
        for one in processes:
            one.kill()
            one.wait()
