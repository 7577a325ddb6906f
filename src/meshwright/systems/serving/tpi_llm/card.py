"""Weights of a model stream from disk through a sliding window, on edge devices that share every layer and sum as a star.

Paper:      TPI-LLM: Serving 70B-scale LLMs Efficiently on Low-resource Edge Devices, Zonghang Li, Wenjiao Feng,
            Mohsen Guizani, Hongfang Yu, 2024, arXiv 2410.00531
Problem:    A model that is many times the memory of the devices at home is to answer there, over links of milliseconds.
Idea:       A step uses blocks (embedding, attention and feed-forward part of each layer, head) in one order, so a thread
            reads them ahead, at most w of them are in memory, and each goes when it has computed. Nothing is waited for where
            every block comes while the one before it computes and is summed. n devices share each layer; with latency a,
            rate b and S bytes a ring takes 2 (n - 1) (a + S / (n b)), a star through the master 2 a + 2 (n - 1) S / b, less
            where S < n a b (n - 2) / (n - 1)^2: a token's 32 KiB on links of a millisecond.
Kind:       policy
Use:        meshwright plan MODEL CLUSTER --requests FILE --fix 'weights=tpi_llm(disk_bytes_per_s=2e9)'; meshwright generate
            FOLDER --prompt TEXT --engine torch --tp 2 --weights 'tpi_llm(window=2)' --sums star; serve as well
Simulated:  what a step waits for its blocks, by disk and by what computes and sums beside them; star, ring, tree by their
            formulas, which single messages on shared links take, too (star and ring at 0.1, 1 and 5 ms: a test); a replica's
            memory has the window. How fast a disk is has to be said
Executed:   torch on CPUs and gloo: a reader thread ahead of compute, a star or ring of messages in one order of adding, late
            on purpose where links are to be slow; logits are those of weights that stay, bytes are counted in every step
Differs:    1. Ours divides both tables over the devices; the paper's master has them whole. Claims are of the paper's master.
            2. Terms are added in the order of ranks, so bits repeat (the public code: in the order of arrival), and messages
            are the tensors' own bytes (there: pickle).
            3. Files that were read stay in the page cache while there is room: where a model fits into it, its disk is seen
            once. On paper every block comes from disk.
            4. Sums are of tensor parallelism alone: tokens reach all devices from the process that drives them.
            5. The README's seconds a token are whole numbers of two kinds of machines (a Mac M1 of 8 GB; eight devices of an
            emulated network) whose disks are not told. So a rate is taken from one row of a column, and the other rows are
            claimed: what grows with bytes, not how fast a disk is. Its "Llama 2-3B" is taken for open_llama_3b's dimensions.
            6. Left out: llama.cpp's columns (INT4, INT8, Metal) and four laptops over Wi-Fi (2, 5, 8, 9, 29 s/token: another
            network, nothing of it told). Galaxy: the paper's own measurement, of which only "over 90 %" was read.
            7. The headlines "over 80 %" and "over 90 %" less latency are claimed as the README's rows, times quicker (8 is
            87.5 %). Eight devices alone say 8 times, which is as near to Accelerate's rows as anything can be: no
            evidence there. What Transformers loses, swapping, is read off one of its rows, not explained.
            8. A process has, beside weights, what Python, torch and transformers take when they are loaded: measured here.
            9. Only what was read in the abstract and the public repository is claimed; the paper's own tables were not read.
"""

from __future__ import annotations

from functools import cache

from meshwright.specs.cluster.summing import RING, STAR, crossover_bytes, sum_s
from meshwright.specs.config.source import load_model
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.tpi_llm.mechanism import (
    FLOAT_BYTES,
    EdgeDevices,
    master_bytes,
    peak_bytes,
    token_s,
)

