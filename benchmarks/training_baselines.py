"""Two baselines for predicted training steps: a table of median utilisation, and a closed form with ten constants.

Both read the columns of the calibration tables and nothing of our cost model, so that our model has something to beat.
`training_fidelity.py` puts them beside it. They learn from the rows that they are given and from nothing else.

    model = fit_closed_form(rows, closed_form_facts(rows))   # or fit_utilisation(rows)
    seconds = model.seconds(closed_form_facts(others))
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.evidence.training_error import MeasuredStep

Facts = Mapping[str, NDArray[np.float64]]
Row = Mapping[str, str]
GB = 1e9
# Dense peak in bf16 (FLOP/s) and memory bandwidth (bytes/s), from the makers' data sheets; fp8 has twice that peak.
PEAK_FLOPS_PER_S: Mapping[str, float] = {
    "A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "GB200": 2450e12, "B300": 2250e12, "GB300": 2500e12,
}  # fmt: skip
MEMORY_BYTES_PER_S: Mapping[str, float] = {
    "A100": 2.04e12, "A100-40GB-SXM": 1.56e12, "H100": 3.35e12, "H100-96GB-HBM2e": 2.4e12, "H200": 4.8e12,
    "B200": 7.7e12, "GB200": 8.0e12, "B300": 8.0e12, "GB300": 8.0e12,
}  # fmt: skip
# Table 1 of arXiv 2104.04473 and its scripts: the smallest layers x hidden^2 x 12 above, its micro-batch and chunks.
SC21 = ((2e9, 16, 1), (8e9, 16, 1), (40e9, 4, 1), (100e9, 2, 2), (150e9, 2, 2), (350e9, 2, 2), (540e9, 1, 3))
BEFORE_FLASH = ("megatron_sc21", "megatron_selective")  # papers of 2021 and 2022: scores go to memory and back


def chip_of(row: Row) -> str:
    """The family of the GPU: "A100" of "A100-80GB-SXM"."""
    return row["gpu"].split("-")[0]


def is_float8(row: Row) -> bool:
    """Do the linear layers compute in fp8 (any recipe)?"""
    return any(word in row["precision"].lower() for word in ("fp8", "float8"))


def number(row: Row, column: str, default: float) -> float:
    """A column, or the default where it is empty."""
    return float(row.get(column) or default)


def model_flops(row: Row) -> float:
    """FLOPs of one optimizer step: forward and backward, causal attention, nothing computed twice."""
    tokens = number(row, "global_batch_seqs", 0) * number(row, "seq", 0)
    linear, attention, head = _flops_per_token(row)
    return 3.0 * tokens * (number(row, "layers", 0) * (linear + attention) + head)


def _flops_per_token(row: Row) -> tuple[float, float, float]:
    """Forward FLOPs of a token: linear layers of a block, causal attention of a block, output head."""
    hidden, heads, head_dim = (number(row, column, 0) for column in ("hidden", "heads", "head_dim"))
    wide = heads * head_dim
    projections = hidden * (2 * wide + 2 * number(row, "kv_heads", heads) * head_dim)
    span = number(row, "seq", 0) / 2
    if "sliding" in row["attention"]:
        span = (span + 128) / 2  # every second layer looks back 128 tokens
    return (
        2 * (projections + hidden * _mlp_width(row) * _num_mlp_matrices(row)),
        4 * span * wide,
        2 * hidden * number(row, "vocab", 0),
    )


def _num_mlp_matrices(row: Row) -> int:
    return 3 if number(row, "gated_mlp", 0) else 2


def _mlp_width(row: Row) -> float:
    """Hidden units of the feed-forward layer that a token goes through."""
    if number(row, "n_experts", 0):
        return number(row, "topk", 1) * number(row, "moe_ffn", 0) + number(row, "shared_ffn", 0)
    return number(row, "ffn", 0)


@dataclass(frozen=True)
class MedianUtilisation:
    """Baseline 1: model FLOPs over peak FLOPs, the median of each chip and precision in the rows it learned from."""

    by_chip: Mapping[tuple[str, bool], float]
    by_precision: Mapping[bool, float]
    overall: float

    def seconds(self, row: Row) -> float:
        """Seconds of a step; a chip it has not seen gets the median over all chips in that precision, else of all."""
        float8 = is_float8(row)
        fallback = self.by_precision.get(float8, self.overall)
        return ideal_s(row) / self.by_chip.get((chip_of(row), float8), fallback)


def ideal_s(row: Row) -> float:
    """Seconds of a step at peak; of rows in fp8 it is the peak of fp8."""
    peak = PEAK_FLOPS_PER_S[chip_of(row)] * (2 if is_float8(row) else 1)
    return model_flops(row) / (number(row, "gpus", 1) * peak)


def fit_utilisation(rows: Sequence[MeasuredStep]) -> MedianUtilisation:
    """Baseline 1 of these rows."""
    chips: dict[tuple[str, bool], list[float]] = defaultdict(list)
    precisions: dict[bool, list[float]] = defaultdict(list)
    for row in rows:
        found = ideal_s(row.values) / row.measured_s
        chips[chip_of(row.values), is_float8(row.values)].append(found)
        precisions[is_float8(row.values)].append(found)
    return MedianUtilisation(
        {key: statistics.median(found) for key, found in chips.items()},
        {key: statistics.median(found) for key, found in precisions.items()},
        statistics.median([one for found in precisions.values() for one in found]),
    )


# --- Baseline 2: a closed form with ten constants ---------------------------------------------------------------------
# name -> (start, least, most). Shares are of data sheet figures.
CONSTANTS: Mapping[str, tuple[float, float, float]] = {
    "matmul_a100": (0.70, 0.3, 1.0),  # share of peak that linear layers reach
    "matmul_hopper": (0.60, 0.3, 1.0),
    "matmul_blackwell": (0.60, 0.3, 1.0),
    "attention_a100": (0.50, 0.1, 1.0),  # share of peak that causal attention reaches
    "attention_newer": (0.35, 0.1, 1.0),
    "float8_gain": (1.5, 1.0, 2.0),  # speed of linear layers in fp8 over bf16
    "memory_passes": (1.0, 0.3, 4.0),  # bytes of elementwise work over the bytes that are counted below
    "network": (0.6, 0.1, 1.0),  # share of link bandwidth that collectives reach
    "crowding": (0.01, 0.0, 0.1),  # 1 / ranks at which a ring is half as fast
    "expert_floor_s": (1e-3, 0.0, 1e-2),  # host time of one expert layer and micro-batch, forward and backward
}
EXPOSED = 0.3  # share of data-parallel traffic that is not hidden even where there is room


def closed_form_facts(rows: Sequence[MeasuredStep]) -> Facts:
    """One array per fact, one value per row."""
    facts = [_facts(row.values) for row in rows]
    return {name: np.array([one[name] for one in facts]) for name in facts[0]} if facts else {}


def _microbatches(row: Row) -> tuple[float, float, float]:
    """Sequences of a micro-batch, micro-batches of a rank and chunks of a stage; the papers' where columns are empty."""
    size, chunks = number(row, "micro_batch_seqs", 0), number(row, "vpp", 0)
    layers, stages = number(row, "layers", 1), number(row, "pp", 1)
    if row["row_id"].startswith("megatron_sc21"):
        parameters = 12 * layers * number(row, "hidden", 0) ** 2
        _, size, chunks = next((one for one in SC21 if parameters <= one[0]), (0, 1, 1))
    elif not chunks:
        chunks = layers / stages if stages > 1 else 1  # the largest that divides
    size = size or 4
    return size, max(1.0, number(row, "global_batch_seqs", 1) / number(row, "dp", 1) / size), chunks


