"""Two baselines for predicted training steps: a table of median utilisation, and a closed form with ten constants.

Both read the columns of the calibration tables and nothing of our cost model, so that our model has something to beat.
`training_fidelity.py` puts them beside it. They learn from the rows that they are given and from nothing else.

    predict = closed_form(rows)  # or median_utilisation(rows)
    seconds = predict(others)
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.evidence.tables.table import TrainingRow

Values = NDArray[np.float64]
Facts = Mapping[str, Values]
Row = Mapping[str, str]
Predictor = Callable[[Sequence[TrainingRow]], list[float]]
GB = 1e9
ROBUST = 0.03  # errors above it count linearly in the fit, not squared
MOST_KEPT = 12  # layers that the last stage may keep where layers were moved off it
# Dense peak in bf16 (FLOP/s) and memory bandwidth (bytes/s), from the makers' data sheets; fp8 has twice that peak.
PEAK_FLOPS_PER_S: Mapping[str, float] = {
    "A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "GB200": 2450e12, "B300": 2250e12, "GB300": 2500e12,
}  # fmt: skip
MEMORY_BYTES_PER_S: Mapping[str, float] = {
    "A100": 2.04e12, "A100-40GB-SXM": 1.56e12, "H100": 3.35e12, "H100-96GB-HBM2e": 2.4e12, "H200": 4.8e12,
    "B200": 7.7e12, "GB200": 8.0e12, "B300": 8.0e12, "GB300": 8.0e12,
}  # fmt: skip


def chip_of(row: Row) -> str:
    """The family of the GPU: "A100" of "A100-80GB-SXM"."""
    return row["gpu"].split("-")[0]


def is_float8(row: Row) -> bool:
    """Do the linear layers compute in fp8 (any recipe)?"""
    return any(word in row["precision"].lower() for word in ("fp8", "float8"))


def is_moe(row: Row) -> bool:
    """Has the model experts?"""
    return number(row, "n_experts", 0) > 0


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
    if is_moe(row):
        return number(row, "topk", 1) * number(row, "moe_ffn", 0) + number(row, "shared_ffn", 0)
    return number(row, "ffn", 0)


@dataclass(frozen=True)
class MedianUtilisation:
    """Baseline 1: model FLOPs over peak FLOPs, the median of each chip and precision in the rows it learned from.

    Models with experts have a table of their own: of one table, their low utilisation would spoil the dense rows.
    """

    by_chip: Mapping[tuple[bool, bool, str], float]
    by_precision: Mapping[tuple[bool, bool], float]
    by_kind: Mapping[bool, float]
    overall: float

    def seconds(self, row: Row) -> float:
        """Seconds of a step; a chip it has not seen gets the median over all chips in that precision, else of all."""
        kind = is_moe(row), is_float8(row)
        fallback = self.by_precision.get(kind, self.by_kind.get(kind[0], self.overall))
        return ideal_s(row) / self.by_chip.get((*kind, chip_of(row)), fallback)


def ideal_s(row: Row) -> float:
    """Seconds of a step at peak; of rows in fp8 it is the peak of fp8."""
    peak = PEAK_FLOPS_PER_S[chip_of(row)] * (2 if is_float8(row) else 1)
    return model_flops(row) / (number(row, "gpus", 1) * peak)


def fit_utilisation(rows: Sequence[TrainingRow]) -> MedianUtilisation:
    """Baseline 1 of these rows."""
    found = [(row.values, ideal_s(row.values) / row.measured_s) for row in rows]
    return MedianUtilisation(
        _medians((is_moe(row), is_float8(row), chip_of(row), share) for row, share in found),
        _medians((is_moe(row), is_float8(row), share) for row, share in found),
        {key[0]: share for key, share in _medians((is_moe(row), share) for row, share in found).items()},
        statistics.median(share for _, share in found),
    )


def _medians(keyed: Iterable[tuple[Any, ...]]) -> dict[Any, float]:
    """Medians of the last value of tuples whose others are equal."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for *key, share in keyed:
        groups[tuple(key)].append(share)
    return {key: statistics.median(shares) for key, shares in groups.items()}


