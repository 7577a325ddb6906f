"""Groups of ranks for a step's sequences: every algorithm beside static groups and a lower bound, on batches of real lengths.

The set-up of FlexSP (Wang et al. 2025, arXiv 2412.01523): 64 devices of 30 GiB, the authors' constants of a 7B model, steps
of 512 sequences cut at 384K, 20 steps of every file of lengths, and of drawn ones: with Wikipedia's published bins, with
a heavy tail (a lognormal body of median 350 and sigma 1.35, and 3 % of a Pareto tail from 4,096 tokens of index 1.1), and two
that nobody tuned to (`sequence_lengths`, --seed). Groups may be of any degree, of one device, too (the authors' code has two
at least: --least 2, which ByteScale was not made for). Told are medians and quartiles of steps:

- `end / bound`: seconds of a step over what no grouping falls below (`specs/sequence/lower_bound`);
- `static / end`: seconds of groups of the one degree that holds the longest sequence allowed over these;
- `best / end`: the same of the one degree that is best for the step;
- `moved`: tokens that static groups pass on over those of these groups;
- `uneven`: the busiest rank over the mean;
- `plan s`: CPU seconds of one core for a step's groups.

With --milp a line more: flex_sp in lockstep whose micro-batches a solver may improve, each for so many seconds. Then what is
claimed, of files and of what nobody tuned to: beside rates over static groups the bound's, since where a few documents are
most of a step nothing is 1.5 times as fast. Exit status 3 where a claim of a file fails.

Run: OMP_NUM_THREADS=1 python -m benchmarks.sequence_groups [LENGTHS.json.gz ...] [--steps 20] [--seed 0] [--least 1]
     [--milp SECONDS]
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from benchmarks.sequence_lengths import BESIDE, UNTUNED, of_file

from meshwright.catalog import filler
from meshwright.catalog.slots import slot_names
from meshwright.specs.sequence.group_seconds import busy_seconds, circulated_tokens, finish_seconds, imbalance
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.static_groups import STATIC
from meshwright.systems.sequence.flex_sp.card import padded_error
from meshwright.systems.sequence.flex_sp.mechanism import FlexSp
from meshwright.systems.sequence.flex_sp.published_job import published_costs, wikipedia_batch

NUM_RANKS, BATCH, THOUSANDS = 64, 512, 384
BEST_DEGREE = f"{STATIC}(adapts=True)"
LOCKSTEP = "flex_sp(lockstep=True)"
COLUMNS = ("end / bound", "static / end", "best / end", "moved", "uneven", "plan s")
Steps = Sequence[tuple[int, ...]]
Table = Mapping[str, Mapping[str, np.ndarray]]  # of an algorithm and a column the numbers of all steps


def steps_of(path: Path, count: int) -> Steps:
    """Steps of sequences drawn from a file."""
    drawn, lengths = random.Random(path.name), of_file(path).tolist()
    return [tuple(min(each, THOUSANDS * 1024) for each in drawn.sample(lengths, BATCH)) for _ in range(count)]


def heavy_tailed(count: int) -> Steps:
    """Steps of sequences whose tail falls as a power."""
    drawn, found = random.Random(0), []
    for _ in range(count):
        body = (drawn.lognormvariate(5.86, 1.35) for _ in range(BATCH))
        lengths = (4096 * drawn.paretovariate(1.1) if drawn.random() < 0.03 else each for each in body)
        found.append(tuple(min(THOUSANDS * 1024, max(1, round(each))) for each in lengths))
    return found


def untuned(name: str, count: int, seed: int) -> Steps:
    """Steps of sequences of a distribution that no algorithm was tuned to."""
    rng = np.random.default_rng(seed)
    return [tuple(np.minimum(UNTUNED[name](rng, BATCH), THOUSANDS * 1024).tolist()) for _ in range(count)]


def data_sets(paths: Sequence[Path], count: int, seed: int) -> Iterator[tuple[str, Steps]]:
    """By name the steps of every file, and of what is drawn."""
    for path in paths:
        yield path.name, steps_of(path, count)
    yield "drawn: bins of Wikipedia", [wikipedia_batch(seed, THOUSANDS) for seed in range(count)]
    yield "drawn: heavy-tailed", heavy_tailed(count)
    yield from ((name, untuned(name, count, seed)) for name in UNTUNED)


def table_of(steps: Steps, names: Sequence[str], costs: SequenceCosts) -> Table:
    """All numbers of all algorithms."""
    found: dict[str, dict[str, list[float]]] = {name: {column: [] for column in COLUMNS} for name in names}
    for lengths in steps:
        least_s = lower_bound_s(lengths, NUM_RANKS, costs)
        ends, moved = {}, {}
        for name in names:
            begun_s = time.process_time()
            batch = filler("sequence_groups", name)(lengths, NUM_RANKS, costs)
            found[name]["plan s"].append(time.process_time() - begun_s)
            ends[name], moved[name] = max(finish_seconds(batch, costs)), circulated_tokens(batch)
            found[name]["end / bound"].append(ends[name] / least_s)
            found[name]["uneven"].append(imbalance(busy_seconds(batch, costs)))
        for name in names:
            found[name]["static / end"].append(ends[STATIC] / ends[name])
            found[name]["best / end"].append(ends[BEST_DEGREE] / ends[name])
            found[name]["moved"].append(moved[STATIC] / max(1, moved[name]))
    return {
        name: {column: np.array(values) for column, values in columns.items()}
        for name, columns in found.items()
    }


def show(table: Table) -> None:
    """Median and quartiles of every column."""
    print(f"{'':<28}" + "".join(f"{column:>24}" for column in COLUMNS))
    for name, columns in table.items():
        told = (
            "{1:.3f} ({0:.3f} {2:.3f})".format(*np.quantile(columns[c], (0.25, 0.5, 0.75))) for c in COLUMNS
        )
        print(f"{name:<28}" + "".join(f"{each:>24}" for each in told), flush=True)


def show_lengths(steps: Steps) -> None:
    """What a step's sequences are like."""
    tokens, longest = (np.quantile([kind(step) for step in steps], (0.25, 0.5, 0.75)) for kind in (sum, max))
    share = mean(sum(length for length in step if length > 32_768) / sum(step) for step in steps)
    print(
        "tokens of a step {1:,.0f} ({0:,.0f} {2:,.0f}), ".format(*tokens)
        + "longest {1:,.0f} ({0:,.0f} {2:,.0f}), ".format(*longest)
        + f"{100 * share:.1f} % of tokens in sequences above 32K"
    )


