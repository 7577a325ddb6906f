"""Steps of 33.5 million tokens in groups of ranks: what byte_scale and zeppelin let travel, and how even ranks are.

The set-up of ByteScale (Ge et al. 2025, arXiv 2502.21231) on fewer devices: 64 ranks of 8K tokens, sequences cut at 256K,
the constants of a 7B model that FlexSP publishes; 20 steps of every file of lengths beside the checkout, and of lognormal
lengths. Told are quartiles of steps:

- `traffic`: tokens that go around where all are on 32 ranks, over those of these groups;
- `uneven`: the busiest rank over the mean; `end`: when the last rank ends, with waiting, over the same;
- `plan s`: CPU seconds of one core for a step's groups.

Then what is claimed of byte_scale on files, with what may wait at the host; exit status 3 where it fails.

Run: OMP_NUM_THREADS=1 python -m benchmarks.sequence_steps [--steps 20]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np

from meshwright.catalog import filler
from meshwright.specs.sequence.group_seconds import busy_seconds, circulated_tokens, finish_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts

BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
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


def static_traffic(lengths: list[int]) -> int:
    """Tokens that go around where every sequence is on as many ranks as the context needs."""
    return (CONTEXT // RANK_TOKENS - 1) * sum(lengths)


def measured(name: str, lengths: list[int], known: SequenceCosts) -> tuple[float, ...]:
    """Of one step by an algorithm what the columns tell."""
    begun_s = time.process_time()
    batch = filler("sequence_groups", name)(lengths, NUM_RANKS, known)
    plan_s = time.process_time() - begun_s
    busy = busy_seconds(batch, known)
    end = max(finish_seconds(batch, known)) * NUM_RANKS / sum(busy)
    return static_traffic(lengths) / max(1, circulated_tokens(batch)), imbalance(busy), end, plan_s


def main() -> int:
    """A table, then claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    files = FILES if BESIDE.is_dir() else ()
    failed = []
    print(f"{'':<52}" + "".join(f"{column:>26}" for column in ("traffic", "uneven", "end", "plan s")))
    for name in (*files, *TAILS):
        steps = [of_file(BESIDE, name, n) if name in files else of_tail(name, n) for n in range(given.steps)]
        for algorithm in ("byte_scale", 'byte_scale(balance="pp")', "zeppelin"):
            for offloads in (False, True) if algorithm != "zeppelin" else (False,):
                rows = np.array([measured(algorithm, lengths, costs(offloads)) for lengths in steps])
                told = np.quantile(rows, (0.25, 0.5, 0.75), axis=0)
                columns = "".join("{:>26}".format(" - ".join(f"{one:.3g}" for one in q)) for q in told.T)
                at = ", at host" if offloads else ""
                print(f"{name + ': ' + algorithm + at:<52}{columns}", flush=True)
                if name in files and algorithm == "byte_scale" and offloads:
                    if told[1, 0] < 20 or rows[:, 2].max() > 1.05 or rows[:, 3].max() > 1.0:
                        failed.append(name)
    print(
        "traffic 20 x below static, ends 1.05 x the mean, planned in 1 s:",
        "no: " + ", ".join(failed) if failed else "yes",
    )
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
