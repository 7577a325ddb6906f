"""Files of every format that commands read, damaged in hundreds of ways: what a command says of each, its seconds and memory.

`python -m tests.cli.mutation FORMAT FOLDER COUNT` damages the file of a format COUNT times, runs its commands in this
process, and prints as JSON what went wrong. A process of its own, because its memory is limited.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import re
import resource
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright import api
from meshwright.cli import main
from meshwright.ir.text import to_text
from meshwright.specs import Cluster, Plan, Workload, load_model
from meshwright.specs.config.export import config_from_model
from tests.cli.running import rough_profile, small_plan
from tests.evidence.training_sample import table_row, write_table
from tests.interop.recipe import GROK_1, TITAN_8B

MOST_S, MOST_BYTES = 2.0, 500 << 20  # of processor time, and more than before
OWN_MISTAKES = ("Traceback", "mistake in meshwright")
ZERO = {"train_batch_size": 64, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
LOG = "\n".join(
    f"iteration {n} | elapsed time per iteration (ms): {1500 + n} | global batch size: 64 |"
    for n in range(20)
)
SHELL = 'A=64\nARGS=(--num-layers $A --seq-length "$((A*64))")\nif [ $A -gt 3 ]; then ARGS+=(--bf16); fi\n'
EDGES = "source,target\n" + "".join(f"{n},{(n * 7 + 1) % 50}\n" for n in range(100))
WORDS = (
    "-1", "0", "3", "1e400", "nan", "inf", "9" * 30, "999999999", "2147483648", "40000", "100000", "1000000", "1e-320",
    "-0.5", "1" * 400, '""', "[]", "{}", "null", "true", "\x00", "\x1b[31m", "../../etc/passwd", "'", '"', "\\", "\n", "=",
    "[", "{", "}", "$(x)", "$A$A", "x" * 5000, "\ud7ff", "٣", "[[[[[[", "#", ",", ":", "~",
)  # fmt: skip
NUMBER = re.compile(r"\d+(?:\.\d+)?")
Say = Sequence[str]


def damaged(text: str, draw: random.Random) -> str:
    """The text with one to three places made worse: numbers, words, lines."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice((_number, _number, _number, _number, _word, _cut, _twice, _moved))(text, draw)
    return text


def _number(text: str, draw: random.Random) -> str:
    found = list(NUMBER.finditer(text))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start()] + draw.choice(WORDS) + text[one.end() :]


def _word(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(WORDS) + text[at:]


def _span(text: str, draw: random.Random) -> tuple[int, int]:
    low = draw.randrange(len(text) + 1)
    return low, min(len(text), low + draw.choice((1, 1, 8, 80, 800)))


def _cut(text: str, draw: random.Random) -> str:
    low, high = _span(text, draw)
    return text[:low] + text[high:]


def _twice(text: str, draw: random.Random) -> str:
    low, high = _span(text, draw)
    return text[:high] + text[low:]


def _moved(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    draw.shuffle(lines)
    return "\n".join(lines)


def damaged_text(path: Path, to: Path, draw: random.Random) -> None:
    """One more copy of a text, damaged; rarely one of its bytes is no text at all."""
    data = damaged(path.read_text(encoding="utf-8"), draw).encode("utf-8", "surrogatepass")
    if draw.random() < 0.05 and data:
        at = draw.randrange(len(data))
        data = data[:at] + b"\xff" + data[at + 1 :]
    to.write_bytes(data)


def damaged_arrays(path: Path, to: Path, draw: random.Random) -> None:
    """One more copy of an archive: its text damaged, an array of another kind, a size in a head, or bytes of the file."""
    way = draw.choice(("header", "array", "size", "bytes"))
    data = path.read_bytes()
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if way == "bytes":
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data))
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        to.write_bytes(data)
    elif way == "size":
        _with_sizes(arrays, to, draw)
    else:
        name = draw.choice(list(arrays))
        if way == "header" and "header" in arrays:
            arrays["header"] = np.array(damaged(str(arrays["header"]), draw))
        else:
            arrays[name] = draw.choice(_others(arrays[name]))
        np.savez(to, **arrays)


