"""Profile: what was measured on a device, as tables of samples; the numbers behind every prediction `measured here`."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshwright.specs.cluster.own_run import OwnRun
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.whole_file import whole_file

PROFILE_SCHEMA = 4  # 2: `process_factors`; 3: the table all_to_all; 4: `runs`

# Tables of compute: kind of operator, then its phase unless forward; shapes are those of `Operator`.
# Seconds are of one call while every process is busy.
COMPUTE_TABLES: Mapping[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),  # x[m, k] @ w[n, k].T
    "matmul_input_gradient": ("m", "n", "k"),  # dy[m, k] @ w[k, n], m counts tokens
    "matmul_weight_gradient": ("m", "n", "k"),  # dy[k, m].T @ x[k, n], k counts tokens
    "attention": ("batch", "heads", "kv_heads", "sequence", "head_dim", "is_causal"),
    "attention_backward": ("batch", "heads", "kv_heads", "sequence", "head_dim", "is_causal"),
    "elementwise": ("rows", "columns"),  # sum of two arrays into a third
    "activation": ("rows", "columns"),  # SiLU of a gate times up
    "activation_backward": ("rows", "columns"),
    "norm": ("rows", "columns"),
    "norm_backward": ("rows", "columns"),
    "embedding": ("tokens", "hidden", "vocabulary"),
    "embedding_backward": ("tokens", "hidden", "vocabulary"),
    "loss": ("tokens", "vocabulary"),
    "loss_backward": ("tokens", "vocabulary"),
    "optimizer": ("parameters",),
}
# Tables of communication, each by bytes. Seconds from "all ends posted" to "result complete", all processes at it.
TRANSFER_TABLES: Mapping[str, tuple[str, ...]] = {
    "send_receive": ("bytes",),  # one message in each direction at the same time
    "all_reduce": ("bytes",),
    "all_gather": ("bytes",),
    "reduce_scatter": ("bytes",),
    "all_to_all": ("bytes",),  # of a member's buffer, of which every member gets an equal part
}
# Single numbers and what they are; a profile may lack any of them.
CONSTANTS: Mapping[str, str] = {
    "operator_overhead_s": "seconds that one operator of no work takes",
    "backward_overhead_s": "seconds that one operator of no work takes in an automatic backward",
    "instruction_overhead_s": "seconds the host spends on one instruction of no work",
    "exchange_host_s": "seconds the host is held by posting one point-to-point exchange",
    "compute_slowdown": "seconds of a compute while a transfer runs / seconds alone",
    "transfer_slowdown": "seconds of a transfer while computes run / seconds alone",
    "step_factor": "seconds of a training step as a log shows it / seconds predicted",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: `shape` as its table says; `spread` is half the interquartile range over the median."""

    shape: tuple[int, ...]
    seconds: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class PassSample:
    """One measurement of a whole pass of a stage: what `stage_operators` counts against what a stage takes.

    `seconds` is of instruction `name` (F, R, B, I, W, STEP) for one microbatch of `num_sequences` sequences of
    `sequence_length` tokens, on a stage of `num_blocks` blocks of `model` (the fields of a ModelSpec).
    """

    name: str
    model: Mapping[str, Any]
    num_blocks: int
    has_embedding: bool
    has_head: bool
    num_sequences: int
    sequence_length: int
    seconds: float
    spread: float = 0.0


@dataclass(frozen=True)
class Profile:
    """Everything measured on one kind of device.

    Attributes:
        device: name of the device, as `DeviceSpec.name` or the processor's own.
        dtype: of all samples.
        num_processes: how many were busy while it was measured.
        tables: table name -> samples (`COMPUTE_TABLES`, `TRANSFER_TABLES`).
        constants: name -> number (`CONSTANTS`).
        passes: whole passes of real stages, against which the sum of operators is calibrated.
        process_factors: what a compute takes on each process over the mean of all, which the tables hold; empty: all
            processes are alike.
        runs: of a user's own on such devices, beside what was predicted of them.
        measured: when, ISO 8601; empty when unknown.
        source: who measured and how, for people.
    """

    device: str
    dtype: str = "float32"
    num_processes: int = 1
    tables: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    passes: tuple[PassSample, ...] = ()
    measured: str = ""
    source: str = ""
    process_factors: tuple[float, ...] = ()
    runs: tuple[OwnRun, ...] = ()

    def __post_init__(self) -> None:
        factors = self.process_factors
        if factors and (len(factors) != self.num_processes or not all(0 < f < math.inf for f in factors)):
            raise SpecError(
                f"profile has process_factors {factors}",
                allowed=f"none, or {self.num_processes} numbers above 0: one for each process",
            )
        for name, samples in self.tables.items():
            _check_table(name, samples)
        for name, value in self.constants.items():
            if not math.isfinite(value) or value < 0:
                raise SpecError(
                    f"profile constant {name!r} is {value}", allowed="a finite number of at least 0"
                )

    def samples(self, table: str) -> tuple[Sample, ...]:
        """Samples of `table`; none when it was not measured."""
        return self.tables.get(table, ())

    def constant(self, name: str, default: float = 0.0) -> float:
        """The measured constant `name`, or `default`."""
        return self.constants.get(name, default)

    def to_json(self) -> str:
        """One JSON object with its schema version, stable order, one sample a line at most."""
        return json.dumps(_as_dict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Profile:
        """The profile in `text`. Raises SpecError on anything that is no profile, or a newer schema."""
        try:
            data = json_of(text)
        except ValueError as error:
            raise SpecError(
                f"not a profile: {error}", allowed="the JSON of `meshwright calibrate`"
            ) from error
        return _from_dict(data)

    def save(self, path: Path) -> None:
        """Write to `path`, making its folder; the old file stays whole until the new one is complete."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as fresh:
            fresh.write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Profile:
        """Read `path`. Raises SpecError when it is not there or no profile."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SpecError(
                f"no profile at {path}: {error.strerror}",
                next="run `meshwright calibrate` to measure this machine",
            ) from error
        return Profile.from_json(text)


