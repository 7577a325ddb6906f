"""Parts of a microbatch beside experts: steps of two gloo processes that hold half of the experts each, whole and in parts.

A decoder of expert layers trains for a few steps with whole microbatches, then with microbatches in parts, and so on in turns
(`systems/moe/fs_moe/study`, float32), on two kinds of links:

- `host`: as this machine is. A message between processes of one host is copied by the very cores that compute, so there is
  little that parts could hide, and they pay for smaller products and more rows;
- `even`, or a rate: what a process sends waits for a token bucket, without computing, as on a wire. At the even rate an
  all-to-all takes as long as the experts' forward between two of them: measured first, on whole microbatches.

Told are, of each

- `step`: medians of the turns' steps, and of the pairs' ratios (parts over whole) with their quartiles;
- `form`: the ratio by the closed form of fs_moe, from startup and rate of experts and all-to-alls as they were measured;
- `beside`: of the seconds of all-to-alls of tokens, those in which their own process computes, by the trace.

Exit status 3 where steps in parts are slower in three quarters of the pairs on a slowed link, or nothing more runs beside
computes on any.

Run: OMP_NUM_THREADS=1 python -m benchmarks.token_parts [--parts 2] [--turns 12] [--steps 6] [--link host --link even]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.units import parse_bandwidth
from meshwright.systems.moe.fs_moe.study import (
    NUM_PROCESSES,
    even_link,
    measured_rows,
    overlapped_share,
    predicted_ratio,
    trained,
)

NUM_WARM_UPS, NUM_LAYERS = 2, 4  # steps of a turn that are not counted
HOST, EVEN = "host", "even"


@dataclass
class Side:
    """Of whole microbatches, or of parts: the turns' steps, and shares of all-to-alls beside computes."""

    parts: int
    seconds: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


@dataclass
class Link:
    """Both sides on a link; ``bytes_per_s`` 0: as the machine is. ``forms``: ratios by the closed form."""

    name: str
    bytes_per_s: float
    whole: Side
    parted: Side
    forms: list[float] = field(default_factory=list)


def expert_model(width: int, length: int) -> ModelSpec:
    """Four expert layers of eight experts, of which a token goes to two."""
    model = ModelSpec.decoder(
        NUM_LAYERS, width, 8, vocabulary_size=512, max_sequence_length=length, name="eight experts"
    )
    return model.changed(
        architecture="mixtral", num_experts=8, num_experts_per_token=2, expert_intermediate_size=2 * width
    )


def run_of(model: ModelSpec, parts: int, steps: int, pool: Pool, bytes_per_s: float = 0.0) -> JobResult:
    """A turn."""
    num_steps = NUM_WARM_UPS + steps
    return trained(
        model, NUM_PROCESSES, parts, pool, num_steps, "float32", link_bytes_per_s=bytes_per_s
    )  # fmt: skip


def pair(model: ModelSpec, link: Link, steps: int, pool: Pool, *, is_reversed: bool) -> None:
    """A turn of each side; who goes first takes turns, too."""
    sides, rows = (link.whole, link.parted), {}
    for side in reversed(sides) if is_reversed else sides:
        result = run_of(model, side.parts, steps, pool, link.bytes_per_s)
        assert result.trace is not None
        rows[side.parts] = measured_rows(result.trace)
        side.seconds.append(statistics.median(each.seconds for each in result.iterations[NUM_WARM_UPS:]))
        side.beside.append(overlapped_share(result.trace))
    parts = link.parted.parts
    link.forms.append(predicted_ratio(rows[1], rows[parts], NUM_LAYERS, parts))


def ratios_of(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Quartiles of the ratios of pairs, the median among them; of one pair its ratio."""
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def told(link: Link) -> bool:
    """Print a link's figures; do they hold?"""
    rate = f", {link.bytes_per_s / 1e6:.1f} MB/s" if link.bytes_per_s else ""
    print(f"link {link.name}{rate}")
    for side in (link.whole, link.parted):
        name = "whole" if side.parts == 1 else f"{side.parts} parts"
        step_ms, beside = statistics.median(side.seconds) * 1e3, statistics.median(side.beside)
        print(f"{name:>10}: step {step_ms:8.1f} ms, beside {beside:6.1%}")
    low, ratio, high = ratios_of(link.parted.seconds, link.whole.seconds)
    print(
        f"parts over whole, {len(link.whole.seconds)} pairs: {ratio:.3f} ({low:.3f} to {high:.3f}), "
        f"by the closed form {statistics.median(link.forms):.3f}"
    )
    is_more_beside = statistics.median(link.parted.beside) > statistics.median(link.whole.beside)
    return is_more_beside and (low <= 1.0 or not link.bytes_per_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the turns, print, and say whether parts are no slower."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=int, default=2, help="of a microbatch of four samples")
    parser.add_argument("--turns", type=int, default=12, help="pairs of whole and parts")
    parser.add_argument("--steps", type=int, default=6, help="counted in every turn")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument(
        "--link", action="append", help="host, even, or a rate such as 40MB/s; several are measured in turns"
    )
    given = parser.parse_args(arguments)
    model = expert_model(given.width, given.length)
    with opened_pool(None, NUM_PROCESSES) as pool:
        links = []
        for name in given.link or (HOST, EVEN):
            found = 0.0 if name == HOST else None
            if name == EVEN:
                found = even_link(run_of(model, 1, given.steps, pool))
            rate = parse_bandwidth(name) if found is None else found
            links.append(Link(name, rate, Side(1), Side(given.parts)))
        for number in range(given.turns):
            for link in links:
                pair(model, link, given.steps, pool, is_reversed=number % 2 == 1)
    held = [told(link) for link in links]
    return 0 if all(held) else 3


if __name__ == "__main__":
    sys.exit(main())