FILLS = {"weights": "mechanism:StreamedWeights"}
CLAIMS = (
    {
        "claim": "GB of the master's process, {model} in float32 on {devices} devices, a window of two",
        "kind": "predicted",
        "unit": "GB",
        "tolerance": 0.15,
        "reason": "keys, values and activations of a short prompt are left out",
        "how": "the largest window of blocks, the file's copy of the block that comes, and a process without a model",
        "by": "peak_gb",
        "source": "abstract (3.1 GB); README of Lizonghang/TPI-LLM (34B on 4 laptops with 5 GB each)",
        "null": {"perfect scaling": "share_gb"},
        "cases": (
            ({"model": "llama-2-70b", "devices": 8}, 3.1),
            ({"model": "yi-34b", "devices": 4}, 5.0),
        ),
    },
    {
        "claim": "share of the master's memory that a window of two saves, {model} on {devices} devices",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.05,
        "reason": "the abstract says it to a tenth",
        "how": "as above, against all of the master's blocks in float32 at once",
        "by": "saved_share",
        "source": "abstract: 'cutting the peak memory footprint of Llama 2-70B by 90%'",
        "null": {"no effect": 0.0},
        "cases": (({"model": "llama-2-70b", "devices": 8}, 0.9),),
    },
    {
        "claim": "seconds a token of {model} on one laptop through the window",
        "kind": "fitted on Llama 2-13B",
        "unit": "s",
        "tolerance": 0.25,
        "reason": "whole seconds are published",
        "how": "a step that waits for its blocks; the disk's rate is that of Llama 2-13B's 18 s",
        "by": "windowed_s",
        "source": "README of Lizonghang/TPI-LLM, table, 'Transformers (with our MS)'",
        "null": {"nearest published row": "windowed_row"},
        "cases": (
            ({"model": "llama-2-3b"}, 3.0),
            ({"model": "llama-2-7b"}, 8.0),
            ({"model": "llama-3.1-8b"}, 12.0),
            ({"model": "yi-34b"}, 55.0),
        ),
    },
    {
        "claim": "seconds a token of {model} on eight wired devices",
        "kind": "fitted on Yi-34B",
        "unit": "s",
        "tolerance": 0.25,
        "reason": "whole seconds are published",
        "how": "the master's step, with its part of the layers, both tables and stars; the disk's rate is that of 34B's 14 s",
        "by": "shared_s",
        "source": "README of Lizonghang/TPI-LLM, table, 'TPI-LLM (Klonet, 8 devices, wire connected)'",
        "null": {"nearest published row": "shared_row"},
        "cases": (
            ({"model": "llama-2-3b"}, 2.0),
            ({"model": "llama-2-7b"}, 3.0),
            ({"model": "llama-3.1-8b"}, 4.0),
            ({"model": "llama-2-13b"}, 3.0),
        ),
    },
    {
        "claim": "a token of {model} on eight devices: times quicker than {over} on one laptop",
        "kind": "fitted on Llama 2-7B and Yi-34B",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "whole seconds are published",
        "how": "as above, and all bytes of a model for a token at the rate of Llama 2-7B's row",
        "by": "times_quicker",
        "source": "README of Lizonghang/TPI-LLM, table; abstract: over 80 and over 90 % less",
        "null": {"perfect scaling": 8.0},
        "cases": (
            ({"model": "llama-2-3b", "over": "Transformers"}, 15.0),
            ({"model": "llama-3.1-8b", "over": "Transformers"}, 16.25),
            ({"model": "llama-2-3b", "over": "Accelerate"}, 8.0),
            ({"model": "llama-3.1-8b", "over": "Accelerate"}, 7.75),
        ),
    },
    {
        "claim": "kB below which eight devices sum quicker as a star, 1 Gb/s and {latency_ms} ms",
        "kind": "identity",
        "unit": "kB",
        "tolerance": 1e-3,
        "reason": "the formula of the mechanism",
        "how": "n a b (n - 2) / (n - 1)^2",
        "by": "crossover_kb",
        "source": "both formulas, set equal",
        "cases": (
            ({"latency_ms": 0.1}, 12.245),
            ({"latency_ms": 1.0}, 122.449),
            ({"latency_ms": 5.0}, 612.245),
        ),
    },
    {
        "claim": "one token's sum of Llama 2-70B on eight devices, 1 Gb/s and {latency_ms} ms: a ring over a star",
        "kind": "identity",
        "unit": "x",
        "tolerance": 1e-3,
        "reason": "the formulas of the mechanism",
        "how": "(2 (n - 1) (a + S / (n b))) / (2 a + 2 (n - 1) S / b), S = 8192 numbers of 4 bytes",
        "by": "ring_over_star",
        "source": "both formulas",
        "cases": (
            ({"latency_ms": 0.1}, 0.48030),
            ({"latency_ms": 1.0}, 2.54999),
            ({"latency_ms": 5.0}, 5.15432),
        ),
    },
)  # fmt: skip
WINDOW, DEVICES = 2, 8
# VmHWM of a process that has imported torch 2.13 (CPU) and transformers 5.23 and made no model, on x86-64: 376,484 kB.
PROCESS_BYTES = 376_484 * 1024
M1_BYTES_PER_S = 68.25e9  # LPDDR4X-4266 on 128 bits (Apple M1)
# Seconds a token of the README's table, float32.
TABLE = {
    "Transformers": {"llama-2-3b": 30.0, "llama-2-7b": 56.0, "llama-3.1-8b": 65.0},
    "Accelerate": {"llama-2-3b": 16.0, "llama-2-7b": 26.0, "llama-3.1-8b": 31.0},
    "windowed": {"llama-2-3b": 3.0, "llama-2-7b": 8.0, "llama-3.1-8b": 12.0, "llama-2-13b": 18.0, "yi-34b": 55.0},
    "shared": {"llama-2-3b": 2.0, "llama-2-7b": 3.0, "llama-3.1-8b": 4.0, "llama-2-13b": 3.0, "yi-34b": 14.0},
}  # fmt: skip
# By the config.json of 01-ai/Yi-34B and of openlm-research/open_llama_3b.
OTHERS = {
    "yi-34b": ModelSpec.decoder(
        60, 7168, 56, num_kv_heads=8, intermediate_size=20480, vocabulary_size=64000, name="Yi-34B"
    ),
    "llama-2-3b": ModelSpec.decoder(
        26, 3200, 32, intermediate_size=8640, vocabulary_size=32000, name="open_llama_3b"
    ),
}


