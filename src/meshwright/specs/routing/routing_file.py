"""Files of routing traces: our own archive, Megatron-LM's lines of JSON, and ExFlow's array; read without running anything.

    .npz    ours: schema, experts [tokens, layers, experts of a token], layers, runs (step, rank, tokens), source, origin
    .jsonl  Megatron-LM (`--moe-routing-trace-path`, router_trace.py): a record for every (step, block, layer) of a rank, with
            num_tokens, topk and top_indices [num_tokens, topk]; of several microbatches a step, a record each
    .npy    ExFlow: [tokens, layers], the one expert of each token in each layer

The last two do not say how many experts there are: as many as they name, until a model says more (`of_experts`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.specs.bound.array_file import arrays_of
from meshwright.specs.bound.bound import MOST_ARRAY_BYTES, check_most
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.routing.routing_trace import ORIGINS, RoutingTrace, TraceRun
from meshwright.specs.whole_file import whole_file

PathLike = str | os.PathLike[str]
SCHEMA = 1
KIND = "meshwright-routing"
OWN, LINES, ARRAY = ".npz", ".jsonl", ".npy"
FORMS = (OWN, LINES, ARRAY)
ALLOWED = "a routing trace: .npz of meshwright, .jsonl of Megatron-LM's router trace, .npy of ExFlow [tokens, layers]"
DECODER, STAGE = "decoder", "pre_dispatch"  # of a record: which of a model's blocks, and where it was taken
NEEDED = ("step", "block", "layer", "rank", "topk", "top_indices")
LOOKED_AT = 4096  # characters of a file's first line that tell whose it is


def is_routing_file(path: PathLike) -> bool:
    """Is it a routing trace, by its name and how it begins?"""
    file = Path(path)
    if not file.is_file() or file.suffix not in FORMS:
        return False
    if file.suffix == ARRAY:
        return True
    try:
        if file.suffix == LINES:
            with file.open("rb") as opened:
                return b'"top_indices"' in opened.read(LOOKED_AT)
        return KIND in arrays_of(file)
    except (OSError, ValueError):
        return False


def read_routing(path: PathLike) -> RoutingTrace:
    """The trace of a file, by its suffix. Raises SpecError that names it and what it has instead."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise SpecError(f"there is no file {file}", allowed=ALLOWED)
    readers = {OWN: _read_own, LINES: _read_lines, ARRAY: _read_array}
    if file.suffix not in readers:
        raise SpecError(f"{file} is no routing trace", allowed=ALLOWED)
    try:
        return readers[file.suffix](file)
    except SpecError as error:
        raise SpecError(f"{file}: {error.given}", allowed=error.allowed, next=error.next) from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise SpecError(f"{file} is no routing trace ({said})", allowed=ALLOWED) from None


def save_routing(trace: RoutingTrace, path: PathLike) -> None:
    """Write a trace by the suffix of `path`. Raises SpecError where that form cannot say it."""
    file = Path(path)
    writers = {OWN: _write_own, LINES: _write_lines, ARRAY: _write_array}
    if file.suffix not in writers:
        raise SpecError(f"a routing trace as {file.name}", allowed=", ".join(FORMS))
    with whole_file(file) as part:
        writers[file.suffix](trace, part)


def _read_own(file: Path) -> RoutingTrace:
    found = arrays_of(file)
    if KIND not in found:
        raise ValueError("another kind of archive")
    told = json_of(str(found[KIND]))
    if told["schema"] > SCHEMA:
        raise SpecError(
            f"a routing trace of schema {told['schema']}",
            allowed=f"up to {SCHEMA}",
            next="upgrade meshwright",
        )
    if told["origin"] not in ORIGINS:
        raise ValueError(f"origin {told['origin']!r}")
    runs = tuple(TraceRun(*map(int, row)) for row in found["runs"].reshape(-1, 3))
    layers = tuple(map(int, found["layers"]))
    return RoutingTrace(
        found["experts"], int(told["num_experts"]), layers, runs, str(told["source"]), told["origin"]
    )