def _ring(row: Row, ranks: float, inside: float) -> tuple[float, float]:
    """Seconds per byte of a ring through `ranks` GPUs, `inside` of them of a node; and its ranks (1 inside a node)."""
    intra, inter = number(row, "intra_GBps", 300) * GB, number(row, "inter_GBps", 25) * GB
    if ranks <= 1:
        return 0.0, 1.0
    if ranks <= inside:
        return (ranks - 1) / ranks / intra, 1.0
    return (ranks - 1) / ranks / min(intra, inter * inside), ranks


def _facts(row: Row) -> dict[str, float]:
    tp, pp, cp, dp, ep = (number(row, column, 1) for column in ("tp", "pp", "cp", "dp", "ep"))
    node, layers, hidden = (number(row, column, 1) for column in ("gpus_per_node", "layers", "hidden"))
    size, num_microbatches, chunks = _microbatches(row)
    chip, tokens = chip_of(row), size * number(row, "seq", 0) / cp
    linear, attention, head = (tokens * flops / tp for flops in _flops_per_token(row))
    sequence_parallel = tp if number(row, "sp", 0) else 1.0
    width, vocabulary, is_moe = _mlp_width(row), number(row, "vocab", 0), bool(number(row, "n_experts", 0))
    elements = 22 * hidden / sequence_parallel + 5 * (_num_mlp_matrices(row) - 1) * width / tp
    elements += 8 * number(row, "heads", 1) * number(row, "head_dim", 1) / tp
    if is_moe:
        elements += 6 * number(row, "topk", 1) * hidden
    if row["row_id"].startswith(BEFORE_FLASH):
        elements += 12 * number(row, "heads", 1) * number(row, "seq", 0) / tp
    recompute = row["recompute"]
    expert_parameters = 0.0
    if is_moe:
        expert_parameters = number(row, "n_experts", 0) * number(row, "moe_ffn", 0) * 3 * hidden
    dense_parameters = linear * tp / tokens / 2 - (number(row, "topk", 0) * number(row, "moe_ffn", 0) * 3 * hidden)
    parameters = layers * (dense_parameters + expert_parameters / ep) / (tp * pp) + vocabulary * hidden / tp
    zero = number(row, "zero", 1 if dp > 1 else 0)
    group = 8.0 if "group size 8" in row["extras"] else dp * cp
    spread = max(1.0, node / (tp * pp if tp * pp < node else tp))
    ring_s, ranks = _ring(row, dp * cp, spread)
    if group < dp * cp:
        ranks = max(1.0, dp * cp / group)  # sharded inside a node, one ring per shard between nodes
    reduced = 2.0 if "PURE" in row["extras"] or row["row_id"].startswith("internevo") else 4.0
    rounds = num_microbatches if zero == 3 else 1.0
    tp_bytes = 8 * tokens * hidden * 2 if tp > 1 else 0.0
    expert_link = number(row, "inter_GBps", 25) if ep * tp > node else number(row, "intra_GBps", 300)
    method = row["extras"]
    shared_head = any(f"method={name}" in method for name in ("vocab-1", "vocab-2", "interlaced"))
    return {
        "peak": PEAK_FLOPS_PER_S[chip],
        "bandwidth": MEMORY_BYTES_PER_S.get(row["gpu"], MEMORY_BYTES_PER_S[chip]),
        "chip": float({"A100": 0, "H100": 1, "H200": 1}.get(chip, 2)),
        "float8": float(is_float8(row)),
        "linear": linear,
        "attention": attention,
        "head": head,
        "layer_bytes": 2 * tokens * elements,
        "loss_bytes": 16 * tokens * vocabulary / tp,
        "again_linear": {"full": 1.0, "selective op": 0.5}.get(recompute, 0.0)
        * (2 / 3 if zero == 3 else 1.0),
        "again_attention": float(recompute == "full" or "attention" in recompute),
        "layers": layers / pp,
        "stages": pp,
        "chunks": chunks,
        "microbatches": num_microbatches,
        "head_share": 1 / pp if shared_head else 1.0,
        "balanced": float("method=redis" in method),
        "tp_s": tp_bytes * _ring(row, tp, node)[0],
        "hidden_tp": float("overlap" in method),
        "gather_s": ring_s * parameters * 2 * (2 if zero == 3 else 1) * rounds * float(zero > 0),
        "reduce_s": ring_s * parameters * reduced * rounds * (1.0 if zero else 2.0),
        "ranks": ranks,
        "expert_s": 4 * tokens * number(row, "topk", 0) * hidden * 2 * (ep - 1) / ep / (expert_link * GB),
        "is_moe": float(is_moe),
        "optimizer_bytes": 30 * parameters / (group if zero else 1.0),
    }