# --- Baseline 2: a closed form with ten constants ---------------------------------------------------------------------
# The ten that are fitted: name -> (start, least, most). Shares are of data sheet figures.
CONSTANTS: Mapping[str, tuple[float, float, float]] = {
    "matmul_a100": (0.70, 0.3, 1.0),  # share of peak that linear layers reach
    "matmul_hopper": (0.55, 0.3, 1.0),
    "matmul_blackwell": (0.50, 0.3, 1.0),
    "attention_a100": (0.40, 0.1, 1.0),  # share of peak that causal attention reaches
    "attention_hopper": (0.30, 0.1, 1.0),  # kernels of PyTorch and Triton; those of cuDNN are below
    "memory_passes": (1.3, 0.3, 4.0),  # bytes of elementwise work over the bytes that are counted below
    "layer_floor_s": (5e-4, 0.0, 3e-3),  # a layer and micro-batch beyond its kernels: launches, tails, waits
    "expert_floor_s": (3e-3, 0.0, 2e-2),  # the same of a layer with experts, on top
    "step_s": (0.01, 0.0, 0.2),  # a step beyond its layers
    "crowding": (0.005, 0.0, 0.1),  # a ring of 1 / crowding ranks over nodes is half as fast as a short one
}
# Not fitted: round figures, the same for every row; chosen with the calibration rows in sight, as the formula was.
FLOAT8_GAIN = 2.0  # of the data sheets
CUDNN_ATTENTION = 0.6  # share of peak of fused attention on Hopper and later (arXiv 2407.08608: 0.6 to 0.75)
NETWORK = 0.8  # share of link bandwidth that large collectives reach
EXPOSED = (
    0.25  # share of data-parallel traffic, and of overlapped tensor-parallel traffic, that is not hidden
)
EARLY_STOP = 2 / 3  # PyTorch stops recomputing before the last product of a block; Megatron does not
OPTIMIZER_BYTES = (
    30  # per parameter: Adam reads and writes fp32 moments and weights, reads gradients, writes bf16
)
# Table 1 of arXiv 2104.04473 and its scripts: most parameters, sequences of a micro-batch, chunks of a stage.
SC21 = ((8e9, 16, 1), (40e9, 4, 1), (100e9, 2, 2), (150e9, 2, 2), (350e9, 1, 2), (540e9, 1, 3))
BEFORE_FLASH = (
    "megatron_sc21",
    "megatron_selective",
)  # papers of 2021 and 2022: scores go to memory and back
MEGATRON = ("megatron", "mlperf", "simumax")


def closed_form_facts(rows: Sequence[TrainingRow]) -> Facts:
    """One array per fact, one value per row."""
    parts = (_place, _layer_work, _pipeline, _traffic)
    facts = [{name: one for part in parts for name, one in part(row.values).items()} for row in rows]
    return {name: np.array([one[name] for one in facts]) for name in facts[0]} if facts else {}


