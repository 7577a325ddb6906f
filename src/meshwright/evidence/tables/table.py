"""Reads tables of measured training runs (CSV, the calibration schema) into rows with checked numbers.

Columns that are read; all others are ignored:

    row_id                   name of the row; what stands before its last "-" is the source
    core                     1: specified well enough to be scored (without the column every row is)
    config_group             rows of one source with equal text here are one configuration (empty: the row alone)
    model                    name of the model
    layers, hidden, heads    blocks, width, query heads
    kv_heads, head_dim, ffn  key-value heads, width of a head, width of the MLP (may be empty)
    gated_mlp, tied_emb      1: a gated MLP of three matrices; 1: the embedding is the head, too (may be empty)
    vocab                    tokens of the vocabulary
    n_experts, topk, moe_ffn, shared_ffn, dense_layers
                             experts, experts a token, width of one, of the shared ones together, dense blocks in front
    attention                words, such as "gqa+sliding128 alternating" or "mla" (empty: all see everything)
    seq                      tokens of a sequence
    global_batch_seqs        sequences of a step
    micro_batch_seqs, num_microbatches
                             sequences of a microbatch, microbatches of one pipeline (may be empty)
    gpus, gpu                devices, and their kind
    gpus_per_node            devices of one NVLink domain
    intra_GBps, inter_GBps   bandwidth inside and between domains, a device and direction, 1e9 bytes/s
    tp, sp, pp, dp, cp, ep, vpp
                             degrees; sp 1: sequence parallelism along tp; vpp: chunks of layers a device
    zero                     0 to 3: what data parallelism shards (3: parameters, too)
    recompute, precision, schedule, extras
                             words
    step_time_s              measured seconds of a step
    tokens_per_s_per_gpu     the other way to give it
    measured_value, unit     as published; read where both of the former are empty
    peak_mem_gib             measured peak of the fullest device, GiB (may be empty)
    source_repo              repository that published the row
    note                     words; a container's release stands here
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.specs.bound.bound import (
    MOST_DEVICES,
    MOST_LAYERS,
    MOST_MICROBATCHES,
    MOST_SIZE,
    MOST_TOKENS,
    check_most,
)
from meshwright.specs.error import SpecError, UnknownNameError

GIB = 2.0**30
MS = 1e-3
# Columns without which nothing can be planned.
NEEDED = (
    *("row_id", "layers", "hidden", "heads", "vocab", "seq", "global_batch_seqs", "gpus", "gpu"),
    *("tp", "pp", "cp", "precision"),
)
TIMES = ("step_time_s", "tokens_per_s_per_gpu")  # one of these
COUNTS = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated_mlp", "vocab", "tied_emb", "n_experts"),
    *("topk", "moe_ffn", "shared_ffn", "dense_layers", "seq", "global_batch_seqs", "micro_batch_seqs"),
    *("num_microbatches", "gpus", "gpus_per_node", "tp", "sp", "pp", "dp", "cp", "ep", "vpp", "zero", "core"),
)  # fmt: skip
NUMBERS = ("intra_GBps", "inter_GBps", "peak_mem_gib", *TIMES)
FILLED = ("layers", "hidden", "heads", "vocab", "seq", "global_batch_seqs", "gpus")  # never empty, from 1
STAGE_TIMES = "fwd_us_per_stage"  # the column that tells a table of single stages
MOST_OF = {
    "layers": MOST_LAYERS,
    "gpus": MOST_DEVICES,
    "global_batch_seqs": MOST_MICROBATCHES,
    "seq": MOST_TOKENS,
}
# Columns of the schema that nothing is planned by, and what tells where a row is from.
NOTED = (
    *("split", "config_group", "model", "attention", "params_total", "schedule", "extras", "recompute", "measured_value"),
    *("unit", "model_tflops_per_gpu", "inferred", "source_repo", "source_commit", "source_path", "note"),
)  # fmt: skip
FLOAT8_WORD = re.compile(r"fp8|float8", re.IGNORECASE)
RELEASE = re.compile(r"\b(\d{2}\.\d{2}(?:\.\d+)?)\b")  # of a container: year, month, patch


@dataclass(frozen=True)
class TrainingRow:
    """One measured training step.

    Attributes:
        row_id: its name. source: what stands before the last "-" of it.
        is_core: score it first. is_moe: the model has experts. is_float8: products in float8.
        sequence_length: tokens of a sequence.
        config_key: source and group; rows of one key are one configuration, measured with several releases.
        measured_s: seconds of a step. peak_bytes: of the fullest device; None where it is not reported.
        release: of the software, such as "26.06.01"; empty where the row does not say.
        values: all columns as they stand in the file.
        where: file and line, for messages.
    """

    row_id: str
    source: str
    is_core: bool
    is_moe: bool
    is_float8: bool
    sequence_length: int
    config_key: tuple[str, str]
    measured_s: float
    peak_bytes: float | None
    release: str
    values: Mapping[str, str] = field(hash=False)
    where: str = ""

    def text(self, column: str) -> str:
        """What stands in a column, without spaces around it; empty where there is none."""
        return self.values.get(column, "").strip()

    def count(self, column: str, default: int = 0) -> int:
        """A whole number of a column; `default` where it is empty. Raises SpecError."""
        return whole(self.where, column, self.text(column), default)

    def number(self, column: str, default: float = 0.0) -> float:
        """A number of a column; `default` where it is empty. Raises SpecError."""
        return finite(self.where, column, self.text(column), default)


@dataclass(frozen=True)
class UnreadRow:
    """A row that says too little or nothing that can be: its name as far as it has one, and `why`, with file and line."""

    row_id: str
    source: str
    why: str


def remarks_of(row: TrainingRow) -> str:
    """What stands in a row's columns for people."""
    return " ".join(row.text(column) for column in ("note", "inferred", "extras"))