@dataclass(frozen=True)
class ClosedForm:
    """Baseline 2 with its constants, by name as in CONSTANTS."""

    constants: Mapping[str, float]

    def seconds(self, facts: Facts) -> NDArray[np.float64]:
        """Seconds of a step of every row."""
        return _seconds(np.array([self.constants[name] for name in CONSTANTS]), facts)


def _seconds(values: NDArray[np.float64], facts: Facts) -> NDArray[np.float64]:
    c = dict(zip(CONSTANTS, values, strict=True))
    chip = facts["chip"].astype(int)
    bf16 = facts["peak"] * np.array([c["matmul_a100"], c["matmul_hopper"], c["matmul_blackwell"]])[chip]
    matmul = bf16 * np.where(facts["float8"] > 0, c["float8_gain"], 1.0)
    core = facts["peak"] * np.array([c["attention_a100"], c["attention_newer"], c["attention_newer"]])[chip]
    memory = facts["bandwidth"] / c["memory_passes"]
    linear_s, core_s, bytes_s = (
        facts["linear"] / matmul,
        facts["attention"] / core,
        facts["layer_bytes"] / memory,
    )
    layer = linear_s * (3 + facts["again_linear"]) + core_s * (3.5 + facts["again_attention"])
    layer += bytes_s * (1 + facts["again_linear"] / 3)
    layer += facts["tp_s"] / c["network"] * np.where(facts["hidden_tp"] > 0, EXPOSED, 1.0)
    layer += facts["is_moe"] * c["expert_floor_s"] + facts["expert_s"] / c["network"]
    head = (3 * facts["head"] / bf16 + facts["loss_bytes"] / memory) * facts["head_share"]
    stages, num = facts["stages"], facts["microbatches"]
    shared = np.where(facts["head_share"] < 1, head, 0.0)
    last = np.where(facts["head_share"] < 1, 0.0, head)
    total = stages * (facts["layers"] * layer + shared) + last
    slowest = facts["layers"] * layer + shared + last
    even = np.ceil((total - last) / stages / layer + np.minimum(last / layer, facts["layers"]) / stages) * layer
    slowest = np.where(facts["balanced"] > 0, np.maximum(np.maximum(even, last), total / stages), slowest)
    compute = num * slowest + (stages - 1) / facts["chunks"] * (total / stages)
    traffic = (facts["gather_s"] + facts["reduce_s"]) / c["network"] * (1 + facts["ranks"] * c["crowding"])
    exposed = EXPOSED * traffic + np.maximum(0.0, (1 - EXPOSED) * traffic - compute / num * 2 / 3)
    return np.asarray(compute + exposed + facts["optimizer_bytes"] / facts["bandwidth"])