def _microbatches(row: Row) -> tuple[float, float, float]:
    """Sequences of a micro-batch, micro-batches of a rank, chunks of a stage; the papers' where columns are empty."""
    size, chunks = number(row, "micro_batch_seqs", 0), number(row, "vpp", 0)
    layers, stages = number(row, "layers", 1), number(row, "pp", 1)
    if row["row_id"].startswith("megatron_sc21"):
        parameters = 12 * layers * number(row, "hidden", 0) ** 2
        _, size, chunks = next((one for one in SC21 if parameters <= one[0]), (0, 1, 1))
    elif not chunks:
        chunks = max(1, layers // stages) if stages > 1 else 1  # the largest that divides
    size = size or 4
    return size, max(1.0, number(row, "global_batch_seqs", 1) / number(row, "dp", 1) / size), chunks


def _tokens(row: Row) -> float:
    return _microbatches(row)[0] * number(row, "seq", 0) / number(row, "cp", 1)


def _place(row: Row) -> dict[str, float]:
    """The GPU and the kernels on it."""
    chip = chip_of(row)
    generation = {"A100": 0.0, "H100": 1.0, "H200": 1.0}.get(chip, 2.0)
    return {
        "peak": PEAK_FLOPS_PER_S[chip],
        "bandwidth": MEMORY_BYTES_PER_S.get(row["gpu"], MEMORY_BYTES_PER_S[chip]),
        "generation": generation,
        "cudnn": float(generation > 1 or (generation == 1 and row["row_id"].startswith(MEGATRON))),
        "float8": float(is_float8(row)),
    }


def _layer_work(row: Row) -> dict[str, float]:
    """Forward FLOPs, and bytes of forward and backward, of one rank, layer and micro-batch; of the head as well."""
    tp, tokens = number(row, "tp", 1), _tokens(row)
    linear, attention, head = (tokens * flops / tp for flops in _flops_per_token(row))
    hidden, wide = number(row, "hidden", 1), number(row, "heads", 1) * number(row, "head_dim", 1)
    # 16-bit values that norms, residuals and rotation, activation, dispatch and softmax read and write, per token.
    values = 22 * hidden / (tp if number(row, "sp", 0) else 1.0) + 8 * wide / tp
    values += 5 * (_num_mlp_matrices(row) - 1) * _mlp_width(row) / tp
    values += 6 * number(row, "topk", 0) * hidden
    if row["row_id"].startswith(BEFORE_FLASH):
        values += 12 * number(row, "heads", 1) * number(row, "seq", 0) / tp
    again = {"full": 1.0, "selective op": 0.5}.get(row["recompute"], 0.0)
    is_early = number(row, "zero", 0) == 3 and row["recompute"] == "full"
    return {
        "linear": linear,
        "attention": attention,
        "head": head,
        "layer_bytes": 2 * tokens * values,
        "loss_bytes": 16 * tokens * number(row, "vocab", 0) / tp,
        "again": again * (EARLY_STOP if is_early else 1.0),
        "again_attention": float(row["recompute"] == "full" or "attention" in row["recompute"]),
    }


def _pipeline(row: Row) -> dict[str, float]:
    _, num_microbatches, chunks = _microbatches(row)
    shared = any(f"method={name}" in row["extras"] for name in ("vocab-1", "vocab-2", "interlaced"))
    return {
        "layers": number(row, "layers", 1) / number(row, "pp", 1),
        "stages": number(row, "pp", 1),
        "chunks": chunks,
        "microbatches": num_microbatches,
        "shared_head": float(shared),
        "moved_layers": float("method=redis" in row["extras"]),
    }


def _ring_s_per_byte(row: Row, ranks: float, inside: float) -> float:
    """Seconds per byte of a ring through `ranks` GPUs, of which `inside` share a node and so its network cards."""
    intra, inter = (number(row, column, 1) * GB for column in ("intra_GBps", "inter_GBps"))
    return max(0.0, ranks - 1) / ranks / (intra if ranks <= inside else min(intra, inter * inside))


def _expert_s_per_byte(row: Row) -> float:
    """Seconds per byte of a token's hidden state to its experts: once to every node, from there to every expert."""
    topk, node = number(row, "topk", 0), number(row, "gpus_per_node", 8)
    group = number(row, "ep", 1) * number(row, "tp", 1)
    num_nodes = max(1.0, group / node)
    is_on_node = 1.0 - (1.0 - 1.0 / num_nodes) ** int(topk)  # chance that a given node has one of its experts
    other_nodes = (num_nodes - 1.0) * is_on_node
    inside = topk * (1 - 1 / min(group, node))
    return other_nodes / (number(row, "inter_GBps", 1) * GB) + inside / (number(row, "intra_GBps", 1) * GB)


def _traffic(row: Row) -> dict[str, float]:
    """Seconds of collectives at the full bandwidth of links, and bytes of the optimizer."""
    tp, pp, cp, dp, ep = (number(row, column, 1) for column in ("tp", "pp", "cp", "dp", "ep"))
    node, hidden, tokens = number(row, "gpus_per_node", 8), number(row, "hidden", 1), _tokens(row)
    expert = 3 * hidden * number(row, "moe_ffn", 0)
    outside = _flops_per_token(row)[0] / 2 - number(row, "topk", 0) * expert
    layers, ranks, zero = number(row, "layers", 1) / pp, dp * cp, number(row, "zero", 1)
    parameters = layers * outside / tp + number(row, "vocab", 0) * hidden / tp
    of_experts = layers * number(row, "n_experts", 0) * expert / (tp * ep)
    inside = max(1.0, node // tp)
    # Copies of an expert lie `ep` ranks apart, so their rings have fewer ranks and fewer network cards of a node.
    weighted = parameters * _ring_s_per_byte(row, ranks, inside)
    weighted += of_experts * _ring_s_per_byte(row, max(1.0, ranks / ep), max(1.0, inside // ep))
    group = 8.0 if "group size 8" in row["extras"] else ranks
    rounds = _microbatches(row)[1] if zero == 3 else 1.0
    is_16_bit = "PURE" in row["extras"] or row["row_id"].startswith("internevo")
    gathered = {0.0: 0.0, 3.0: 4.0}.get(zero, 2.0)
    reduced = (2.0 if is_16_bit else 4.0) * (1 if zero else 2)
    is_overlapped = "overlap" in row["extras"] or row["row_id"].startswith(("megatron_bridge", "mlperf"))
    tensor_share = EXPOSED if is_overlapped else 1.0
    return {
        "data_s": weighted * (gathered + reduced) * rounds,
        # Sharded inside a node, every shard has a ring of its own between nodes.
        "ranks": 1.0 if ranks <= inside else ranks / group if group < ranks else ranks,
        # The share of a micro-batch behind which the traffic can hide: all of it, or the backward pass.
        "cover": 1.0 if zero == 3 or is_overlapped else 2 / 3,
        "tensor_s": 16 * tokens * hidden * _ring_s_per_byte(row, tp, node) * tensor_share,
        "expert_s": 8 * tokens * hidden * _expert_s_per_byte(row),
        "is_moe": float(is_moe(row)),
        "optimizer_bytes": OPTIMIZER_BYTES
        * (parameters / group + of_experts * ep / group if zero else parameters + of_experts),
    }


@dataclass(frozen=True)
class ClosedForm:
    """Baseline 2 with its constants, by name as in CONSTANTS."""

    constants: Mapping[str, float]

    def seconds(self, facts: Facts) -> Values:
        """Seconds of a step of every row."""
        slowest, rest, optimizer = self._compute(facts)
        compute = facts["microbatches"] * slowest + rest
        traffic = facts["data_s"] / NETWORK * (1 + facts["ranks"] * self.constants["crowding"])
        beyond = (1 - EXPOSED) * traffic - facts["cover"] * compute / facts["microbatches"]
        exposed = EXPOSED * traffic + np.maximum(0.0, beyond)
        return np.asarray(compute + exposed + optimizer + self.constants["step_s"])

    def layer_s(self, facts: Facts) -> tuple[Values, Values]:
        """Seconds of one layer and of the head, forward and backward, of one micro-batch."""
        of, chip = self.constants, facts["generation"].astype(int)
        matmul = facts["peak"] * _by_chip(of, "matmul_a100", "matmul_hopper", "matmul_blackwell")[chip]
        attention = _by_chip(of, "attention_a100", "attention_hopper", "attention_hopper")[chip]
        attention = facts["peak"] * np.where(facts["cudnn"] > 0, CUDNN_ATTENTION, attention)
        bandwidth = facts["bandwidth"] / of["memory_passes"]
        layer = facts["linear"] / matmul / (1 + facts["float8"] * (FLOAT8_GAIN - 1)) * (3 + facts["again"])
        layer += facts["attention"] / attention * (3.5 + facts["again_attention"])
        layer += facts["layer_bytes"] / bandwidth * (1 + facts["again"] / 3)
        layer += (facts["tensor_s"] + facts["expert_s"]) / NETWORK
        layer += of["layer_floor_s"] + facts["is_moe"] * of["expert_floor_s"]
        return layer, 3 * facts["head"] / matmul + facts["loss_bytes"] / bandwidth

    def _compute(self, facts: Facts) -> tuple[Values, Values, Values]:
        """Seconds of the slowest stage and micro-batch, of the bubble, and of the optimizer."""
        layer, head = self.layer_s(facts)
        stages, layers = facts["stages"], facts["layers"]
        mean = layers * layer + head / stages
        slowest = np.where(facts["shared_head"] > 0, mean, layers * layer + head)
        moved = np.minimum.reduce([
            np.maximum(head + kept * layer, np.ceil((layers * stages - kept) / np.maximum(stages - 1, 1)) * layer)
            for kept in range(MOST_KEPT)
        ])  # fmt: skip
        slowest = np.where(facts["moved_layers"] > 0, np.minimum(slowest, moved), slowest)
        bubble = (stages - 1) / facts["chunks"] * mean
        return slowest, bubble, facts["optimizer_bytes"] / facts["bandwidth"]


def _by_chip(constants: Mapping[str, float], *names: str) -> Values:
    return np.array([constants[name] for name in names])


def fit_closed_form(rows: Sequence[TrainingRow]) -> ClosedForm:
    """Baseline 2 of these rows: robust least squares of log errors, every source with equal weight."""
    facts = closed_form_facts(rows)
    measured = np.log([row.measured_s for row in rows])
    sizes = Counter(row.source for row in rows)
    weights = np.sqrt([1 / sizes[row.source] for row in rows])
    start, least, most = np.array(list(CONSTANTS.values())).T

    def residuals(values: Values) -> Values:
        model = ClosedForm(dict(zip(CONSTANTS, values, strict=True)))
        return np.asarray(weights * (np.log(model.seconds(facts)) - measured))

    tried = [
        least_squares(residuals, first, bounds=(least, most), x_scale=start, loss="soft_l1", f_scale=ROBUST)
        for first in (start, 0.8 * start, np.minimum(0.95 * most, 1.2 * start))
    ]
    best = min(tried, key=lambda found: float(found.cost))
    return ClosedForm(dict(zip(CONSTANTS, best.x.tolist(), strict=True)))


def closed_form(rows: Sequence[TrainingRow]) -> Predictor:
    """Baseline 2 learned from these rows: a function from rows to seconds."""
    model = fit_closed_form(rows)
    return lambda others: model.seconds(closed_form_facts(others)).tolist() if others else []


def median_utilisation(rows: Sequence[TrainingRow]) -> Predictor:
    """Baseline 1 learned from these rows: a function from rows to seconds."""
    model = fit_utilisation(rows)
    return lambda others: [model.seconds(row.values) for row in others]
