"""Reading anything that people have by its path or name: plans, programs, traces, schedules, models, clusters."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.api.subjects.lengths import is_token_folder, lengths_of
from meshwright.interop.profiler.chrome_file import is_profile
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import load_device
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.data_text import toml_of
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.routing.routing_file import is_routing_file, read_routing
from meshwright.specs.sequence.length_file import is_length_file
from meshwright.specs.slot import TRUST

PathLike = str | os.PathLike[str]
DATA_SUFFIXES = (".toml", ".npz", ".csv", ".txt", ".program")


def load(path: PathLike) -> Any:
    """Read a file by what is in it: a plan (.toml), trace (.npz; torch.profiler's .json), program text, torch's schedule
    CSV (as orders), profile or model (.json), lengths of sequences (.txt, .json, .gz), routing of tokens to
    experts (.npz, .jsonl, .npy). Raises SpecError for anything else."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise SpecError(f"there is no file {file}", allowed="a plan, program, trace, profile or CSV file")
    if is_routing_file(file):
        return read_routing(file)
    if file.suffix == ".npz":
        return Trace.load(file)
    if file.suffix == ".toml":
        return _load_toml(file)
    if is_length_file(file):
        return lengths_of(file)
    if is_profile(file):
        return trace_of(read_profile(file))
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(
            f"{file} is not text", allowed="a plan, program, trace (.npz), profile or CSV"
        ) from None
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}", next="check the path") from None
    if text.lstrip().startswith("meshwright-program"):
        from meshwright.ir.text import from_text

        program = from_text(text)
        for owner in program.vocabulary.owners:  # whose code nothing runs but an execution
            TRUST.doubt(owner)
        return program
    if file.suffix == ".csv":
        from meshwright.ir.text import from_torch_csv

        return from_torch_csv(text)
    if file.suffix == ".json":
        return Profile.from_json(text) if '"meshwright-profile"' in text else load_model(file)
    raise SpecError(
        f"{file} is nothing that meshwright reads",
        allowed=".toml, .npz, .csv, .json, program text, lengths of sequences (one a line)",
    )


def _load_toml(file: Path) -> Plan | ClusterSpec:
    """A plan, or a cluster where the file has devices."""
    try:
        keys = toml_of(file.read_text(encoding="utf-8"))
    except ValueError:
        return Plan.load(file)  # its message names line and column
    return Cluster.load(file) if "devices" in keys and "model" not in keys else Plan.load(file)


def find(text: PathLike) -> Any:
    """Anything by name or path: a file, a folder of token shards (as the lengths of its documents), a model, schedule,
    device, cluster or pass.

    Raises UnknownNameError that lists near matches of all kinds.
    """
    path, name = Path(text).expanduser(), str(text)
    if ".py" in path.suffix:
        return catalog.find_schedule(name)
    if path.is_file() or is_data_file(path):
        return load(path)
    if is_token_folder(path):
        return lengths_of(path)
    if name in catalog.PASSES:
        return catalog.find_pass(name)
    tries: tuple[Callable[[str], Any], ...] = (
        load_model,
        catalog.find_schedule,
        load_device,
        cluster_named,
    )
    for attempt in tries:
        try:
            return attempt(name)
        except UnknownNameError as error:
            unknown = error
        except SpecError:
            # a model's folder with something wrong in it, not a name; or so many devices of something, which cannot be
            if path.exists() or (attempt is cluster_named and "x" in name):
                raise
    known = {entry for kind in catalog.KINDS if kind != "systems" for entry in catalog.names(kind)}
    raise UnknownNameError(
        "thing", name, known, next="or a file: plan, program, trace, profile, config.json"
    ) from unknown


def cluster_named(name: str | ClusterSpec) -> ClusterSpec:
    """A cluster by its short name or file, or "this computer"; one that was made is what it is."""
    if isinstance(name, ClusterSpec):
        return name
    return Cluster.detect() if name == catalog.DETECTED else Cluster(name)


def is_data_file(given: PathLike) -> bool:
    """Whether a path's suffix is that of a file which says what it is, or it is there and a profile."""
    path = Path(given)
    return path.suffix in DATA_SUFFIXES or (path.is_file() and is_profile(path))