def read_training_table(path: str | Path) -> tuple[TrainingRow, ...]:
    """All rows of a table. Raises SpecError naming the missing column, or the line and column of a bad number."""
    found = read_lines(path)
    for row in found:
        if isinstance(row, UnreadRow):
            raise SpecError(row.why)
    return tuple(row for row in found if isinstance(row, TrainingRow))


def read_lines(path: str | Path) -> list[TrainingRow | UnreadRow]:
    """What stands on each line of a table; a bad line leaves the others as they are. Raises SpecError where it is no table
    of measured runs."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            check_columns(path, tuple(reader.fieldnames or ()))
            return [_line(values, f"{path}, line {reader.line_num}", path.stem) for values in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            f"table {path} cannot be read: {why}", allowed="a CSV file of measured training runs"
        ) from error


def check_columns(path: Path, columns: tuple[str, ...]) -> None:
    """Raises SpecError naming the first column that is missing."""
    if STAGE_TIMES in columns:
        raise SpecError(
            f"table {path} has times of single stages (column {STAGE_TIMES}), not of training steps",
            allowed="a table with one measured run a row",
            next="leave this file out",
        )
    missing = [column for column in NEEDED if column not in columns]
    if not missing and not set(TIMES) & set(columns):
        missing = [TIMES[0]]
    if missing:
        raise SpecError(
            f"table {path} has no column {missing[0]!r}",
            allowed=f"columns {', '.join(NEEDED)}, and {' or '.join(TIMES)}",
        )


def check_known_columns(path: Path) -> None:
    """Raises UnknownNameError for a column that the schema lacks: one that is mistyped would be left out without a word."""
    known = {*NEEDED, *COUNTS, *NUMBERS, *NOTED}
    for column in columns_of(path):
        if column not in known:
            raise UnknownNameError(f"column of table {path.name}", column, known)


def columns_of(path: Path) -> list[str]:
    """The head of a table. Raises SpecError where the file cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return next(csv.reader(stream), [])
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SpecError(
            f"table {path} cannot be read: {why}", allowed="a CSV file of measured training runs"
        ) from error


def _line(values: Mapping[str, str | None], where: str, name: str) -> TrainingRow | UnreadRow:
    try:
        return training_row(values, where, name)
    except SpecError as error:
        row_id = (values.get("row_id") or "").strip()
        return UnreadRow(row_id, row_id.rpartition("-")[0] or name, " ".join(str(error).split()))


