"""Files of routing traces: ours, Megatron-LM's and ExFlow's, and what is none of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshwright.specs.error import SpecError
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import is_routing_file, read_routing, save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun

RANDOM = np.random.default_rng(1)
TRACE = RoutingTrace(
    RANDOM.integers(20, size=(9, 3, 2)), 20, (1, 2, 5), (TraceRun(3, 0, 4), TraceRun(3, 1, 2), TraceRun(4, 0, 3)),
    "tests",
)  # fmt: skip
# as `router_trace.py` of Megatron-LM writes them (2026): two microbatches of a step, and a block of multi-token prediction
MEGATRON = "".join(
    json.dumps(
        {
            "step": 0,
            "stage": "pre_dispatch",
            **own,
            "rank": 0,
            "num_tokens": len(rows),
            "topk": 2,
            "top_indices": rows,
        }
    )
    + "\n"
    for own, rows in (
        ({"block": "decoder", "layer": 3}, [[12, 4], [0, 1]]),
        ({"block": "decoder", "layer": 4}, [[1, 2], [3, 4]]),
        ({"block": "mtp", "mtp_idx": 0, "layer": 0}, [[1, 2], [3, 4]]),
        ({"block": "decoder", "layer": 3}, [[5, 6]]),
        ({"block": "decoder", "layer": 4}, [[7, 8]]),
    )
)


def same(ours: RoutingTrace, theirs: RoutingTrace) -> bool:
    return (
        bool((ours.experts == theirs.experts).all())
        and ours.layers == theirs.layers
        and ours.runs == theirs.runs
    )


def test_ours_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    save_routing(TRACE, path)
    read = read_routing(path)
    assert same(read, TRACE) and is_routing_file(path)
    assert (read.num_experts, read.source, read.origin) == (20, "tests", "recorded")
    drawn = markov_trace(50, 2, 300, 1.0, seed=0)  # more experts than a byte counts
    save_routing(drawn, path)
    assert same(read_routing(path), drawn) and read_routing(path).origin == "drawn"


def test_megatron_lines_keep_steps_ranks_and_layers(tmp_path: Path) -> None:
    path = tmp_path / "router_trace_rank0.jsonl"
    save_routing(TRACE, path)
    read = read_routing(path)
    assert same(read, TRACE) and is_routing_file(path)
    assert read.num_experts == TRACE.experts.max() + 1  # the lines do not say
    record = json.loads(path.read_text().splitlines()[0])
    assert list(record) == [
        "step", "stage", "block", "layer", "rank", "num_tokens", "topk", "top_indices",
    ]  # fmt: skip


def test_what_megatron_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "router_trace_rank0.jsonl"
    path.write_text(MEGATRON)
    read = read_routing(path)
    assert read.layers == (3, 4) and read.runs == (TraceRun(0, 0, 3),)
    assert read.experts.tolist() == [[[12, 4], [1, 2]], [[0, 1], [3, 4]], [[5, 6], [7, 8]]]


def test_exflow_arrays(tmp_path: Path) -> None:
    path = tmp_path / "routes.npy"
    drawn = markov_trace(50, 4, 6, 1.0, seed=0)
    save_routing(drawn, path)
    assert np.load(path).shape == (50, 4)
    assert (read_routing(path).experts == drawn.experts).all()
    with pytest.raises(SpecError, match="2 experts a token"):
        save_routing(TRACE, path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", "no record of a decoder"),
        ("a.jsonl", "[]\n", "a record needs step"),
        ("a.jsonl", "{", "no routing trace"),
        ("a.jsonl", MEGATRON.replace('"topk": 2', '"topk": 3'), "shape"),
        ("a.jsonl", "\n".join(MEGATRON.splitlines()[:4]), "layers of"),
        ("a.npz", "x", "no routing trace"),
        ("a.npy", "x", "no routing trace"),
        ("a.txt", "x", "no routing trace"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_routing(path)


def test_no_object_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([[print]], object), allow_pickle=True)
    with pytest.raises(SpecError, match="no routing trace"):
        read_routing(path)


def test_a_newer_file_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    save_routing(TRACE, path)
    with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    told = json.loads(str(arrays["meshwright-routing"]))
    np.savez(path, **{**arrays, "meshwright-routing": np.array(json.dumps({**told, "schema": 9}))})
    with pytest.raises(SpecError, match="schema 9"):
        read_routing(path)
    np.savez(path, **{**arrays, "experts": arrays["experts"] + 90})
    with pytest.raises(SpecError, match="expert"):
        read_routing(path)
    save_routing(TRACE, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SpecError):
        read_routing(path)
    with pytest.raises(SpecError, match="no file"):
        read_routing(tmp_path / "none.npz")
