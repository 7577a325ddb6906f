"""Rows of made-up training runs for the tests of scores."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.evidence.tables.score import RowPrediction


@dataclass(frozen=True)
class SampleRow:
    """A measured step with only what scoring reads."""

    row_id: str
    measured_s: float = 1.0
    is_core: bool = True
    is_moe: bool = False
    is_float8: bool = False
    sequence_length: int = 4096
    group: str = ""
    peak_bytes: float | None = None
    release: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.row_id.rpartition("-")[0]

    @property
    def config_key(self) -> tuple[str, str]:
        return self.source, self.group or self.row_id

    def text(self, column: str) -> str:
        """What stands in a column."""
        return self.values.get(column, "")


def predicted(row: SampleRow, error: float, half_width: float | None = None, **fields: Any) -> RowPrediction:
    """A prediction that is off by `error`, with an interval of a relative half width."""
    value = row.measured_s * (1.0 + error)
    if half_width is not None:
        fields |= {"low_s": value * (1 - half_width), "high_s": value * (1 + half_width)}
    return RowPrediction(row.row_id, row.measured_s, predicted_s=value, basis="interpolated", **fields)


def skipped(row: SampleRow, why: str = "no such chip") -> RowPrediction:
    """A row that was not predicted."""
    return RowPrediction(row.row_id, row.measured_s, skipped=why)


SHAPE = {
    "model": "made up", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336,
    "gated_mlp": 1, "vocab": 128256, "tied_emb": 0, "seq": 8192,
}  # fmt: skip
MACHINE = {"gpus": 8, "gpu": "H100-80GB-SXM", "gpus_per_node": 8, "intra_GBps": 450, "inter_GBps": 50}
LAYOUT = {
    "global_batch_seqs": 16, "micro_batch_seqs": 1, "num_microbatches": 2, "tp": 1, "sp": 0, "pp": 1, "dp": 8, "cp": 1,
    "ep": 1, "vpp": 1, "zero": 3, "recompute": "full", "precision": "bf16", "schedule": "fsdp2", "extras": "eager",
}  # fmt: skip
EMPTY = (
    "n_experts topk moe_ffn shared_ffn dense_layers attention params_total measured_value unit tokens_per_s_per_gpu "
    "model_tflops_per_gpu peak_mem_gib inferred source_repo source_commit source_path note"
).split()


def table_row(row_id: str, step_time_s: float, **fields: Any) -> dict[str, Any]:
    """A row of the calibration schema: 8 billion parameters, fully sharded over one node."""
    told = {"row_id": row_id, "split": "calibration", "core": 1, "config_group": f"group of {row_id}"}
    return {
        **told,
        **SHAPE,
        **MACHINE,
        **LAYOUT,
        **dict.fromkeys(EMPTY, ""),
        "step_time_s": step_time_s,
        **fields,
    }


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