def training_row(values: Mapping[str, str | None], where: str, name: str) -> TrainingRow:
    """A row by its columns; `name` is that of the table, the source where `row_id` has none. Raises SpecError."""
    if None in values:
        raise SpecError(f"{where}: more values than columns", allowed="one value a column")
    texts = {column: (value or "").strip() for column, value in values.items()}
    counts = {column: whole(where, column, texts.get(column, "")) for column in COUNTS}
    numbers = {column: finite(where, column, texts.get(column, "")) for column in NUMBERS}
    empty = next((column for column in FILLED if counts[column] < 1), None)
    if empty is not None or not texts["row_id"]:
        column = empty or "row_id"
        raise SpecError(
            f"{where}: {column} is {texts[column]!r}",
            allowed="a name" if empty is None else "a whole number from 1",
        )
    row_id = texts["row_id"]
    source = row_id.rpartition("-")[0] or name
    peak = numbers["peak_mem_gib"]
    return TrainingRow(
        row_id=row_id,
        source=source,
        is_core=counts["core"] == 1 if "core" in texts else True,
        is_moe=counts["n_experts"] > 0,
        is_float8=FLOAT8_WORD.search(texts["precision"]) is not None,
        sequence_length=counts["seq"],
        config_key=(source, texts.get("config_group") or row_id),
        measured_s=_measured_s(where, texts, counts, numbers),
        peak_bytes=peak * GIB if peak > 0 else None,
        release=_release(texts.get("note", "")),
        values=texts,
        where=where,
    )


def finite(where: str, column: str, text: str, default: float = 0.0) -> float:
    """A number that is not negative; `default` for empty text. Raises SpecError naming line and column."""
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise SpecError(f"{where}: {column} is {text!r}", allowed="a number from 0, or nothing")
    return value


def whole(where: str, column: str, text: str, default: int = 0) -> int:
    """A whole number ("4" or "4.0"); `default` for empty text. Raises SpecError naming line and column."""
    value = finite(where, column, text, default)
    if value != int(value):
        raise SpecError(f"{where}: {column} is {text!r}", allowed="a whole number from 0, or nothing")
    check_most(f"{where}: {column}", int(value), MOST_OF.get(column, MOST_SIZE))
    return int(value)


def _release(note: str) -> str:
    found = RELEASE.search(note) if "container" in note.lower() else None
    return found[1] if found else ""


# Beginning of a published unit -> seconds of a step, from the value, the tokens of a step, its sequences and the devices.
UNITS: Mapping[str, Callable[[float, int, int, int], float]] = {
    "s/": lambda value, tokens, sequences, gpus: value,
    "ms/": lambda value, tokens, sequences, gpus: value * MS,
    "tokens/s/gpu": lambda value, tokens, sequences, gpus: tokens / (value * gpus),
    "sequences/s": lambda value, tokens, sequences, gpus: sequences / value,
}


def _measured_s(
    where: str, texts: Mapping[str, str], counts: Mapping[str, int], numbers: Mapping[str, float]
) -> float:
    """Seconds of a step: as given, else from tokens per second, else from what was published."""
    if numbers["step_time_s"] > 0:
        return numbers["step_time_s"]
    sequences, gpus = counts["global_batch_seqs"], counts["gpus"]
    tokens = counts["seq"] * sequences
    if numbers["tokens_per_s_per_gpu"] > 0:
        return tokens / (numbers["tokens_per_s_per_gpu"] * gpus)
    unit = texts.get("unit", "").lower()
    value = finite(where, "measured_value", texts.get("measured_value", ""))
    convert = next((convert for start, convert in UNITS.items() if unit.startswith(start)), None)
    if convert is None or value <= 0:
        raise SpecError(
            f"{where}: {' and '.join(TIMES)} are empty, measured_value is {value:g} {unit}",
            allowed=f"one of the two, or a measured_value in {', '.join(UNITS)}",
        )
    return convert(value, tokens, sequences, gpus)
