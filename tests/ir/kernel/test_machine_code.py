"""Machine code that is kept: the same results, found by another process without numba, and not where it is not its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meshwright.ir.kernel import kernel, machine_code

SOURCE = """
from typing import Any, NamedTuple
from meshwright.ir.kernel.kernel import part

class Sums(NamedTuple):
    factor: float
    whole: Any
    flags: Any

@part
def add(sums: Any, place: int, value: float) -> None:
    sums.whole[place] += sums.factor * value

def weigh(numbers: Any, small: Any, times: int, sums: Any, found: Any) -> int:
    for turn in range(times):
        for place in range(len(numbers)):
            add(sums, place, numbers[place] / (1 + turn))
            sums.flags[place] = small[place] > turn
            found[place] = found[place] + small[place] * turn
    return times * len(numbers)
"""
CALL = """
import sys, numpy as np, mine
from meshwright.ir.kernel import kernel
kernel.SMALL_ROWS = 100
found = np.zeros(4, dtype=np.int32)
sums = mine.Sums(0.1, np.zeros(4), np.zeros(4, dtype=np.bool_))
args = (np.arange(4.0), np.arange(4, dtype=np.int8), 3)
print(kernel.call(mine.weigh, 50, args, [sums, found]), found.tolist(), sums.whole.tolist(), sums.flags.tolist())
print("numba" in sys.modules)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of kernels, in a folder of its own where its objects are kept, too."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel, "_codes", {})
    monkeypatch.setattr(kernel, "_plain_rows", Counter())
    return written(tmp_path, SOURCE)


def written(folder: Path, source: str) -> ModuleType:
    path = folder / "mine.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(mine: ModuleType) -> tuple[Any, ...]:
    sums = mine.Sums(0.1, np.zeros(4), np.zeros(4, dtype=np.bool_))
    return np.arange(4.0), np.arange(4, dtype=np.int8), 3, sums, np.zeros(4, dtype=np.int32)


def made(mine: ModuleType) -> tuple[machine_code.MachineCode | None, str]:
    args = arguments(mine)
    signature = machine_code.signature_of(args)
    return machine_code.make(mine.weigh, kernel._with_compiled_parts(mine.weigh), signature, args), signature


def test_machine_code_gives_the_bits_of_plain_python(mine: ModuleType) -> None:
    code, _ = made(mine)
    plain, fast = arguments(mine), arguments(mine)
    assert code is not None and mine.weigh(*plain) == code.run(fast) == 12
    for one, other in zip((*plain[3][1:], plain[4]), (*fast[3][1:], fast[4]), strict=True):
        assert one.tolist() == other.tolist()


def test_another_process_loads_what_was_kept_without_numba(mine: ModuleType, tmp_path: Path) -> None:
    made(mine)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    told = subprocess.run([sys.executable, "-c", CALL], env=env, capture_output=True, text=True, check=True)
    args = arguments(mine)
    number = mine.weigh(*args)
    result = (number, args[4].tolist(), args[3].whole.tolist(), args[3].flags.tolist())
    assert told.stdout == f"{' '.join(map(str, result))}\nFalse\n"


def test_what_another_source_or_processor_made_is_not_loaded(
    mine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, signature = made(mine)
    args = arguments(mine)
    assert machine_code.load(mine.weigh, signature, args) is not None
    changed = written(tmp_path, SOURCE.replace("small[place] * turn", "small[place]"))
    assert machine_code.load(changed.weigh, signature, args) is None
    assert made(changed)[0] is not None
    with monkeypatch.context() as other:
        other.setattr(machine_code, "_processor", lambda: ("z80", ""))
        machine_code._made_from.cache_clear()
        assert machine_code.load(changed.weigh, signature, args) is None
    machine_code._made_from.cache_clear()
    assert machine_code.load(changed.weigh, signature, args) is not None


@pytest.mark.parametrize("damaged", [lambda kept: kept[:-1], lambda kept: b"", lambda kept: kept + b"\n"])
def test_a_damaged_file_is_not_loaded(mine: ModuleType, tmp_path: Path, damaged: Any) -> None:
    _, signature = made(mine)
    (file,) = tmp_path.glob(f"*{machine_code.SUFFIX}")
    file.write_bytes(damaged(file.read_bytes()))
    assert machine_code.load(mine.weigh, signature, arguments(mine)) is None


@pytest.mark.parametrize("why", ["convention", "strides"])
def test_numba_calls_what_has_no_machine_code(
    mine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    args = list(arguments(mine))
    if why == "convention":  # of another version
        monkeypatch.setattr(machine_code, "_ARRAY", machine_code._ARRAY[1:])
    else:
        args[0] = np.repeat(args[0], 2)[::2]
        assert machine_code.signature_of(args) == ""
    plain = arguments(mine)
    monkeypatch.setattr(kernel, "SMALL_ROWS", 0)
    assert kernel.call(mine.weigh, 1, args[:3], args[3:]) == mine.weigh(*plain)
    assert args[3].whole.tolist() == plain[3].whole.tolist() and args[4].tolist() == plain[4].tolist()
    assert not list(tmp_path.glob(f"*{machine_code.SUFFIX}"))
