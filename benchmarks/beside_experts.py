"""Two microbatches beside each other: steps of two gloo processes that hold half of the experts each, in the plain order
and in pairs of a forward and a backward, which take turns at every exchange (`Plan.overlap` "ep").

The model, links and turns are those of `benchmarks.token_parts` (float32, four expert layers of eight experts); microbatches
are two samples of each process, so that a step has `--microbatches` of them. Told are, of each order

- `step`: medians of the turns' steps, and of the pairs' ratios (in pairs over plain) with their quartiles;
- `beside`: of the seconds of all-to-alls of tokens, those in which their own process computes, by the trace;
- `sent`: bytes that a process sent in them, which have to be the same.

Exit status 3 where steps in pairs are slower in three quarters of the turns on a slowed link, other bytes were sent, or
nothing more runs beside computes on any link.

Run: OMP_NUM_THREADS=1 python -m benchmarks.beside_experts [--turns 12] [--steps 6] [--link host --link even]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.token_parts import EVEN, HOST, NUM_WARM_UPS, expert_model, ratios_of

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.units import parse_bandwidth
from meshwright.systems.moe.fs_moe.study import NUM_PROCESSES, even_link, overlapped_share, trained

SAMPLES = 2  # of a process, one microbatch
ORDERS = {"plain": ("reduce",), "in pairs": ("reduce", "ep")}


@dataclass
class Order:
    """Of one order the turns' steps, shares of all-to-alls beside computes, and bytes sent in them."""

    seconds: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)


def run_of(
    model: ModelSpec, overlap: tuple[str, ...], num_microbatches: int, steps: int, pool: Pool,
    bytes_per_s: float = 0.0,
) -> JobResult:  # fmt: skip
    """A turn."""
    batch = NUM_PROCESSES * SAMPLES * num_microbatches
    return trained(
        model, NUM_PROCESSES, 1, pool, NUM_WARM_UPS + steps, "float32", batch, SAMPLES, bytes_per_s, overlap
    )


def told(name: str, orders: dict[str, Order], *, is_slowed: bool) -> bool:
    """Print a link's figures; do they hold?"""
    plain, paired = orders.values()
    print(f"link {name}")
    for label, order in orders.items():
        step_ms, beside = statistics.median(order.seconds) * 1e3, statistics.median(order.beside)
        print(
            f"{label:>10}: step {step_ms:8.1f} ms, beside {beside:6.1%}, sent {sorted(order.sent)} bytes a step"
        )
    low, ratio, high = ratios_of(paired.seconds, plain.seconds)
    print(f"in pairs over plain, {len(plain.seconds)} turns: {ratio:.3f} ({low:.3f} to {high:.3f})")
    is_more_beside = statistics.median(paired.beside) > statistics.median(plain.beside)
    return is_more_beside and paired.sent == plain.sent and (low <= 1.0 or not is_slowed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the turns, print, and say whether pairs are no slower on slowed links."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=4, help="of a step")
    parser.add_argument("--turns", type=int, default=12, help="of each order")
    parser.add_argument("--steps", type=int, default=6, help="counted in every turn")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--link", action="append", help="host, even, or a rate such as 40MB/s")
    given = parser.parse_args(arguments)
    model, held = expert_model(given.width, given.length), []
    with opened_pool(None, NUM_PROCESSES) as pool:
        for name in given.link or (HOST, EVEN):
            rate = 0.0 if name in (HOST, EVEN) else parse_bandwidth(name)
            if name == EVEN:
                rate = even_link(run_of(model, ORDERS["plain"], given.microbatches, given.steps, pool))
            orders = {each: Order() for each in ORDERS}
            for number in range(given.turns):
                for each in sorted(ORDERS, reverse=number % 2 == 1):
                    result = run_of(model, ORDERS[each], given.microbatches, given.steps, pool, rate)
                    assert result.trace is not None
                    steps = result.iterations[NUM_WARM_UPS:]
                    orders[each].seconds.append(statistics.median(step.seconds for step in steps))
                    orders[each].beside.append(overlapped_share(result.trace))
                    orders[each].sent |= {
                        int(rank["ROUTE"]) // (NUM_WARM_UPS + given.steps) for rank in result.sent_bytes
                    }
            shown = f"{name}, {rate / 1e6:.1f} MB/s" if rate else name
            held.append(told(shown, orders, is_slowed=bool(rate)))
    return 0 if all(held) else 3


if __name__ == "__main__":
    sys.exit(main())