def fit_closed_form(rows: Sequence[MeasuredStep], facts: Facts) -> ClosedForm:
    """Baseline 2 of these rows (`facts` of the same): least squares of log errors, every source with equal weight."""
    measured = np.log([row.measured_s for row in rows])
    sizes = Counter(row.source for row in rows)
    weights = np.sqrt([1 / sizes[row.source] for row in rows])
    start, least, most = np.array(list(CONSTANTS.values())).T

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights * (np.log(_seconds(values, facts)) - measured))

    found = least_squares(residuals, start, bounds=(least, most), x_scale=start, loss="soft_l1", f_scale=0.03)
    return ClosedForm(dict(zip(CONSTANTS, found.x.tolist(), strict=True)))


Fit = Callable[[Sequence[MeasuredStep]], Callable[[Sequence[MeasuredStep]], list[float]]]


def closed_form(rows: Sequence[MeasuredStep]) -> Callable[[Sequence[MeasuredStep]], list[float]]:
    """Baseline 2 learned from these rows: a function from rows to seconds."""
    model = fit_closed_form(rows, closed_form_facts(rows))
    return lambda others: [float(second) for second in model.seconds(closed_form_facts(others))]


def median_utilisation(rows: Sequence[MeasuredStep]) -> Callable[[Sequence[MeasuredStep]], list[float]]:
    """Baseline 1 learned from these rows: a function from rows to seconds."""
    model = fit_utilisation(rows)
    return lambda others: [model.seconds(row.values) for row in others]
