"""Files of graphs: archives of arrays, text with an edge a line, and what the processes of a job read of a chunked graph."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.mechanism import ChunkedGraph, Graph, simple_edges

SPLITS = ("train", "val", "test")
CSR = ("x_indptr", "x_indices", "x_data", "x_shape")  # features as a sparse matrix; ``x``: as a dense one
SEPARATORS = {".csv": ",", ".tsv": "\t"}  # elsewhere any white space, or a comma
COMMENTS = ("#", "%")  # of SNAP and of Matrix Market
FORMATS = ".npz with edges [E, 2], or text with two nodes a line"


def read_graph(path: str | Path) -> Graph:
    """Read a graph.

    An archive (``.npz``) has ``edges``, and may have ``x`` or the parts of a sparse matrix (``x_indptr``, ``x_indices``,
    ``x_data``, ``x_shape``), ``y`` and ``train``, ``val``, ``test``. Text has an edge a line, its first two columns; nodes
    are numbers or names and get numbers in their order; further columns, comments (``#``, ``%``) and a first line of titles
    are left out.

    Raises:
        SpecError: there is no such file, or it does not hold a graph.
    """
    path = Path(path)
    if not path.is_file():
        raise SpecError(f"there is no file {path}", allowed=FORMATS)
    if path.suffix == ".npz":
        return _from_archive(path)
    pairs = _pairs(path)
    nodes, inverse = np.unique(np.array(pairs), return_inverse=True)
    return Graph(path.stem, len(nodes), simple_edges(inverse.reshape(-1, 2)))


def _pairs(path: Path) -> list[tuple[Any, Any]]:
    """Both nodes of every line: all as numbers, or all as names."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is no text ({error})", allowed=FORMATS) from error
    found: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(COMMENTS):
            continue
        fields = _fields(line, path.suffix)
        if len(fields) < 2 or not fields[0] or not fields[1]:
            raise SpecError(
                f"{path}, line {number}: {line[:60]!r} names fewer than two nodes", allowed=FORMATS
            )
        found.append((fields[0], fields[1]))
    body = found[1:] if len(found) > 1 and not _are_numbers(found[0]) else found
    if body and all(_are_numbers(pair) for pair in body):
        return [(int(u), int(v)) for u, v in body]
    if not found:
        raise SpecError(f"{path} has no edges", allowed=FORMATS)
    return found


def _fields(line: str, suffix: str) -> list[str]:
    if suffix in SEPARATORS:
        return [word.strip() for word in next(csv.reader([line], delimiter=SEPARATORS[suffix]))]
    return line.replace(",", " ").split()


def _are_numbers(pair: tuple[str, str]) -> bool:
    return all(word.isascii() and word.isdigit() for word in pair)


def _from_archive(path: Path) -> Graph:
    """A graph from a NumPy archive that may contradict itself."""
    arrays = _arrays(path)
    edges = arrays.get("edges")
    if (
        edges is None
        or edges.ndim != 2
        or edges.shape[1] != 2
        or edges.dtype.kind not in "iu"
        or not len(edges)
    ):
        shape = "none" if edges is None else f"{edges.dtype} of shape {edges.shape}"
        raise SpecError(
            f"the edges of {path}: {shape}", allowed="whole numbers of shape [E, 2], E at least 1"
        )
    features, labels = _features(arrays, path), arrays.get("y")
    num_nodes = int(edges.max()) + 1
    if features is not None:
        num_nodes = max(num_nodes, features.shape[0])
    if int(edges.min()) < 0 or (features is not None and num_nodes > features.shape[0]):
        raise SpecError(
            f"{path} has edges of nodes {int(edges.min())} to {int(edges.max())}", allowed="0 to V-1"
        )
    if labels is not None and labels.shape != (num_nodes,):
        raise SpecError(
            f"{path} has labels of shape {labels.shape}", allowed=f"one for each of {num_nodes} nodes"
        )
    split = {name: arrays[name].astype(np.int64) for name in SPLITS if name in arrays}
    for name, nodes in split.items():
        if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < num_nodes:
            raise SpecError(f"{path}: {name} names nodes that are not there", allowed=f"0 to {num_nodes - 1}")
    known = None if labels is None else labels.astype(np.int64)
    return Graph(path.stem, num_nodes, simple_edges(edges), features, known, split)


def _features(arrays: Mapping[str, NDArray[Any]], path: Path) -> sparse.csr_array | None:
    """The feature matrix, where the archive has one."""
    if "x" in arrays:
        return sparse.csr_array(arrays["x"])
    if not all(name in arrays for name in CSR):
        return None
    indptr, indices, data, shape = (arrays[name] for name in CSR)
    try:
        return sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
    except (ValueError, TypeError) as error:
        raise SpecError(
            f"the features of {path} are no sparse matrix ({error})", allowed=", ".join(CSR)
        ) from error


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What is in an archive; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise SpecError(f"{path} is no archive of plain arrays ({error})", allowed=FORMATS) from error


def save_chunked(chunked: ChunkedGraph, path: Path) -> None:
    """Write what the handlers need of a graph that can be trained on: an archive as `read_graph` reads it, and its chunks."""
    graph = chunked.graph
    assert graph.features is not None and graph.labels is not None, "part_of has refused other graphs"
    x = graph.features
    parts = (x.indptr, x.indices, x.data, np.asarray(x.shape))
    arrays: dict[str, Any] = {**dict(zip(CSR, parts, strict=True)), **graph.split}
    np.savez(path, edges=graph.edges, offsets=chunked.offsets, y=graph.labels, **arrays)


@lru_cache(maxsize=2)
def load_chunked(path: str) -> ChunkedGraph:
    """Read it; once a process, because every epoch is a job."""
    return ChunkedGraph(read_graph(path), _arrays(Path(path))["offsets"])
