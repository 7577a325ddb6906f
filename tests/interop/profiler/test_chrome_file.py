"""Files of others: what is no trace is refused with its file and event, whatever it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interop.profiler.kineto import GEMM, Kineto

from meshwright.interop.profiler import chrome_file
from meshwright.interop.profiler.chrome_file import is_profile, read_chrome
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.specs.error import MeshwrightError, SpecError

GOOD = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {}}


def written(folder: Path, rows: Any, **other: Any) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": rows, **other}))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ts": -1.0}, "its ts is -1 us"),
        ({"dur": -3}, "its dur is -3 us"),
        ({"dur": None}, "its dur is None"),
        ({"dur": float("nan")}, "its dur is nan"),
        ({"ts": True}, "its ts is True"),
        ({"ts": "12"}, "its ts is '12'"),
        ({"ts": 1e30}, "its ts is 1e\\+30 us"),
        ({"name": 4}, "its name is 4"),
        ({"args": []}, "its args are"),
    ],
)
def test_a_wrong_field_is_said_with_its_event(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"t.json, event 1 of traceEvents: {words}"):
        read_chrome(written(tmp_path, [GOOD, {**GOOD, **change}]))


def test_a_field_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="event 0 .* its dur is None"):
        read_chrome(written(tmp_path, [{key: value for key, value in GOOD.items() if key != "dur"}]))


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json.gz"
    for content, words in (
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"{" * 9), "is no JSON"),
        (gzip.compress(b"[" * 100_000), "deeper"),
        (gzip.compress(b"[]"), "no object"),
        (gzip.compress(b'{"traceEvents": 3}'), "no list"),
        (gzip.compress(b'{"traceEvents": []}')[:-9], "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(SpecError, match=words):
            read_chrome(path)
    monkeypatch.setattr(chrome_file, "MOST_BYTES", 1000)
    path.write_bytes(gzip.compress(b" " * 1001))  # a small file may unpack to any size
    with pytest.raises(SpecError, match="bytes of"):
        read_chrome(path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_chrome(tmp_path / "none.json")


def test_ranks_and_times_are_believable(tmp_path: Path) -> None:
    for other in (
        {"distributedInfo": {"rank": -1}},
        {"distributedInfo": {"rank": 1e9}},
        {"baseTimeNanoseconds": -5},
    ):
        with pytest.raises(SpecError):
            read_chrome(written(tmp_path, [GOOD], **other))


def test_nothing_ran(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nothing ran in"):
        read_profile(written(tmp_path, []))


def test_a_profile_is_known_by_its_content(tmp_path: Path) -> None:
    assert is_profile(written(tmp_path, []))
    (tmp_path / "config.json").write_text('{"architectures": []}')
    assert not is_profile(tmp_path / "config.json") and not is_profile(tmp_path / "plan.toml")


words = st.sampled_from(
    ["PP:0F1", "PP:9999ZZ_999999", "ProfilerStep#1", "nccl:send", GEMM, "ncclDevKernel_SendRecv", "FSDP::all_gather",
     "autograd::engine::evaluate_function: A", "Forward 999999", "", "\x00"]
)  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 50), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)
fields = {
    "ph": st.sampled_from(["X", "s", "M", 1]),
    "cat": st.sampled_from(
        [
            "kernel",
            "cpu_op",
            "user_annotation",
            "gpu_user_annotation",
            "cuda_runtime",
            "gpu_memcpy",
            "fwdbwd",
            3,
        ]
    ),
    "name": words,
    "pid": st.integers(0, 1),
    "tid": st.integers(0, 2),
    "ts": st.integers(0, 40),
    "dur": st.integers(0, 20),
    "args": st.fixed_dictionaries({}, optional={"correlation": st.integers(0, 5), "Collective name": values}),
}
likely = st.fixed_dictionaries(fields)
mixed = st.builds(lambda row, key, value: {**row, key: value}, likely, st.sampled_from(list(fields)), values)


@settings(max_examples=60)
@given(rows=st.one_of(st.lists(likely, max_size=12), st.lists(st.one_of(likely, mixed, values), max_size=8)))
def test_any_file_is_read_or_refused(rows: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        job = read_profile(written(folder, rows))
        trace_of(job).save(folder / "t.npz")
    except MeshwrightError:
        return
    assert 0 <= job.named_share <= 1 + 1e-9
    for each in job.figures():
        assert 0 <= each.used.exposed_s <= each.used.exchange_s + 1e-12


def test_a_trace_is_read_whole(tmp_path: Path) -> None:
    made = Kineto(3, 8, base_ns=1_719_853_884_000_000_000)
    made.kernel(GEMM, 1, 20.5, 5)
    found = read_chrome(made.save(tmp_path))
    assert (found.rank, found.num_ranks, found.base_s) == (3, 8, 1_719_853_884.0)
    assert [event.start_s for event in found.events] == pytest.approx([1e-6, 20.5e-6])
