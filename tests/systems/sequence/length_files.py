"""Batches of the lengths that are beside the checkout, and of tails with named parameters; costs of the acceptance's job."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from meshwright.specs.sequence.sequence_costs import SequenceCosts

NUM_RANKS, RANK_TOKENS, CONTEXT = 64, 8192, 256 * 1024
STEP_TOKENS = 33_500_000
FILES = ("prolong", "wlbllm")
# Lognormal lengths, all cut at the context: median, spread of the logarithm.
TAILS = {"light": (1500.0, 1.2), "heavy": (1000.0, 1.8), "nearly all long": (60_000.0, 1.0)}
TOKEN_BYTES = (
    4.4804 * 2**20
)  # these and the next: GPT-7B of FlexSP's solver, PKU-DAIR/Hetu-Galvatron, flexsp_solver/solver.py
SECONDS = {"square_s": 5.128e-9, "token_s": 0.18396e-3, "fixed_s": 0.62936}
# Rings of 4096 numbers of bfloat16, keys and values once forward, twice backward, over NVLink and 400 Gb/s of a node.
RINGS = {"ring_bytes": 6.0 * 4096 * 2 * 32, "rates": {8: 96.5e9, 64: 50e9}, "is_beside": True}
HOST = {"offload_bytes": TOKEN_BYTES * 30 / 32, "offload_rate": 25e9, "host_bytes": 64e9}


def costs(offloads: bool = False) -> SequenceCosts:
    """Of 64 devices with 8K tokens each."""
    capacity_bytes = TOKEN_BYTES * RANK_TOKENS
    more = HOST if offloads else {}
    return SequenceCosts(
        **SECONDS, token_bytes=TOKEN_BYTES, state_bytes=0.0, capacity_bytes=capacity_bytes, **RINGS, **more
    )


def of_file(shared_data: Path, name: str, seed: int) -> list[int]:
    """A step of 33.5M tokens drawn from a file."""
    path = shared_data / "workloads" / "training_lengths" / f"distca_dist_{name}.json.gz"
    return cut_batch(np.array(json.loads(gzip.decompress(path.read_bytes()))), seed)


def of_tail(name: str, seed: int) -> list[int]:
    """A step of 33.5M tokens drawn from a tail."""
    median, spread = TAILS[name]
    rng = np.random.default_rng(1000 + seed)
    return cut_batch(rng.lognormal(np.log(median), spread, 50_000).astype(int) + 1, seed)


def cut_batch(known: np.ndarray, seed: int) -> list[int]:
    """Lengths drawn from known ones, cut at the context, until a step is full."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.choice(known, 60_000), CONTEXT)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), STEP_TOKENS)) + 1].tolist()
