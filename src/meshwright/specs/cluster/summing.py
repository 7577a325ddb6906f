"""Ways to sum terms of a few devices, so that all have the sum: what each takes, and which is quickest for a size and a link.

Letters: n members, a seconds of latency of a message, b bytes per second of a device's link in one direction, S bytes of
a term.

    ring     a reduce-scatter and an all-gather around a ring               2 (n - 1) (a + S / (n b))
    tree     up a binary tree, and down again                               2 ceil(log2 n) (a + S / b)
    star     all send to one, which sums and sends back: its link is the    2 a + 2 (n - 1) S / b
             only one that matters

Ring and tree as in Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005).
"""

from __future__ import annotations

from meshwright.specs.error import UnknownNameError

RING, TREE, STAR = "ring", "tree", "star"
WAYS = (RING, TREE, STAR)
QUICKEST = "quickest"  # of the ways, asked for every size anew
SUMS = (*WAYS, QUICKEST)


def check_sums(name: str) -> None:
    """Raise UnknownNameError for what is no way to sum."""
    if name not in SUMS:
        raise UnknownNameError("way to sum", name, SUMS)


def sum_s(way: str, num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds of a sum in a way, or in the quickest. None where there is nobody to sum with."""
    n, sent_s = num_members, num_bytes / bytes_per_s
    if n < 2:
        return 0.0
    if way == QUICKEST:
        way = quickest_sum(num_bytes, num_members, latency_s, bytes_per_s)
    if way == RING:
        return 2 * (n - 1) * (latency_s + sent_s / n)
    if way == TREE:
        return 2 * (n - 1).bit_length() * (latency_s + sent_s)
    return 2 * latency_s + 2 * (n - 1) * sent_s


def quickest_sum(
    num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float, ways: tuple[str, ...] = WAYS
) -> str:
    """The way that takes least; of equal ones the first."""
    return min(ways, key=lambda way: sum_s(way, num_bytes, num_members, latency_s, bytes_per_s))


def crossover_bytes(num_members: int, latency_s: float, bytes_per_s: float) -> float:
    """Bytes of a term below which a star takes less than a ring: n a b (n - 2) / (n - 1)^2. Two members' ring and star send
    the same: there none."""
    n = num_members
    return latency_s * bytes_per_s * n * (n - 2) / (n - 1) ** 2 if n > 1 else 0.0
