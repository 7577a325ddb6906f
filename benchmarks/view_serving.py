"""Speed of a move in the workbench's serving: from the words of a state to the JSON of a layout under its load.

Claim (the project's own target, the server's share of a move): 30 random moves over rate, replicas and what a step may have
take at most 150 ms of CPU time in the median, for Llama-3.1-70B on H100 and 1,000 requests. Beside it, without a claim: what
a move to a layout takes that nobody has looked at yet, whose steps are simulated first, and latency against load, which
follows when the moves rest.

Run: OMP_NUM_THREADS=1 python benchmarks/view_serving.py [--moves 30] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping

from meshwright.workbench.server.load.asked_load import asked_load_of
from meshwright.workbench.server.load.load_desk import AGAINST_LOAD, OCCUPANCY, LoadDesk
from meshwright.workbench.server.session import Session

LAYOUTS = ({"tp": "8"}, {"tp": "4"}, {"tp": "4", "pp": "2"})
CHOICES = {
    "rate_per_s": ("1", "2", "4", "8"), "replicas": ("1", "2", "4", "8"), "max_batch_tokens": ("512", "1024", "2048"),
    "max_sequences": ("64", "128", "256"), "ttft": ("1s", "2s"),
}  # fmt: skip
CLAIMED_S = 0.150


def seconds(desk: LoadDesk, words: Mapping[str, str], part: str = OCCUPANCY) -> float:
    """CPU seconds of one answer."""
    begin = time.process_time()
    desk.document(asked_load_of({"workload": "serve", **words}, Session()), (part,)).text()
    return time.process_time() - begin


def main() -> None:
    """The claim beside its value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, desk = random.Random(given.seed), LoadDesk()
    seconds(desk, {"model": "gpt2", "tp": "1"})  # kernels are compiled, tables of measured costs read
    for layout in LAYOUTS:
        name = " ".join(f"{word}{value}" for word, value in layout.items())
        print(f"a layout's first move, {name:<24} {seconds(desk, layout):>8.3f} s")
    moves = [
        {**chance.choice(LAYOUTS), **{word: chance.choice(values) for word, values in CHOICES.items()}}
        for _ in range(given.moves)
    ]
    found = sorted(seconds(desk, move) for move in moves)
    against_s = seconds(desk, LAYOUTS[0], AGAINST_LOAD)
    print(f"{given.moves} moves, largest {found[-1]:.3f} s; latency against load {against_s:.3f} s")
    median = statistics.median(found)
    print(f"{'median of a move':<48} {median:>8.3f} s   bound {CLAIMED_S} s   ratio {CLAIMED_S / median:.2f}")


if __name__ == "__main__":
    main()
