"""Rows of tables of measured serving as loads on a replica; what no load describes is left out with the reason.

Offline rows are requests of fixed lengths that all come at the beginning (or, static, one batch of them); closed-loop rows
are clients who send their next request when their last has ended. In both the scheduler's decisions do not depend on how
long steps take.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.serving.request.request import Request

DEVICES: Mapping[str, str] = {
    "H100-80GB-SXM": "H100", "H200-141GB-SXM": "H200", "A100-80GB-SXM": "A100-80", "B200-SXM": "B200",
    "L40S-48GB-PCIe": "L40S",
}  # fmt: skip
MODELS: Mapping[str, str] = {
    "llama3-70b": "llama-3.1-70b", "llama3.1-70b": "llama-3.1-70b", "llama3.3-70b": "llama-3.1-70b",
    "llama3.1-8b": "llama-3.1-8b", "llama-7b": "llama-2-7b", "llama2-70b": "llama-2-70b",
    "mixtral-8x7b": "mixtral-8x7b", "qwen3-32b": "qwen3-32b",
}  # fmt: skip
FORMATS: Mapping[str, str] = {"8": "float8", "16": "bfloat16"}
THROUGHPUT, TPOT = "offline throughput", "TPOT"
# What the pages do not say: sequences and tokens of a step that TensorRT-LLM's bench takes where nobody tunes it, and for
# the other engines a step that holds all clients.
MOST_SEQUENCES, MOST_TOKENS = 2048, 8192
ROUNDS = 5  # requests of each client: the first and the last one overlap with fewer others


@dataclass(frozen=True)
class ServedRow:
    """One row: `kind` of figure, and seconds: of the whole load, or of a token; `used_share` of the memory that engines of
    its kind take."""

    row_id: str
    source: str
    campaign: str
    kind: str
    measured_s: float
    model: str
    device: str
    tp: int
    dtype: str
    cache_dtype: str
    prompt: int
    output: int
    num_requests: int
    num_clients: int  # 0: all come at the beginning
    most_sequences: int
    used_share: float

    def requests(self) -> list[Request]:
        """The load, anew."""
        lengths = self.prompt, self.output
        return [Request(str(i), *lengths, num_output_tokens=self.output) for i in range(self.num_requests)]


def read(paths: Sequence[Path]) -> tuple[list[ServedRow], dict[str, int]]:
    """Rows of tables, and how many were left out for which reason."""
    found: list[ServedRow] = []
    reasons: dict[str, int] = {}
    for path in paths:
        with path.open(encoding="utf-8", newline="") as lines:
            for values in csv.DictReader(lines):
                reason = why_not(values)
                if reason:
                    reasons[f"{path.stem}: {reason}"] = reasons.get(f"{path.stem}: {reason}", 0) + 1
                else:
                    found.append(row_of(values, path.stem))
    return found, reasons


def why_not(values: Mapping[str, str]) -> str:
    """Why a row is no load of ours; empty where it is one."""
    model, kind = values["model"], values["mode"]
    ways = {
        "not of the core": values["core"] != "1",
        "prompts and outputs on other replicas, at a rate that is not told": kind.startswith("disagg"),
        "a replay of requests, whose own log is fitted by fit_serving": kind.startswith("online"),
        "the time to a first token alone": kind.startswith("first-token"),
        f"no preset of {model}": model not in MODELS and model not in ("gpt-oss-120b", "deepseek-v3"),
        "no number format is told": not values["weight_bits"],
        "weights of four bits": values["weight_bits"] == "4",
        f"{model}: its mesh of attention and experts is not told whole": model not in MODELS,
        "columns of its mesh contradict each other": values["ep"] == "0" or values["dp_attention"] not in ("", "1"),
        f"no preset of {values['gpu']}": values["gpu"] not in DEVICES,
    }  # fmt: skip
    return next((reason for reason, is_so in ways.items() if is_so), "")


def row_of(values: Mapping[str, str], source: str) -> ServedRow:
    """One row that is a load."""
    is_closed = values["mode"].startswith("aggregated")
    is_static = values["mode"].startswith("static")
    clients = int(values["max_concurrency"] or values["batch_size"]) if is_closed else 0
    batch = int(values["batch_size"] or 0)
    output = int(values["osl"])
    number = ROUNDS * clients if is_closed else batch if is_static else int(values["num_requests"])
    whole_s = 0.0 if is_closed else number * output / float(values["out_tokens_per_s"])
    return ServedRow(
        row_id=values["row_id"], source=source,
        campaign=" ".join((source, values["engine"], values["model"], values["gpu"])),
        kind=TPOT if is_closed else THROUGHPUT,
        measured_s=1e-3 * float(values["tpot_ms_mean"]) if is_closed else whole_s,
        model=MODELS[values["model"]], device=DEVICES[values["gpu"]], tp=int(values["tp"]),
        dtype=FORMATS[values["weight_bits"]], cache_dtype=FORMATS[values["kv_bits"]],
        prompt=int(values["isl"]), output=output, num_requests=number, num_clients=clients,
        most_sequences=clients if is_closed else batch if is_static else MOST_SEQUENCES,
        used_share=0.9 if is_closed else 0.95,
    )  # fmt: skip
