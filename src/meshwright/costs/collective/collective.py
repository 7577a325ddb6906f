"""What collectives take on links: latency and bandwidth terms of the usual algorithms, and the bytes they send.

Letters: n members, a seconds of latency of one message, b bytes per second of a link in one direction.
Formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
ring algorithms; bytes are those of the whole tensor (before a reduce-scatter, after an all-gather).
"""

from __future__ import annotations

from functools import partial

from meshwright.costs.cost import Flow
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.summing import RING, SUMS, TREE
from meshwright.specs.error import SpecError

GROUP_TABLES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Steps of the ring in units of (n - 1): an all-reduce is a reduce-scatter and an all-gather.
RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def send_s(num_bytes: float, latency_s: float, bytes_per_s: float) -> float:
    """One message: a + bytes / b."""
    return latency_s + num_bytes / bytes_per_s


def _ring_s(table: str, num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds of a ring collective; none where there is nobody to exchange with."""
    if num_members < 2:
        return 0.0
    steps = RING_PASSES[table] * (num_members - 1)
    return steps * latency_s + steps / num_members * num_bytes / bytes_per_s


# Ring all-reduce: 2 (n - 1) a + 2 (n - 1) / n * bytes / b.
all_reduce_s = partial(_ring_s, "all_reduce")
# Ring all-gather of the bytes in the end, reduce-scatter of those in the beginning, and pairwise all-to-all of those of one
# member, an n-th to each: (n - 1) a + (n - 1) / n * bytes / b.
all_gather_s = partial(_ring_s, "all_gather")
reduce_scatter_s = partial(_ring_s, "reduce_scatter")
all_to_all_s = partial(_ring_s, "all_to_all")


def collective_s(
    table: str, num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float
) -> float:
    """Seconds of a message ("send_receive") or of a collective by name. Raises SpecError on another name."""
    if table == "send_receive":
        return send_s(num_bytes, latency_s, bytes_per_s)
    if table not in GROUP_TABLES:
        raise SpecError(f"collective {table!r} has no formula", allowed=", ".join(GROUP_TABLES))
    return _ring_s(table, num_bytes, num_members, latency_s, bytes_per_s)


def rescaled_s(seconds: float, latency_s: float, num_members: int, num_measured: int) -> float:
    """Seconds of a ring of `num_members`, from those measured with `num_measured` members and the same bytes.

    The latency part grows as n - 1, the rest as (n - 1) / n.
    """
    if num_members == num_measured or num_measured < 2:
        return seconds
    hops = (num_members - 1) / (num_measured - 1)
    moved = hops * num_measured / num_members
    return latency_s * hops + max(0.0, seconds - latency_s) * moved


def collective_table(exchange: Exchange, num_members: int) -> str:
    """Which table prices `exchange`: its algorithm's name, without what follows a dot or slash."""
    if not exchange.algorithm:
        return "send_receive" if _is_message(exchange, num_members) else "all_reduce"
    name = exchange.algorithm.replace("/", ".").split(".")[0].removeprefix("ring_")
    if name == "ring":  # a reduction of gradients that names its algorithm only
        return "all_reduce"
    if name in ("send", "receive", "send_receive", "point_to_point"):
        return "send_receive"
    if name not in GROUP_TABLES:
        raise SpecError(
            f"an exchange asks for algorithm {exchange.algorithm!r}",
            allowed=", ".join(("send_receive", *GROUP_TABLES)),
        )
    return name


def way_of(exchange: Exchange) -> str:
    """How an all-reduce sums: what stands behind the dot of its algorithm, such as "all_reduce.star"; a ring where that is
    no way of `summing`."""
    way = exchange.algorithm.partition(".")[2]
    return way if way in SUMS else RING


def sum_flows(way: str, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
    """Bytes per direction of a sum that is no ring: up to the first device, or the parent, and down again."""
    links = [(devices[i], devices[(i - 1) // 2 if way == TREE else 0]) for i in range(1, len(devices))]
    return tuple(Flow(*ends, num_bytes) for one, other in links for ends in ((one, other), (other, one)))


def _is_message(exchange: Exchange, num_members: int) -> bool:
    """Point to point: a shift, or two given ends."""
    return bool(exchange.shift) or (exchange.ends is not None and num_members == 2)


def flows_between(
    exchange: Exchange, num_bytes: float, devices: tuple[int, ...], *, is_paired: bool = False
) -> tuple[Flow, ...]:
    """Bytes per direction: a message goes from the first device to the second, a collective around the ring. `is_paired`:
    each two devices have a link of their own, and a collective goes over all of them at once: n - 1 rings, none of which
    shares a link with another, or each member's parts straight to the others."""
    members = len(devices)
    if members < 2 or len(set(devices)) < 2:
        return ()
    table = collective_table(exchange, members)
    if table == "send_receive":
        return (Flow(devices[0], devices[1], num_bytes),)
    if is_paired or table == "all_to_all":
        share = RING_PASSES[table] / members * num_bytes
        return tuple(Flow(a, b, share) for a in devices for b in devices if a != b)
    passed = RING_PASSES[table] * (members - 1) / members * num_bytes
    return tuple(Flow(devices[i], devices[(i + 1) % members], passed) for i in range(members))
