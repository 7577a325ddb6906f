"""One file of torch.profiler: Chrome's trace events as Kineto writes them (.json, .json.gz), every one checked.

Read of it: events with a duration (`ph` X), the flows from forward operators to backward ones (`cat` fwdbwd), and what
allocators hold (`[memory]`, of profile_memory=True). Times are microseconds since `baseTimeNanoseconds`, or since 1970 where
a file has none (before July 2024).
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.specs.bound.bound import check_most
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

MOST_BYTES = 1 << 29  # of one file, unpacked: ten steps of a rank have some ten million
MOST_RANKS = 1 << 16
MOST_HELD = 1 << 60  # bytes
MOST_US = 1e17  # of a time: the year 5138 after 1970
LOOKED_AT = 1 << 20  # characters of a .json file in which the key that tells it apart is looked for
_KEY = re.compile(rb'"traceEvents"\s*:')
_SUFFIXES = (".json", ".json.gz")
MEMORY, HELD_KEYS, HOST_TYPE = (
    "[memory]",
    ("Total Allocated", "Device Type", "Device Id"),
    0,
)  # c10::DeviceType::CPU
ALLOWED = "what torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote, .json or .json.gz"
Thread = tuple[str, str]  # process (of GPU events the device) and thread (the stream)


class ChromeEvent(NamedTuple):
    """Something with a duration: seconds from the file's time zero."""

    category: str
    name: str
    thread: Thread
    start_s: float
    end_s: float
    args: Mapping[str, Any]


class FlowStart(NamedTuple):
    """A place on a thread."""

    thread: Thread
    at_s: float


class MemoryPoint(NamedTuple):
    """Bytes that are allocated on a device (`is_host`: in the memory of the host) from a moment on."""

    at_s: float
    is_host: bool
    device: int
    num_bytes: float


@dataclass(frozen=True, eq=False)
class ChromeFile:
    """What a file says. `base_s` is its time zero since 1970; `forwards` are starts of operators that backward will visit;
    `memory` is by time.

    `rank` and `num_ranks` are None where it does not say them.
    """

    path: Path
    rank: int | None
    num_ranks: int | None
    base_s: float
    events: Sequence[ChromeEvent]
    forwards: Sequence[FlowStart]
    memory: Sequence[MemoryPoint] = ()


def is_profile(path: Path) -> bool:
    """Is a file one of torch.profiler, by its name and its first megabyte? A packed one is by its name."""
    if path.name.endswith(".json.gz"):
        return True
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return _KEY.search(file.read(LOOKED_AT)) is not None


def profile_files(given: Iterable[Path]) -> list[Path]:
    """Files, and of folders those that are .json or .json.gz in them, by name. Raises SpecError where there is none."""
    found: list[Path] = []
    for path in given:
        inside = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES)) if path.is_dir() else [path]
        if not inside:
            raise SpecError(f"{path} has no trace in it", allowed=ALLOWED)
        found += inside
    if not found:
        raise SpecError("no trace was given", allowed=ALLOWED)
    return found


def read_chrome(path: Path) -> ChromeFile:
    """Read and check one file.

    Raises SpecError, with the file and the event, for what is no such trace: damaged, too large, nested too deeply, without
    events, with a field that is missing, of another type, or a time that nothing takes.
    """
    data = _object_in(path)
    rows = data.get("traceEvents")
    if not isinstance(rows, list):
        raise SpecError(f"{path} has no list traceEvents", allowed=ALLOWED)
    events, forwards, memory = [], [], []
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _wrong(path, number, "it is no object")
        if row.get("ph") == "X" and isinstance(row.get("cat"), str):
            events.append(_event(path, number, row))
        elif row.get("ph") == "s" and row.get("cat") == "fwdbwd":
            forwards.append(FlowStart(_thread(row), _number(path, number, row, "ts") * 1e-6))
        elif row.get("ph") == "i" and row.get("name") == MEMORY:
            memory.append(_held(path, number, row))
    rank, num_ranks = _ranks(path, data.get("distributedInfo"))
    base = data.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int | float) or isinstance(base, bool) or not 0 <= base <= MOST_US * 1e3:
        raise SpecError(f"{path} has baseTimeNanoseconds {base!r:.60}", allowed="nanoseconds since 1970")
    memory.sort(key=lambda point: point.at_s)
    return ChromeFile(path, rank, num_ranks, base * 1e-9, events, forwards, memory)


def _object_in(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or f"it is damaged ({error})"
        raise SpecError(f"{path} cannot be read: {said}", allowed=ALLOWED) from None
    check_most(f"bytes of {path}, unpacked", len(text), MOST_BYTES)
    try:
        data = json_of(text)
    except ValueError as error:
        raise SpecError(f"{path} is no JSON: {error}", allowed=ALLOWED) from None
    if not isinstance(data, dict):
        raise SpecError(f"{path} has no object with traceEvents", allowed=ALLOWED)
    return data


def _event(path: Path, number: int, row: dict[str, Any]) -> ChromeEvent:
    name, args = row.get("name"), row.get("args", {})
    if not isinstance(name, str):
        raise _wrong(path, number, f"its name is {name!r:.60}")
    if not isinstance(args, dict):
        raise _wrong(path, number, f"its args are {args!r:.60}")
    start, length = (_number(path, number, row, key) * 1e-6 for key in ("ts", "dur"))
    return ChromeEvent(row["cat"].lower(), name, _thread(row), start, start + length, args)


def _held(path: Path, number: int, row: dict[str, Any]) -> MemoryPoint:
    """What is allocated behind an allocation, or where something was given back."""
    args = row.get("args")
    told: list[Any] = [args.get(key) if isinstance(args, dict) else None for key in HELD_KEYS]
    held, kind, device = told
    is_number = isinstance(held, int | float) and not isinstance(held, bool)
    if not is_number or not 0 <= held <= MOST_HELD or type(kind) is not int or type(device) is not int:
        raise _wrong(path, number, f"of {MEMORY} it says {args!r:.120}")
    return MemoryPoint(_number(path, number, row, "ts") * 1e-6, kind == HOST_TYPE, device, float(held))


def _number(path: Path, number: int, row: dict[str, Any], key: str) -> float:
    """Microseconds of an event."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(path, number, f"its {key} is {value!r:.60}")
    if not 0 <= value <= MOST_US:
        raise _wrong(path, number, f"its {key} is {value:g} us")
    return float(value)


def _thread(row: dict[str, Any]) -> Thread:
    return str(row.get("pid")), str(row.get("tid"))


def _ranks(path: Path, info: Any) -> tuple[int | None, int | None]:
    """Rank and number of ranks."""
    if not isinstance(info, dict):
        return None, None
    rank, num_ranks = info.get("rank"), info.get("world_size")
    for what, value in (("rank", rank), ("world_size", num_ranks)):
        if value is not None and (type(value) is not int or not 0 <= value <= MOST_RANKS):
            raise SpecError(
                f"{path}: distributedInfo has {what} {value!r:.60}", allowed=f"up to {MOST_RANKS}"
            )
    return rank, num_ranks


def _wrong(path: Path, number: int, what: str) -> SpecError:
    return SpecError(
        f"{path}, event {number} of traceEvents: {what}",
        allowed="a name, ts and dur in microseconds, not negative, and args as an object",
        next="write the trace again; a profiler that was stopped half-way leaves half a file",
    )
