"""Traces on disk: what is saved comes back, and half a file, or another one, is refused with one clear message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.ir.core_vocabulary import F
from meshwright.ir.program import Axis, ProgramBuilder
from meshwright.ir.table import Duty, Hop, Microbatch
from meshwright.ir.text import to_text
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.lowering import Transfers, program_of_orders
from meshwright.schedules import registered
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
        (with_header(lambda header: {**header, "schema": 99}), "schema 99, this version reads 2"),
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


def symmetric() -> Trace:
    """Four devices, of which two and two do the same at the same times."""
    program = Transfers()(
        program_of_orders(registered()["1f1b"].orders(2, 3), collapsed=[Axis("dp", 2, False)])
    )
    program = program.expand("dp")
    end = np.concatenate([np.arange(n, dtype=float) for n in np.diff(program.offsets)])[None] + 1.0
    return Trace(program, end - 1.0, end - 1.0, end, "executed")


def test_lists_that_are_equal_stand_in_a_file_once(tmp_path: Path) -> None:
    path, trace = tmp_path / "t.npz", symmetric()
    trace.save(path)
    with np.load(path) as file:
        assert file["end_s"].shape == (1, trace.program.num_rows // 2) and len(file["list_number"]) == 4
    back = Trace.load(path)
    assert to_text(back.program) == to_text(trace.program) and back.program.tables == trace.program.tables
    np.testing.assert_array_equal(back.program.offsets, trace.program.offsets)
    np.testing.assert_array_equal(back.start_s, trace.start_s)


def test_what_rows_wait_for_comes_back(tmp_path: Path) -> None:
    trace = symmetric()
    first = trace.program.offsets[:-1]
    after = np.stack([first + 4, first + 1], axis=1)[[0, 1, 3]]
    trace = replace(trace, program=replace(trace.program, after=after))
    trace.save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as file:
        assert file["list_offsets"].shape == (4,)  # one of two that are else alike does not wait
    back = Trace.load(tmp_path / "t.npz")
    np.testing.assert_array_equal(back.program.after, after)


def test_a_file_of_the_first_schema_is_read(tmp_path: Path) -> None:
    trace = symmetric()
    header = {
        "schema": 1, "engine": "executed", "digest": trace.digest, "program": to_text(trace.program), "memory": [],
        "metadata": {"label": "before"},
    }  # fmt: skip
    times = {name: getattr(trace, name) for name in ("posted_s", "start_s", "end_s")}
    np.savez(tmp_path / "t.npz", header=np.array(json.dumps(header)), **times)
    back = Trace.load(tmp_path / "t.npz")
    assert back.digest == trace.digest and back.metadata == {"label": "before"}
    np.testing.assert_array_equal(back.end_s, trace.end_s)


@pytest.mark.parametrize(
    "name, values, words",
    [
        ("list_number", [0, 1, 0], "its lists are not those of its axes"),
        ("list_number", [0, 1, 0, 2], "its lists are not those of its axes"),
        ("list_number", [0.0, 1.0, 0.0, 1.0], "not whole"),
        ("list_offsets", [0, 5, 3], "its lists are not those of its axes"),
        ("column_stage", [0, 1], "a column has not a whole number for every row"),
        ("after", [[5, 4], [3, 2]], "sorted pairs"),
    ],
)
def test_a_program_whose_lists_are_none_is_refused(
    tmp_path: Path, name: str, values: Any, words: str
) -> None:
    path = tmp_path / "t.npz"
    symmetric().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, name: np.array(values)})
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