def _others(array: Any) -> list[Any]:
    return [
        np.zeros(0), np.array("text"), np.array(1j), np.full(3, np.nan), array.reshape(-1)[:1], np.array(-1),
        np.zeros((2,) * 20, bool), np.full(array.shape, 10**18), np.full(array.shape, np.datetime64("2026-01-01")),
    ]  # fmt: skip


def _with_sizes(arrays: dict[str, Any], to: Path, draw: random.Random) -> None:
    """An array whose head declares more than the file holds."""
    shape = draw.choice(
        ("(1000000000000,)", "(4, 1000000000)", "(-1,)", "(2000000000,)", "(1000000, 1000000)")
    )
    chosen = draw.choice(list(arrays))
    with zipfile.ZipFile(to, "w") as archive:
        for name, array in arrays.items():
            kept = io.BytesIO()
            np.lib.format.write_array(kept, np.asanyarray(array), allow_pickle=False)
            body = kept.getvalue()
            if name == chosen:
                head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
                head += " " * (-(len(head) + 11) % 64) + "\n"
                body = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + body[128:]
            archive.writestr(f"{name}.npy", body)


@dataclass(frozen=True)
class Format:
    """A file that is read: how to make a whole one, how to damage it, and commands, of which each copy gets one in turn.

    ``FILE`` in a command is the damaged file, ``FOLDER`` where it stands.
    """

    name: str
    make: Callable[[Path], object]
    commands: tuple[Say, ...]
    damage: Callable[[Path, Path, random.Random], None] = damaged_text


