"""Parts of a microbatch beside experts: steps of two gloo processes that hold half of the experts each, whole and in parts.

A decoder of expert layers trains for a few steps with whole microbatches, then with microbatches in parts, and so on in turns
(`systems/moe/fs_moe/study`, float32). Told are

- `step`: medians of the turns' steps, and of the pairs' ratios (parts over whole) with their quartiles;
- `beside`: of the seconds of all-to-alls of tokens, those in which their own process computes, by the trace.

Exit status 3 where steps in parts are slower in three quarters of the pairs, or nothing more runs beside computes.

Run: OMP_NUM_THREADS=1 python -m benchmarks.token_parts [--parts 2] [--turns 12] [--steps 6]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.moe.fs_moe.study import NUM_PROCESSES, overlapped_share, trained

NUM_WARM_UPS = 2  # steps of a turn that are not counted


def expert_model(width: int, length: int) -> ModelSpec:
    """Four expert layers of eight experts, of which a token goes to two."""
    model = ModelSpec.decoder(
        4, width, 8, vocabulary_size=512, max_sequence_length=length, name="eight experts"
    )
    return model.changed(
        architecture="mixtral", num_experts=8, num_experts_per_token=2, expert_intermediate_size=2 * width
    )


def turn(model: ModelSpec, parts: int, steps: int, pool: Pool) -> tuple[float, float]:
    """Median seconds of a turn's steps, and the share of all-to-alls beside computes."""
    result = trained(model, NUM_PROCESSES, parts, pool, NUM_WARM_UPS + steps, "float32")
    assert result.trace is not None
    seconds = [each.seconds for each in result.iterations[NUM_WARM_UPS:]]
    return statistics.median(seconds), overlapped_share(result.trace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the turns, print, and say whether parts are no slower."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=int, default=2, help="of a microbatch of four samples")
    parser.add_argument("--turns", type=int, default=12, help="pairs of whole and parts")
    parser.add_argument("--steps", type=int, default=6, help="counted in every turn")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    given = parser.parse_args(arguments)
    model, whole, parted = expert_model(given.width, given.length), [], []
    with opened_pool(None, NUM_PROCESSES) as pool:
        for number in range(given.turns):
            sides = [(1, whole), (given.parts, parted)]
            for parts, found in (
                sides if number % 2 == 0 else reversed(sides)
            ):  # who goes first takes turns, too
                found.append(turn(model, parts, given.steps, pool))
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(parted, whole, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    beside = [statistics.median(share for _, share in each) for each in (whole, parted)]
    for name, each, share in zip(("whole", f"{given.parts} parts"), (whole, parted), beside, strict=True):
        print(f"{name:>10}: step {statistics.median(s for s, _ in each) * 1e3:8.1f} ms, beside {share:6.1%}")
    print(f"parts over whole, {len(ratios)} pairs: {ratio:.3f} ({low:.3f} to {high:.3f})")
    return 0 if low <= 1.0 and beside[1] > beside[0] else 3


if __name__ == "__main__":
    sys.exit(main())