def cache_path(name: str = "profile") -> Path:
    """Where this user's own profile is kept: $XDG_CACHE_HOME, else ~/.cache, then meshwright/NAME.json."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says that relative paths are to be ignored.
    folder = Path(root) if root and Path(root).is_absolute() else Path(os.path.expanduser("~")) / ".cache"
    return folder / "meshwright" / f"{name}.json"


def keep(profile: Profile, path: Path | None = None) -> Path | None:
    """Save `profile` in the user's cache; where that cannot be written, warn once and return None."""
    target = path or cache_path()
    try:
        profile.save(target)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "profile not kept: %s is not writable (%s)", target, error.strerror
        )
        return None
    return target


def kept(path: Path | None = None) -> Profile | None:
    """The profile in the user's cache, or None when there is none or it is unreadable (said in one warning)."""
    target = path or cache_path()
    if not target.is_file():
        return None
    try:
        return Profile.load(target)
    except SpecError as error:
        logging.getLogger(__name__).warning("profile %s ignored: %s", target, error)
        return None


def _check_table(name: str, samples: tuple[Sample, ...]) -> None:
    """Raise SpecError unless every sample of the table has its rank and a positive time."""
    dims = COMPUTE_TABLES.get(name) or TRANSFER_TABLES.get(name)
    if dims is None:
        known = ", ".join([*COMPUTE_TABLES, *TRANSFER_TABLES])
        raise SpecError(f"profile has a table {name!r}", allowed=known)
    for sample in samples:
        if len(sample.shape) != len(dims) or not math.isfinite(sample.seconds) or sample.seconds <= 0:
            raise SpecError(
                f"profile table {name!r} has {sample}", allowed=f"shape {dims} and seconds above 0"
            )


def _as_dict(profile: Profile) -> dict[str, Any]:
    """Plain JSON types, schema first in meaning if not in order."""
    return {
        "schema": PROFILE_SCHEMA,
        "kind": "meshwright-profile",
        "device": profile.device,
        "dtype": profile.dtype,
        "num_processes": profile.num_processes,
        "measured": profile.measured,
        "source": profile.source,
        "tables": {
            name: [[list(sample.shape), sample.seconds, sample.spread] for sample in samples]
            for name, samples in profile.tables.items()
        },
        "constants": dict(profile.constants),
        "passes": [{**asdict(sample), "model": dict(sample.model)} for sample in profile.passes],
        "process_factors": list(profile.process_factors),
        "runs": [asdict(run) for run in profile.runs],
    }


def _from_dict(data: Any) -> Profile:
    """Check kind and schema, then build; a field of the wrong form is named in the error."""
    if not isinstance(data, dict) or data.get("kind") != "meshwright-profile":
        raise SpecError("this JSON is no profile", allowed='an object with "kind": "meshwright-profile"')
    schema = data.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise SpecError(f"profile has schema {schema!r}", allowed=f"1 to {PROFILE_SCHEMA}")
    if schema > PROFILE_SCHEMA:
        raise SpecError(
            f"profile has schema {schema}",
            allowed=f"up to {PROFILE_SCHEMA} in this version",
            next="use a meshwright that writes this schema, or run `meshwright calibrate` again",
        )
    try:
        return Profile(
            device=str(data["device"]),
            dtype=str(data["dtype"]),
            num_processes=int(data["num_processes"]),
            tables={name: _read_samples(rows) for name, rows in data["tables"].items()},
            constants={name: float(value) for name, value in data["constants"].items()},
            passes=tuple(PassSample(**row) for row in data["passes"]),
            measured=str(data.get("measured", "")),
            source=str(data.get("source", "")),
            process_factors=tuple(float(factor) for factor in data.get("process_factors", ())),
            runs=tuple(OwnRun(**row) for row in data.get("runs", ())),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SpecError(
            f"profile is malformed: {type(error).__name__} {error}", next="run `meshwright calibrate` again"
        ) from error


def _read_samples(rows: Any) -> tuple[Sample, ...]:
    """Samples from [[shape], seconds, spread] rows."""
    return tuple(Sample(tuple(int(size) for size in row[0]), float(row[1]), float(row[2])) for row in rows)