def _written(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _profile(path: Path) -> None:
    path.write_text(rough_profile().to_json(), encoding="utf-8")


def _trace(path: Path) -> None:
    api.simulate(schedule="1f1b", stages=2, microbatches=2).save(path)


def _program(path: Path) -> None:
    path.write_text(
        to_text(api.simulate(schedule="1f1b", stages=2, microbatches=2).program), encoding="utf-8"
    )


def _graph(path: Path) -> None:
    np.savez(path, edges=np.array([[0, 1], [1, 2], [2, 3]]), x=np.eye(4), y=np.array([0, 1, 0, 1]))


def _checkpoint(path: Path) -> None:
    from tests.executor.checkpoint.stored_case import save, tensors, whole

    made = save(path.parent / "run", 10, whole(tensors()))
    for each in made.iterdir():
        each.rename(path.parent / each.name)


def _table(path: Path) -> None:
    write_table(path, [table_row("a-1", 1.0), table_row("a-2", 2.0, tp=2, dp=4)])


TORCH = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
CLUSTER = """schema = 1
name = "ours"
[[devices]]
preset = "H100"
count = 8
[[levels]]
name = "node"
num_devices = 4
bandwidth = "450GB/s"
latency = "2us"
[[levels]]
name = "network"
num_devices = 8
bandwidth = "400Gb/s"
latency = "5us"
attached = "group"
"""
STAGES = "stage,F,I,W\n0,1,1,1\n1,1,1,1\n"
PLANNED = ("--cluster", "1x8xH100")
FORMATS = (
    Format(
        "plan.toml", lambda path: small_plan().save(path),
        (("show", "FILE"), ("check", "FILE"), ("simulate", "FILE"), ("export", "FILE", "--to", "torchrun")),
    ),
    Format(
        "cluster.toml", _written(CLUSTER),
        (
            ("show", "FILE"), ("export", "GPUS", "--to", "slurm", "--cluster", "FILE"),
            ("simulate", "GPUS", "--cluster", "FILE"), ("show", "FILE", "--json"),
        ),
    ),
    Format(
        "config.json", _written(json.dumps(config_from_model(load_model("llama-3.2-1b")))),
        (("show", "FILE"), ("show", "FILE", "--seq", "4096", "--json")),
    ),
    Format("profile.json", _profile, (("show", "FILE"), ("show", "FILE", "--json"))),
    Format("trace.npz", _trace, (("show", "FILE"), ("simulate", "FILE", "--report", "PAGE"), ("compare", "FILE", "FILE")),
        damaged_arrays),
    Format("run.log", _written(LOG), (("compare", "GPUS", "FILE"),)),
    Format(
        "script.sh", _written(SHELL + GROK_1), (("import", "FILE", "--from", "megatron", "--cluster", "8x8xH100"),)
    ),
    Format("job.toml", _written(TITAN_8B), (("import", "FILE", "--from", "torchtitan", "--cluster", "4x8xH200"),)),
    Format(
        "zero.json", _written(json.dumps(ZERO)),
        (("import", "FILE", "--from", "deepspeed", "--model", "llama-3.2-1b", *PLANNED, "--seq", "4096"),),
    ),
    Format("checkpoint.json", _checkpoint, (("checkpoint", "inspect", "FOLDER"), ("checkpoint", "verify", "FOLDER"))),
    Format("table.csv", _table, (("validate", "training", "FILE"),)),
    Format("stages.csv", _written(STAGES), (("simulate", "--schedule", "1f1b", "-p", "2", "--stage-times", "FILE"),)),
    Format("torch.csv", _written(TORCH), (("simulate", "FILE"), ("check", "FILE"))),
    Format("code.program", _program, (("simulate", "FILE"), ("check", "FILE"), ("show", "FILE"))),
    Format("edges.csv", _written(EDGES), (("GRAPH", "FILE"),)),
    Format("graph.npz", _graph, (("GRAPH", "FILE"),), damaged_arrays),
)  # fmt: skip


class TooLongError(BaseException):
    """A command has had its processor time."""


def run_command(words: Say) -> tuple[int, str]:
    """Exit code and what was said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if words[0] == "GRAPH":
                _read_graph(Path(words[1]))
            main([*words])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    return code, said.getvalue()


def _read_graph(path: Path) -> None:
    """A graph has no command of its own that is quick: its reader is asked."""
    from meshwright.specs.error import MeshwrightError
    from meshwright.systems.pipeline.gnn_pipe.graph_file import read_graph

    try:
        read_graph(path)
    except MeshwrightError as error:
        raise SystemExit(error.exit_code) from None
    raise SystemExit(0)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within the block processor time is limited: TooLongError."""

    def stop(number: int, frame: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory() -> None:
    """This process may have so much more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def wrong_with(words: Say, is_whole: bool) -> str:
    """What is wrong with how a command took it; empty where nothing is. A whole file is read."""
    try:
        with limited():
            code, said = run_command(words)
    except TooLongError:
        return f"over {MOST_S:g} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    if any(mark in said for mark in OWN_MISTAKES) or code not in ((0,) if is_whole else (0, 2, 3)):
        return f"exit {code}: {said[-1500:]}"
    return "an escape of a terminal" if "\x1b" in said else ""


def mutated(chosen: Format, folder: Path, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """What went wrong: of the whole file first, then of `count` damaged ones, which stay in the folder."""
    whole = folder / "whole" / chosen.name
    whole.parent.mkdir()
    chosen.make(whole)
    small_plan().save(folder / "plan-of-two.toml")
    _gpu_plan(folder / "gpus.toml")
    names = {
        "PLAN": str(folder / "plan-of-two.toml"),
        "GPUS": str(folder / "gpus.toml"),
        "PAGE": str(folder / "page.html"),
    }
    found = []
    for number in range(-1, count):
        draw = random.Random(f"{chosen.name} {seed} {number}")
        here = whole.parent if number < 0 else folder / "damaged"
        if not here.is_dir():
            shutil.copytree(whole.parent, here)
        file = here / chosen.name
        if number >= 0:
            chosen.damage(whole, file, draw)
        for command in chosen.commands if number < 0 else [chosen.commands[number % len(chosen.commands)]]:
            places = {**names, "FILE": str(file), "FOLDER": str(here)}
            wrong = wrong_with([places.get(word, word) for word in command], is_whole=number < 0)
            if wrong:
                kept = folder / f"wrong-{number}-{chosen.name}"
                kept.write_bytes(file.read_bytes())
                found.append({"number": number, "command": list(command), "wrong": wrong, "file": str(kept)})
        if number < 0:
            limit_memory()  # what commands load has been loaded
    return found


def _gpu_plan(path: Path) -> None:
    Plan.of(load_model("llama-3.2-1b"), Cluster("1x8xH100"), Workload(64, 2048), dp=8, dtype="bfloat16").save(
        path
    )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    chosen_format = next(each for each in FORMATS if each.name == sys.argv[1])
    sys.stdout.write(json.dumps(mutated(chosen_format, Path(sys.argv[2]), int(sys.argv[3]))))