@cache
def _model(name: str) -> ModelSpec:
    return OTHERS[name] if name in OTHERS else load_model(name)


def peak_gb(model: str, devices: int) -> float:
    """Of the master's process."""
    return (peak_bytes(_model(model), devices, WINDOW) + PROCESS_BYTES) / 1e9


def share_gb(model: str, devices: int) -> float:
    """An equal part of the model's float32 numbers on each device."""
    return FLOAT_BYTES * _model(model).num_parameters / devices / 1e9


def saved_share(model: str, devices: int) -> float:
    """Of the master's process, against one that holds all of its blocks."""
    without = master_bytes(_model(model), devices) + PROCESS_BYTES
    return 1.0 - 1e9 * peak_gb(model, devices) / without


def windowed_s(model: str) -> float:
    """On one laptop."""
    return _token_s(model, "windowed", 1, "llama-2-13b")


def shared_s(model: str) -> float:
    """On eight devices."""
    return _token_s(model, "shared", DEVICES, "yi-34b")


def times_quicker(model: str, over: str) -> float:
    """Against a software that moves all weights for every token, as fast as its row of Llama 2-7B says."""
    bytes_per_s = master_bytes(_model("llama-2-7b"), 1) / TABLE[over]["llama-2-7b"]
    return master_bytes(_model(model), 1) / bytes_per_s / shared_s(model)


def windowed_row(model: str) -> float:
    """The row whose model is nearest in numbers."""
    return _nearest(model, "windowed")


def shared_row(model: str) -> float:
    """The row whose model is nearest in numbers."""
    return _nearest(model, "shared")


def crossover_kb(latency_ms: float) -> float:
    """Of eight devices on 1 Gb/s."""
    return crossover_bytes(DEVICES, latency_ms * 1e-3, 125e6) / 1e3


def ring_over_star(latency_ms: float) -> float:
    """Of a token's hidden state."""
    num_bytes = FLOAT_BYTES * _model("llama-2-70b").hidden_size
    ring, star = (sum_s(way, num_bytes, DEVICES, latency_ms * 1e-3, 125e6) for way in (RING, STAR))
    return ring / star


def _token_s(model: str, column: str, devices: int, row: str) -> float:
    """With disks as fast as a row of a column says: they are what its seconds are of."""
    disk_bytes_per_s = master_bytes(_model(row), devices) / TABLE[column][row]
    return token_s(_model(model), EdgeDevices(devices, disk_bytes_per_s, M1_BYTES_PER_S), WINDOW)


def _nearest(model: str, column: str) -> float:
    own = _model(model).num_parameters
    others = {name: _model(name).num_parameters for name in TABLE[column] if name != model}
    return TABLE[column][min(others, key=lambda name: abs(others[name] - own))]