def _write_own(trace: RoutingTrace, file: Path) -> None:
    told = {
        "schema": SCHEMA, "num_experts": trace.num_experts, "source": trace.source, "origin": trace.origin,
    }  # fmt: skip
    kind = np.uint8 if trace.num_experts <= np.iinfo(np.uint8).max + 1 else np.uint16
    arrays: dict[str, Any] = {
        KIND: np.array(json.dumps(told)), "experts": trace.experts.astype(kind),
        "layers": np.array(trace.layers, np.int32), "runs": np.array(trace.runs, np.int64).reshape(-1, 3),
    }  # fmt: skip
    with file.open("wb") as opened:  # NumPy adds a suffix to names, not to open files
        np.savez_compressed(opened, **arrays)


def _read_array(file: Path) -> RoutingTrace:
    check_most("bytes of the array", file.stat().st_size, MOST_ARRAY_BYTES)
    found = np.load(file, allow_pickle=False)
    if found.ndim != 2 or found.dtype.kind not in "iu":
        raise ValueError(f"an array of shape {found.shape} and {found.dtype}")
    return _of_array(found[:, :, None], tuple(range(found.shape[1])), (), file.name)


def _write_array(trace: RoutingTrace, file: Path) -> None:
    if trace.num_experts_per_token > 1:
        raise SpecError(
            f"{trace.num_experts_per_token} experts a token in an array of ExFlow's",
            allowed="one, or .npz, .jsonl",
        )
    with file.open("wb") as opened:
        np.save(opened, trace.experts[:, :, 0].astype(np.int64), allow_pickle=False)


def _of_array(
    experts: np.ndarray[Any, Any], layers: tuple[int, ...], runs: tuple[TraceRun, ...], source: str
) -> RoutingTrace:
    """A trace of a file that does not say how many experts there are."""
    most = int(experts.max(initial=0)) + 1
    return RoutingTrace(experts, max(1, most), layers, runs, source)


def _write_lines(trace: RoutingTrace, file: Path) -> None:
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(record) + "\n" for record in records_of(trace))


def records_of(trace: RoutingTrace) -> Iterator[dict[str, Any]]:
    """Megatron-LM's records of a trace: of every run, one a layer."""
    begin = 0
    for run in trace.runs:
        for place, layer in enumerate(trace.layers):
            rows = trace.experts[begin : begin + run.num_tokens, place].tolist()
            yield {
                "step": run.step, "stage": STAGE, "block": DECODER, "layer": layer, "rank": run.rank,
                "num_tokens": run.num_tokens, "topk": trace.num_experts_per_token, "top_indices": rows,
            }  # fmt: skip
        begin += run.num_tokens


def _read_lines(file: Path) -> RoutingTrace:
    check_most("bytes of the trace", file.stat().st_size, MOST_ARRAY_BYTES)
    with file.open(encoding="utf-8") as opened:
        return trace_of_records((json_of(line) for line in opened if line.strip()), file.name)


def trace_of_records(records: Iterable[Any], source: str) -> RoutingTrace:
    """The trace of Megatron-LM's records, those of other blocks than the decoder's left out.

    Records of one (step, rank, layer) are its microbatches, in their order. Raises SpecError where layers have different
    tokens, and ValueError for what is no record.
    """
    found: dict[tuple[int, int], dict[int, list[np.ndarray[Any, Any]]]] = {}
    for record in records:
        if not isinstance(record, dict) or any(name not in record for name in NEEDED):
            raise ValueError(f"a record needs {', '.join(NEEDED)}")
        if record["block"] != DECODER:
            continue
        rows = np.array(record["top_indices"])
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.shape[1] != record["topk"]:
            raise ValueError(
                f"top_indices of step {record['step']}, layer {record['layer']}: shape {rows.shape}"
            )
        key = (int(record["step"]), int(record["rank"]))
        found.setdefault(key, {}).setdefault(int(record["layer"]), []).append(rows)
    layers = tuple(sorted({layer for own in found.values() for layer in own}))
    if not layers:
        raise ValueError("it has no record of a decoder")
    runs, parts = [], []
    for (step, rank), own in sorted(found.items()):
        whole = [np.concatenate(own[layer]) if layer in own else np.empty((0, 0)) for layer in layers]
        if len({each.shape for each in whole}) > 1:
            raise SpecError(
                f"step {step}, rank {rank}: layers of {sorted({len(each) for each in whole})} tokens",
                allowed="a record of as many tokens for every layer",
                next="join the files of a pipeline's ranks, which have layers of their own",
            )
        runs.append(TraceRun(step, rank, len(whole[0])))
        parts.append(np.stack(whole, 1))
    return _of_array(np.concatenate(parts), layers, tuple(runs), source)
