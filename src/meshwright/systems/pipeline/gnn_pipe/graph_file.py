"""Files of graphs: archives of arrays, text with an edge a line, and what the processes of a job read of a chunked graph."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from meshwright.specs.bound.array_file import arrays_of
from meshwright.specs.error import MissingDataError, SpecError
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    UNLABELLED,
    ChunkedGraph,
    Graph,
    simple_edges,
)

SPLITS = ("train", "val", "test")
CSR = ("x_indptr", "x_indices", "x_data", "x_shape")  # features as a sparse matrix; ``x``: as a dense one
SEPARATORS = {".csv": ",", ".tsv": "\t"}  # elsewhere any white space, or a comma
TITLES = (
    "source",
    "target",
    "from",
    "to",
    "src",
    "dst",
    "u",
    "v",
)  # what a first line of names may be instead
COMMENTS = ("#", "%")  # of SNAP and of Matrix Market
NODES = "a line a node: its name, its label (empty: unknown), and as many numbers as every other node has"
GRAPHS = (
    "MESHWRIGHT_GRAPHS"  # the environment variable that names the folder of graphs where no argument does
)
ARCHIVE = "NAME.npz with edges, features (x), labels (y), train and test"
FORMATS = ".npz with edges [E, 2], or text with two nodes a line"


def read_graph(path: str | Path, nodes: str | Path = "") -> Graph:
    """Read a graph; of text, with what the file `nodes` says of its nodes (`read_nodes`).

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
        if nodes:
            raise SpecError(
                f"{path} with nodes from {nodes}", allowed="an archive has its own", next="leave it out"
            )
        return _from_archive(path)
    pairs, table = _pairs(path), read_nodes(Path(nodes)) if nodes else {}
    named: list[Any] = [node for pair in pairs for node in pair]
    are_numbers = isinstance(named[0], int) and all(map(str.isdigit, table))
    named += map(int, table) if are_numbers else table
    names, inverse = np.unique(np.array(named if are_numbers else list(map(str, named))), return_inverse=True)
    edges = simple_edges(inverse[: 2 * len(pairs)].reshape(-1, 2))
    if not table:
        return Graph(path.stem, len(names), edges)
    lacking = [name for name in map(str, names.tolist()) if name not in table]
    if lacking:
        raise SpecError(
            f"{nodes} says nothing of {len(lacking)} nodes, such as {lacking[0]!r}", allowed=NODES
        )
    rows = [table[str(name)] for name in names.tolist()]
    classes = sorted({label for label, _ in rows if label})
    labels = np.array([classes.index(label) if label else UNLABELLED for label, _ in rows], dtype=np.int64)
    features = sparse.csr_array(np.array([numbers for _, numbers in rows], dtype=np.float64))
    return Graph(path.stem, len(names), edges, features, labels)


def read_nodes(path: Path) -> dict[str, tuple[str, list[float]]]:
    """Label (empty: unknown) and numbers of every node, from text with a node a line: its name, its label, its numbers. A
    first line of titles is left out.

    Raises SpecError for another form, for lines of unequal length, and for a node that is named twice.
    """
    lines = _lines(path) if path.is_file() else []
    found: dict[str, tuple[str, list[float]]] = {}
    for number, line in lines:
        name, label, *words = [*_fields(line, path.suffix), "", ""][: max(2, len(_fields(line, path.suffix)))]
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            if not found and (number, line) == lines[0]:
                continue
            raise SpecError(
                f"{path}, line {number}: {line[:60]!r} has words for numbers", allowed=NODES
            ) from None
        if name in found or not numbers or len(numbers) != len(next(iter(found.values()), ("", numbers))[1]):
            raise SpecError(
                f"{path}, line {number}: node {name!r} with {len(numbers)} numbers", allowed=NODES
            )
        found[name] = label, numbers
    if not found:
        raise SpecError(f"{path} names no nodes, or is not there", allowed=NODES)
    return found


def _lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of every line that is no comment. Raises SpecError where it is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is no text ({error})", allowed=FORMATS) from error
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line and not line.startswith(COMMENTS)]


def _pairs(path: Path) -> list[tuple[Any, Any]]:
    """Both nodes of every line: all as numbers, or all as names."""
    found: list[tuple[str, str]] = []
    for number, line in _lines(path):
        fields = _fields(line, path.suffix)
        if len(fields) < 2 or not fields[0] or not fields[1]:
            raise SpecError(
                f"{path}, line {number}: {line[:60]!r} names fewer than two nodes", allowed=FORMATS
            )
        found.append((fields[0], fields[1]))
    if len(found) > 1 and all(word.casefold() in TITLES for word in found[0]):
        found = found[1:]
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
    try:
        if "x" in arrays:
            return _matrix(sparse.csr_array(arrays["x"]))
        if not all(name in arrays for name in CSR):
            return None
        indptr, indices, data, shape = (arrays[name] for name in CSR)
        return _matrix(sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist())))
    except (ValueError, TypeError, OverflowError) as error:
        raise SpecError(
            f"the features of {path} are no matrix of numbers ({error})", allowed=f"x, or {', '.join(CSR)}"
        ) from error


def _matrix(found: sparse.csr_array) -> sparse.csr_array:
    """A matrix of real numbers; ValueError where it is none."""
    if found.ndim != 2 or found.dtype.kind not in "biuf":
        raise ValueError(f"{found.dtype} of shape {found.shape}")
    return found


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What is in an archive; nothing is unpickled."""
    try:
        return arrays_of(path)
    except (ValueError, OSError) as error:
        raise SpecError(f"{path} cannot be read: {error}", allowed=FORMATS) from error


def named_graph(name: str, data: Path | None = None) -> Graph:
    """A graph from the folder `data`, or without one from that which the environment variable MESHWRIGHT_GRAPHS names.

    Raises:
        MissingDataError: no folder was named, or the graph is not in it; the package has no data of others.
    """
    folder = data or (Path(os.environ[GRAPHS]) if os.environ.get(GRAPHS) else None)
    if folder is None or not (folder / f"{name}.npz").is_file():
        raise MissingDataError(
            f"the graph {name!r} is not here" if folder is None else f"there is no {name}.npz in {folder}",
            allowed=f"{ARCHIVE}, for each graph of the claims",
            next=f"meshwright reproduce gnn_pipe --data FOLDER, with {name}.npz in it",
        )
    return read_graph(folder / f"{name}.npz")


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
