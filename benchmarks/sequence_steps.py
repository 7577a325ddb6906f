"""Steps of 33.5 million tokens in groups of ranks: what byte_scale and zeppelin let travel, and how even ranks are.

The set-up of ByteScale (Ge et al. 2025, arXiv 2502.21231) on fewer devices: 64 ranks of 8K tokens, sequences cut at 256K,
the constants of a 7B model that FlexSP publishes; 20 steps of every file of lengths beside the checkout, of lognormal
lengths, and of two distributions that nobody tuned to (`sequence_lengths`). Told are quartiles of steps:

- `traffic`: tokens that go around where all are on 32 ranks, over those of these groups; `at most`: where every sequence is
  on as few ranks as hold it with nothing offloaded, which no grouping without the host's memory is above;
- `uneven`: the busiest rank over the mean; `end`: when the last rank ends, with waiting, over the same;
- `plan s`: CPU seconds of one core for a step's groups;
- of zeppelin tokens of ranks, of the whole step, before and behind remapping: `moved` over the least that has to move in any
  scheme behind which ranks differ by one token, in nodes of eight, and `spread`, by how many they differ then.

Then what is claimed, of the worst step, but of traffic of the median; exit status 3 where a claim of a file fails. Traffic is
claimed with what may wait at the host, as the paper has it.

Run: OMP_NUM_THREADS=1 python -m benchmarks.sequence_steps [--steps 20]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from benchmarks.sequence_lengths import UNTUNED

from meshwright.catalog import filler
from meshwright.specs.sequence.group_seconds import busy_seconds, circulated_tokens, finish_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.systems.sequence.zeppelin.remap import remapped, tokens_after
from meshwright.systems.sequence.zeppelin.step import NODE, tokens_of_ranks

BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
NUM_RANKS, RANK_TOKENS, CONTEXT = 64, 8192, 256 * 1024
STEP_TOKENS = 33_500_000
MOST_SEQUENCES = 60_000  # of a step
FILES = ("prolong", "wlbllm")
AT_HOST = "byte_scale, at host"
ALGORITHMS = (
    "byte_scale",
    AT_HOST,
    'byte_scale(balance="pp")',
    'byte_scale(balance="pp"), at host',
    "zeppelin",
)
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
    """A step of 33.5M tokens drawn from a tail, or of a distribution that nobody tuned to."""
    rng = np.random.default_rng(1000 + seed)
    if name in UNTUNED:
        return cut_batch(UNTUNED[name](rng, 200_000), seed)
    median, spread = TAILS[name]
    return cut_batch(rng.lognormal(np.log(median), spread, 50_000).astype(int) + 1, seed)


def cut_batch(known: np.ndarray, seed: int) -> list[int]:
    """Lengths drawn from known ones, cut at the context, until a step is full."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.choice(known, MOST_SEQUENCES), CONTEXT)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), STEP_TOKENS)) + 1].tolist()


def static_traffic(lengths: list[int]) -> int:
    """Tokens that go around where every sequence is on as many ranks as the context needs."""
    return (CONTEXT // RANK_TOKENS - 1) * sum(lengths)


class Measured(NamedTuple):
    """What one step is by an algorithm, as the columns tell."""

    traffic: float
    uneven: float
    end: float
    plan_s: float
    moved: float
    spread: int

    @classmethod
    def of(cls, name: str, lengths: list[int], known: SequenceCosts) -> Measured:
        """Of one step by an algorithm."""
        begun_s = time.process_time()
        batch = filler("sequence_groups", name)(lengths, NUM_RANKS, known)
        plan_s = time.process_time() - begun_s
        busy = busy_seconds(batch, known)
        end = max(finish_seconds(batch, known)) * NUM_RANKS / sum(busy)
        traffic = static_traffic(lengths) / max(1, circulated_tokens(batch))
        return cls(traffic, imbalance(busy), end, plan_s, *remapping(tokens_of_ranks(batch)))


def remapping(tokens: list[int]) -> tuple[float, int]:
    """Tokens that zeppelin moves over the least that any scheme does, and by how many ranks differ behind it."""
    moves = remapped(tokens, NODE)
    after = tokens_after(tokens, moves)
    least, more = sum(tokens) // len(tokens), -(-sum(tokens) // len(tokens))
    # what is above the rounded mean has to go, and what is below it has to come
    bound = max(sum(max(0, own - more) for own in tokens), sum(max(0, least - own) for own in tokens))
    return sum(move.num_tokens for move in moves) / max(1, bound), max(after) - min(after)


def least_traffic(lengths: list[int]) -> float:
    """Static tokens over those that go around where every sequence is on as few ranks as hold it."""
    return static_traffic(lengths) / max(1, sum((-(-one // RANK_TOKENS) - 1) * one for one in lengths))


def claims(name: str, rows: Mapping[str, Sequence[Measured]]) -> Iterator[tuple[str, float, float, bool]]:
    """(claim, limit, ours, whether it holds) of all steps by every algorithm."""
    at_host, zeppelin = rows[AT_HOST], rows["zeppelin"]
    traffic, plan_s = median(one.traffic for one in at_host), max(one.plan_s for one in (*at_host, *zeppelin))
    ends = max(max(one.uneven, one.end) for one in at_host)
    moved, spread = max(one.moved for one in zeppelin), max(one.spread for one in zeppelin)
    yield f"{name}: byte_scale, static tokens over these, at least", 20.0, traffic, traffic >= 20
    yield (
        f"{name}: byte_scale, the busiest and the last rank over the mean, at most",
        1.05,
        ends,
        ends <= 1.05,
    )
    yield f"{name}: zeppelin, tokens moved over the least, at most", 1.0, moved, moved <= 1
    yield f"{name}: zeppelin, tokens by which ranks differ, at most", 1.0, spread, spread <= 1
    yield f"{name}: CPU seconds to plan a step, under", 1.0, plan_s, plan_s < 1


def rows_of(steps: Sequence[list[int]]) -> dict[str, list[Measured]]:
    """Of every algorithm all steps."""
    found = {}
    for algorithm in ALGORITHMS:
        name, _, more = algorithm.partition(", ")
        found[algorithm] = [Measured.of(name, lengths, costs(bool(more))) for lengths in steps]
    return found


def told(values: Sequence[float]) -> str:
    """Three quartiles."""
    return " - ".join(f"{one:.3g}" for one in np.quantile(values, (0.25, 0.5, 0.75)))


def main() -> int:
    """A table, then claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    files = FILES if BESIDE.is_dir() else ()
    found: list[tuple[str, str, float, float, bool]] = []
    print(f"{'':<48}" + "".join(f"{column:>26}" for column in Measured._fields))
    for name in (*files, *TAILS, *UNTUNED):
        steps = [of_file(BESIDE, name, n) if name in files else of_tail(name, n) for n in range(given.steps)]
        print(f"{name}, traffic at most{'':<28}{told([least_traffic(each) for each in steps]):>26}")
        rows = rows_of(steps)
        for algorithm, each in rows.items():
            columns = zip(*each, strict=True)
            print(
                f"{name + ': ' + algorithm:<48}" + "".join(f"{told(one):>26}" for one in columns), flush=True
            )
        if name in files or name in UNTUNED:
            found += [(name, *claim) for claim in claims(name, rows)]
    print(f"\n{'claim':<84}{'limit':>8}{'ours':>10}")
    for _, claim, limit, ours, holds in found:
        print(f"{claim:<84}{limit:>8.3g}{ours:>10.4g}  {'yes' if holds else 'no'}")
    return 3 if any(name in files and not holds for name, *_, holds in found) else 0


if __name__ == "__main__":
    sys.exit(main())
