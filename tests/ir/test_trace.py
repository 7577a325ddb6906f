"""Traces on disk: what is saved comes back, and half a file, or another one, is refused with one clear message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshwright.ir.core_vocabulary import F
from meshwright.ir.program import Axis, ProgramBuilder
from meshwright.ir.table import Duty, Hop, Microbatch
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.specs.error import ProgramError


def sample() -> Trace:
    """One forward, two iterations, a memory curve."""
    tables = {"microbatches": (Microbatch(1, 1.0),), "paths": ((Hop(0, 0),),), "duties": (Duty("F"),)}
    builder = ProgramBuilder([Axis("pp", 1)], **tables)
    builder.add(0, F)
    times = np.array([[0.0], [1.0]])
    curve = MemoryCurve(0, "device", np.array([0.0]), np.array([5.0]))
    return Trace(builder.build(), times, times, times + 1, "max-plus", (curve,), {"label": "one"})


def test_a_trace_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    sample().save(path)
    back = Trace.load(path)
    assert back.digest == sample().digest and back.metadata == {"label": "one"}
    np.testing.assert_array_equal(back.end_s, sample().end_s)
    assert back.memory[0].peak_bytes == 5.0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_half_a_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "t.npz"
    sample().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ProgramError, match="t.npz is no trace of meshwright"):
        Trace.load(path)


def with_header(change: Callable[[dict[str, object]], object]) -> Callable[[dict[str, np.ndarray]], None]:
    """A change of the arrays of a file that changes its header."""

    def changed(arrays: dict[str, np.ndarray]) -> None:
        header = json.loads(str(arrays["header"]))
        arrays["header"] = np.array(json.dumps(change(header)))

    return changed


@pytest.mark.parametrize(
    "change, words",
    [
        (with_header(lambda header: {**header, "schema": 99}), "schema 99, this version reads 1"),
        (with_header(lambda header: {**header, "schema": "new"}), "is no trace"),
        (with_header(lambda header: [header]), "is no trace"),
        (with_header(lambda header: {**header, "digest": "0"}), "record it again"),
        (with_header(lambda header: {**header, "metadata": 3}), "is no trace"),
        (lambda arrays: arrays.pop("end_s"), "end_s"),
        (lambda arrays: arrays.update(end_s=np.zeros((2, 7))), "its times are not"),
        (
            lambda arrays: arrays.update({k: np.zeros((0, 1)) for k in arrays if k.endswith("_s")}),
            "is no trace",
        ),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], None], words: str
) -> None:
    path = tmp_path / "t.npz"
    sample().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ProgramError, match=words):
        Trace.load(path)


def test_another_array_is_no_trace(tmp_path: Path) -> None:
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ProgramError, match="is no trace"):
        Trace.load(tmp_path / "t.npz")


def test_a_header_of_a_million_numbers_is_no_text(tmp_path: Path) -> None:
    """NumPy takes seconds to write such an array out."""
    np.savez(tmp_path / "t.npz", header=np.zeros((2,) * 20, bool))
    with pytest.raises(ProgramError, match="its header is no text"):
        Trace.load(tmp_path / "t.npz")