def bucketing_errors(steps: Steps, costs: SequenceCosts) -> list[float]:
    """Of every step in lockstep."""
    return [padded_error(step, FlexSp(lockstep=True).micro_batches(step, NUM_RANKS, costs)) for step in steps]


def claims(
    name: str, steps: Steps, table: Table, costs: SequenceCosts
) -> list[tuple[str, float, float, bool]]:
    """(claim, limit, ours, whether it holds): of the worst step, but where a long sequence leaves even the bound less."""
    columns = table["flex_sp"]
    most, least = float(columns["end / bound"].max()), float(np.median(columns["static / end"]))
    reached = float(np.median(columns["static / end"] * columns["end / bound"]))
    error = max(bucketing_errors(steps, costs))
    plan_s = max(float(table[each]["plan s"].max()) for each in ("flex_sp", "byte_scale", "zeppelin"))
    return [
        (f"flex_sp, {name}: step over the bound, at most", 1.12, most, most <= 1.12),
        (
            f"flex_sp, {name}: rate over static groups (the bound: {reached:.2f}), median, at least",
            1.5,
            least,
            least >= 1.5,
        ),
        (f"flex_sp, {name}: tokens that buckets add, at most", 0.023, error, error <= 0.023),
        (f"any published algorithm, {name}: CPU seconds to plan a step, under", 1.0, plan_s, plan_s < 1.0),
    ]


def main() -> int:
    """Tables on stdout, then claims, which are of lengths of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--milp", type=float, default=0.0)
    parser.add_argument("--least", type=int, default=1)
    given = parser.parse_args()
    costs = published_costs("7B", THOUSANDS)
    costs = replace(costs, degrees=() if given.least < 2 else costs.degrees)
    paths = given.files or sorted(BESIDE.glob("*.json.gz"))
    if not paths:
        print(f"no lengths are given and {BESIDE} has none: drawn ones only", file=sys.stderr)
    names = [*dict.fromkeys((STATIC, BEST_DEGREE, *slot_names("sequence_groups"))), LOCKSTEP]
    if given.milp:
        names.append(f"flex_sp(lockstep=True, milp_s={given.milp:g})")
    found, files = [], {path.name for path in paths}
    for name, steps in data_sets(paths, given.steps, given.seed):
        print(f"\n{name}")
        show_lengths(steps)
        table = table_of(steps, names, costs)
        show(table)
        if name in files or name in UNTUNED:
            found.append((name, claims(name, steps, table, costs)))
    print(f"\n{'claim':<104}{'limit':>8}{'ours':>10}{'ratio':>8}")
    for claim, limit, ours, holds in itertools.chain.from_iterable(told for _, told in found):
        print(f"{claim:<104}{limit:>8.3f}{ours:>10.4f}{ours / limit:>8.3f}  {'yes' if holds else 'no'}")
    return 0 if all(holds for name, told in found if name in files for *_, holds in told) else 3


if __name__ == "__main__":
    sys.exit(main())
